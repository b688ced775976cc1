//! STUB
/// STUB
pub type PostgresStore = super::sqlite::SqliteStore;
impl PostgresStore {
    /// STUB
    pub async fn connect(_: &crate::config::settings::StoreSettings) -> Result<Self, super::StoreError> {
        Err(super::StoreError::CommitUnknown)
    }
}
