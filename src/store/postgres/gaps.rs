//! What is missing or differs: made at once, or, where somebody else makes it (`store.ddl: verify`), gathered, so that one
//! error names all of it with the SQL that ends it.

use super::PostgresStore;
use super::work::Work;
use crate::config::settings::DdlMode;
use crate::store::StoreError;

/// What the program has made itself.
#[derive(Debug, Default, Clone)]
pub(super) struct Made {
    pub(super) schema: bool,
    pub(super) tables: Vec<String>,
}

impl Made {
    /// Tells it, where there is anything and this program is the one that makes things.
    pub(super) fn tell(&self, store: &PostgresStore) {
        let schema = &store.schema;
        if store.ddl == DdlMode::Verify {
            return;
        }
        if self.schema {
            tracing::info!("made schema {schema}, which was not there");
        }
        if !self.tables.is_empty() {
            tracing::info!("made tables in schema {schema}: {}", self.tables.join(", "));
        }
    }
}

/// Things that somebody else has yet to make, or that have been made.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    gaps: Vec<Gap>,
    made: Made,
}

#[derive(Debug)]
struct Gap {
    /// "table x is missing"
    what: String,
    /// Statements that end it, without the last semicolon.
    sql: String,
}

impl Gaps {
    /// Runs `sql`, or keeps it for the error.
    pub(super) async fn make(
        &mut self,
        store: &PostgresStore,
        work: &mut Work<'_>,
        what: &str,
        sql: &str,
    ) -> Result<(), StoreError> {
        match store.ddl {
            DdlMode::Apply => work.script(sql).await,
            DdlMode::Verify => {
                self.add(what, sql);
                Ok(())
            }
        }
    }

    /// What has been made, to be told once it is committed.
    pub(super) fn made(&mut self) -> &mut Made {
        &mut self.made
    }

    /// Keeps something for the error.
    pub(super) fn add(&mut self, what: impl Into<String>, sql: impl Into<String>) {
        self.gaps.push(Gap { what: what.into(), sql: sql.into() });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.gaps.is_empty()
    }

    /// What is wrong, in one line.
    fn what(&self) -> String {
        self.gaps.iter().map(|gap| gap.what.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// One error that names everything, where there is anything.
    pub(super) fn into_result(self, store: &PostgresStore) -> Result<(), StoreError> {
        if self.is_empty() {
            return Ok(());
        }
        let sql = self.gaps.iter().map(|gap| gap.sql.as_str()).collect::<Vec<_>>().join(";\n");
        Err(StoreError::Layout {
            problem: format!("not all is in schema {} as it should be: {}", store.schema, self.what()),
            fix: format!(
                "`store.ddl` is `verify`, so somebody else makes it; `projector ddl` prints everything, and this is what is lacking:\n{sql};"
            ),
        })
    }

    /// The same where a version that has caught up lacks its views. Short, since it is said while the projector runs.
    pub(super) fn into_promotion(self, store: &PostgresStore, projection: &str) -> Result<(), StoreError> {
        if self.is_empty() {
            return Ok(());
        }
        Err(StoreError::Layout {
            problem: format!("it waits for its views in schema {}: {}", store.schema, self.what()),
            fix: format!(
                "`store.ddl` is `verify`: run what `projector ddl {projection} --views` prints, and it goes live by itself"
            ),
        })
    }
}
