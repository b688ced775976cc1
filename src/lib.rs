//! projector: Kafka events applied to read stores.

pub mod app;
pub mod cli;
pub mod config;
pub mod dead_letter;
pub mod decode;
pub mod demo;
pub mod fault;
pub mod fold;
pub mod http;
pub mod pipeline;
pub mod position;
pub mod projection;
pub mod record;
pub mod source;
pub mod status;
pub mod store;
pub mod telemetry;
pub mod versions;
