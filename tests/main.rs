//! Every test that needs more than one module, in one binary.

mod avro;
mod check;
mod ddl;
mod dead_letters;
mod files;
mod health;
mod kafka_source;
mod layers;
mod log_faults;
mod outage;
mod run_postgres;
mod shop;
mod shutdown;
mod sqlite;
mod support;
mod verbs;
