//! The lock file: one process applies to a database file.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use crate::store::StoreError;

/// The exclusive lock of a database file. Ends when it is dropped, and with the process.
#[derive(Debug)]
pub(super) struct RunLock(#[expect(dead_code, reason = "an open file is the lock")] File);

impl RunLock {
    /// Takes the lock of the database at `database`, in a file beside it that is never removed.
    pub(super) fn take(database: &Path) -> Result<Self, StoreError> {
        let path = beside(database);
        let cannot = |problem: &str, error: &std::io::Error| StoreError::Refused {
            problem: format!("{problem} the lock file {}: {}", path.display(), error.kind()),
            fix: "see that the folder of `store.url` is there and may be written to".to_owned(),
        };
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|error| cannot("cannot open", &error))?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => Err(StoreError::Refused {
                problem: format!("another `projector run` applies to {} already", database.display()),
                fix: "end that process first: one process at a time may apply to a SQLite file".to_owned(),
            }),
            Err(TryLockError::Error(error)) => Err(cannot("cannot lock", &error)),
        }
    }
}

/// `shop.db` has its lock in `shop.db.lock`.
fn beside(database: &Path) -> PathBuf {
    let mut name = OsString::from(database.as_os_str());
    name.push(".lock");
    name.into()
}
