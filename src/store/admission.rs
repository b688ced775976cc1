//! What every SQL store decides alike when a version is registered or promoted. How the facts are looked up is the store's.

use super::{Registration, StoreError, VersionRow, VersionState};
use crate::projection::Declaration;

/// What a registration is to a store.
#[derive(Debug)]
pub(super) enum Admission {
    /// A version that the store does not have yet.
    New,
    /// One that it has, with the same mapping, cluster and group.
    Known(VersionRow),
}

/// Admits a registration beside the versions of its projection that the store has.
pub(super) fn admit(rows: Vec<VersionRow>, registration: &Registration) -> Result<Admission, StoreError> {
    let version = registration.declaration.version;
    let mut served: Vec<VersionRow> =
        rows.into_iter().filter(|row| row.state != VersionState::Retired).collect();
    if let Some(index) = served.iter().position(|row| row.key.version == version) {
        let row = served.swap_remove(index);
        refuse_another(&row, registration)?;
        return Ok(Admission::Known(row));
    }
    let Some(other) = served.first() else { return Ok(Admission::New) };
    Err(StoreError::Refused {
        problem: format!(
            "{} cannot be registered while the store has {}",
            registration.declaration.label(),
            other.key
        ),
        fix: format!("retire that first: `projector retire {} --execute` drops everything of it", other.key),
    })
}

fn refuse_another(row: &VersionRow, registration: &Registration) -> Result<(), StoreError> {
    let label = registration.declaration.label();
    let refused = |problem: String, fix: String| Err(StoreError::Refused { problem, fix });
    if row.digest != registration.declaration.digest {
        return refused(
            format!(
                "the store has another mapping as {label}: the sources, tables or events of the file have \
                 changed since"
            ),
            format!(
                "put the file back as it was, or start over: stop all instances, `projector retire {label} --execute`, and run again"
            ),
        );
    }
    for (what, is, should) in [
        ("cluster", &row.log.cluster_id, &registration.log.cluster_id),
        ("consumer group", &row.log.consumer_group, &registration.log.consumer_group),
    ] {
        if is != should {
            return refused(
                format!("the positions of {label} belong to the {what} {is}, this process uses {should}"),
                format!(
                    "use the {what} of the store, or start over with `projector retire {label} --execute`"
                ),
            );
        }
    }
    Ok(())
}

/// A table of a registered version is not there.
pub(super) fn table_is_gone(physical: &str, declaration: &Declaration) -> StoreError {
    let label = declaration.label();
    StoreError::Layout {
        problem: format!("table {physical} of {label} is gone"),
        fix: format!("restore it, or start over with `projector retire {label} --execute`"),
    }
}

/// A table of a new version must be empty: its content is a function of the log alone (promise P0).
pub(super) fn rows_of_nobody(physical: &str) -> StoreError {
    StoreError::Refused {
        problem: format!(
            "table {physical} is there already and is not ours: it has rows that no registered version has written"
        ),
        fix: "look what they are; then empty or drop the table, and start again".to_owned(),
    }
}

/// A table of a new version is there, and differs from what is declared: nothing of this store has made it.
pub(super) fn not_ours(physical: &str, error: StoreError) -> StoreError {
    let StoreError::Layout { problem, .. } = error else { return error };
    StoreError::Layout {
        problem: format!("table {physical} is there already and is not ours: {problem}"),
        fix: "rename that table, drop it where nobody needs it, or give the projection's table another name"
            .to_owned(),
    }
}

/// One of the projector's own tables is there, and the store is not laid out: somebody else's has its name. `elsewhere` says
/// where else the store may be.
pub(super) fn not_the_projectors(name: &str, error: StoreError, elsewhere: &str) -> StoreError {
    let StoreError::Layout { problem, .. } = error else { return error };
    StoreError::Layout {
        problem: format!("{name} is there already and is not ours: {problem}"),
        fix: format!("name {elsewhere}, or rename what has that name"),
    }
}

/// A version that is asked for has no row.
pub(super) fn not_registered(declaration: &Declaration) -> StoreError {
    StoreError::Refused {
        problem: format!("{} is not registered", declaration.label()),
        fix: "start it with `projector run` first".to_owned(),
    }
}

/// How far a first version is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readiness {
    /// It is live.
    Live,
    /// A partition is behind its boundary, or another version is live.
    NotYet,
    /// Nothing but its views is wanted.
    Ready,
}

/// What a store has found about a version that wants to be the first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    pub(super) state: VersionState,
    /// Whether a partition is behind its boundary.
    pub(super) is_behind: bool,
    /// Whether another version of the projection is live.
    pub(super) other_is_live: bool,
}

impl Progress {
    /// What follows from it.
    pub(super) const fn readiness(self) -> Readiness {
        match self.state {
            VersionState::Live => Readiness::Live,
            _ if self.is_behind || self.other_is_live => Readiness::NotYet,
            _ => Readiness::Ready,
        }
    }
}
