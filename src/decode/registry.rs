//! STUB
use super::SchemaId;
use std::time::Duration;
/// STUB
#[derive(Clone)]
pub struct Schemas;
/// STUB
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub enum RegistryError {
    /** s */
    Unknown {},
    /** s */
    Other,
}
impl Schemas {
    /// STUB
    pub async fn fetch(&self, _: SchemaId) -> Result<(), RegistryError> {
        Ok(())
    }
    /// STUB
    pub fn declare_unknown(&self, _: SchemaId, _: Duration) {}
}
