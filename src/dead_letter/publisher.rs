//! STUB
/// STUB
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct PublishError;
