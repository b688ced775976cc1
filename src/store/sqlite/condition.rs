//! What `check --connect` sees of a database file; nothing is made.

use std::path::Path;

use super::catalogue;
use super::connections::{Connections, Purpose, Work};
use crate::store::{Condition, LayoutState, Obstacle, StoreError};

pub(super) async fn condition(connections: &Connections) -> Result<Condition, StoreError> {
    if let Some(path) = connections.path().filter(|path| !path.exists()) {
        let obstacles = missing_folder(path).into_iter().collect();
        return Ok(Condition { layout: LayoutState::Absent, obstacles });
    }
    let layout = layout(connections).await?;
    let is_readonly = connections
        .path()
        .and_then(|path| path.metadata().ok())
        .is_some_and(|about| about.permissions().readonly());
    let obstacle = is_readonly.then(|| Obstacle {
        problem: "the file of `store.url` may not be written to".to_owned(),
        fix: "change its permissions or its owner".to_owned(),
    });
    Ok(Condition { layout, obstacles: obstacle.into_iter().collect() })
}

/// Whether the projector's own tables are there.
pub(super) async fn layout(connections: &Connections) -> Result<LayoutState, StoreError> {
    let mut work = Work::begin(connections, Purpose::Read, "look at the store").await?;
    let kind = catalogue::kind(&mut work, "projector_versions").await;
    Ok(if work.end(kind).await?.is_some() { LayoutState::Present } else { LayoutState::Absent })
}

fn missing_folder(file: &Path) -> Option<Obstacle> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let problem = match folder.metadata() {
        Ok(about) if about.is_dir() && !about.permissions().readonly() => return None,
        Ok(about) if about.is_dir() => "may not be written to",
        _ => "is not there",
    };
    Some(Obstacle {
        problem: format!("the folder {} {problem}", folder.display()),
        fix: "make it, or correct `store.url`".to_owned(),
    })
}
