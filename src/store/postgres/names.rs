//! Names in SQL: never longer than PostgreSQL keeps.

use crate::store::StoreError;

/// The longest name that PostgreSQL keeps, in bytes. It cuts longer ones without an error.
pub(super) const LONGEST: usize = 63;

/// Refuses a name that PostgreSQL would cut or cannot hold.
pub(super) fn check(what: &str, name: &str) -> Result<(), StoreError> {
    if !name.is_empty() && name.len() <= LONGEST && !name.contains('\0') {
        return Ok(());
    }
    Err(StoreError::Layout {
        problem: format!(
            "the {what} {name:?} has a name of {} bytes, PostgreSQL keeps 1 to {LONGEST}",
            name.len()
        ),
        fix: "give it a shorter name".to_owned(),
    })
}
