//! The lock file: one process applies to a database file.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use crate::store::StoreError;

/// How long the lock is waited for: a process, or a part of this one, that is just ending gives it back soon.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);

/// The exclusive lock of a database file. Ends when it is dropped, and with the process.
#[derive(Debug)]
pub(super) struct RunLock(#[expect(dead_code, reason = "an open file is the lock")] File);

impl RunLock {
    /// Takes the lock of the database at `database`, in a file beside it that is never removed.
    pub(super) async fn take(database: &Path) -> Result<Self, StoreError> {
        let deadline = Instant::now() + PATIENCE;
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
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self(file)),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => tokio::time::sleep(PAUSE).await,
                Err(TryLockError::WouldBlock) => {
                    return Err(StoreError::Refused {
                        problem: format!("another `projector run` applies to {} already", database.display()),
                        fix: "end that process first: one process at a time may apply to a SQLite file"
                            .to_owned(),
                    });
                }
                Err(TryLockError::Error(error)) => return Err(cannot("cannot lock", &error)),
            }
        }
    }
}

/// `shop.db` has its lock in `shop.db.lock`.
fn beside(database: &Path) -> PathBuf {
    let mut name = OsString::from(database.as_os_str());
    name.push(".lock");
    name.into()
}
