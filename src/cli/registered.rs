//! Whether the projection that a command line names is there.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::exit::Failure;
use super::names::Selection;
use crate::app;
use crate::config::settings::Settings;
use crate::store::{SharedStore, VersionKey, VersionState};

/// Lets pass what the store has registered and not retired.
///
/// # Errors
/// A name that is neither registered nor in the configuration is wrong usage; one that is only in the configuration is not
/// ready.
pub(super) async fn expect_registered(
    store: &SharedStore,
    settings: &Settings,
    wanted: &Selection,
) -> Result<(), Failure> {
    let rows = store.versions().await?;
    let registered: BTreeSet<VersionKey> =
        rows.into_iter().filter(|row| row.state != VersionState::Retired).map(|row| row.key).collect();
    if registered.iter().any(|key| wanted.has(key)) {
        return Ok(());
    }
    Err(refusal(wanted, registered, configured(settings)))
}

/// The versions of those projection files that can be read.
fn configured(settings: &Settings) -> BTreeSet<VersionKey> {
    let readable = settings.projections.iter().filter_map(|path| app::load_projection(path).ok());
    let key = |checked: app::CheckedProjection| VersionKey {
        projection: Arc::from(checked.declaration.name.as_str()),
        version: checked.declaration.version,
    };
    readable.map(key).collect()
}

fn refusal(
    wanted: &Selection,
    registered: BTreeSet<VersionKey>,
    configured: BTreeSet<VersionKey>,
) -> Failure {
    if configured.iter().any(|key| wanted.has(key)) {
        return Failure::refused(
            format!("{wanted} is not registered in this store"),
            "`projector run` registers it; if it has run, correct `store.url` or `store.schema`",
        );
    }
    let known: Vec<String> = registered
        .into_iter()
        .chain(configured)
        .collect::<BTreeSet<_>>()
        .iter()
        .map(ToString::to_string)
        .collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Failure::usage(
        format!("no projection {wanted}; known: {known}"),
        "name one of those; `projector status` shows what the store has",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::exit::Exit;
    use crate::cli::names::{selection, version};

    fn refused(wanted: &str, registered: &[&str], configured: &[&str]) -> (Exit, String) {
        let keys = |names: &[&str]| names.iter().map(|name| version(name).expect("valid")).collect();
        let failure = refusal(&selection(wanted).expect("valid"), keys(registered), keys(configured));
        (failure.exit(), failure.text())
    }

    #[test]
    fn an_unknown_name_is_answered_with_those_that_are_known() {
        for wanted in ["stok", "stock@2", "orders@3"] {
            let (exit, text) = refused(wanted, &["orders@1", "stock@1"], &["orders@2", "stock@1"]);
            assert_eq!(exit, Exit::Usage);
            let first = format!("error: no projection {wanted}; known: orders@1, orders@2, stock@1\n");
            assert!(text.starts_with(&first), "{text}");
        }
        assert!(refused("orders", &[], &[]).1.contains("known: none"));
    }

    #[test]
    fn a_projection_that_is_only_configured_is_not_ready() {
        let (exit, text) = refused("orders@2", &["orders@1"], &["orders@2"]);
        assert_eq!(exit, Exit::Refused);
        assert!(text.contains("orders@2 is not registered") && text.contains("projector run"), "{text}");
    }
}
