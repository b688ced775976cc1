//! `projector.yaml`: load, substitute, validate.

pub mod settings;
pub mod yaml;
