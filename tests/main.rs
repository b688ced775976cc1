//! Every test that needs more than one module, in one binary.

mod avro;
mod layers;
mod run_postgres;
mod shop;
mod support;
