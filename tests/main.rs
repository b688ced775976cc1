//! Every test that needs more than one module, in one binary.

mod avro;
mod check;
mod ddl;
mod files;
mod health;
mod kafka_source;
mod layers;
mod outage;
mod run_postgres;
mod shop;
mod shutdown;
mod sqlite;
mod support;
mod verbs;
