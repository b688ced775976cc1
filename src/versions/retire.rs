//! Retiring: everything of a version is dropped, and its number is free again.

use crate::store::{RetirePlan, SharedStore, StoreError, VersionKey};

/// Whether a destructive command only says what it would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retirement {
    /// It says what it would drop.
    Plan,
    /// It drops it.
    Execute,
}

/// A version could not be retired.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RetireError {
    /// The store does not know the version.
    #[error("the store has no {wanted}{}", versions_there(.known))]
    Unknown {
        /// What was asked for.
        wanted: VersionKey,
        /// The versions that are there.
        known: Vec<VersionKey>,
    },
    /// The store did not do it.
    #[error("{wanted} was not retired")]
    Store {
        /// What was asked for.
        wanted: VersionKey,
        /// Why not.
        #[source]
        source: StoreError,
    },
}

fn versions_there(versions: &[VersionKey]) -> String {
    if versions.is_empty() {
        return "; it has no versions at all, so check `store.url` and `store.schema`".to_owned();
    }
    let names: Vec<String> = versions.iter().map(ToString::to_string).collect();
    format!("; it has {}", names.join(", "))
}

/// Plans or does the retirement of `version`, and returns what is, or was, dropped. Instances that consume the version
/// are fenced by it: their next transaction is refused, and they stop serving it.
///
/// # Errors
/// The version is not there, or the store did not do it; then nothing has been dropped.
pub async fn retire(
    store: &SharedStore,
    version: &VersionKey,
    how: Retirement,
) -> Result<RetirePlan, RetireError> {
    let failed = |source| RetireError::Store { wanted: version.clone(), source };
    let versions = store.versions().await.map_err(failed)?;
    if !versions.iter().any(|row| row.key == *version) {
        let known = versions.into_iter().map(|row| row.key).collect();
        return Err(RetireError::Unknown { wanted: version.clone(), known });
    }
    match how {
        Retirement::Plan => store.retire_plan(version).await,
        Retirement::Execute => store.retire(version).await,
    }
    .map_err(failed)
}
