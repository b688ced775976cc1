//! Projection files: read, and checked against each other and against the settings. `check`, `run` and `ddl` all come here,
//! so that what one of them refuses the others refuse alike.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{AppError, agreement};
use crate::config::settings::Settings;
use crate::config::yaml::Mistake;
use crate::pipeline::service::PrepareError;
use crate::projection::spec::{self, YamlProjection};
use crate::projection::{Declaration, Projection};
use crate::store::StoreError;

/// A projection file that has been read.
#[derive(Debug, Clone)]
pub struct CheckedProjection {
    /// Its declaration.
    pub declaration: Arc<Declaration>,
    /// What is allowed and likely not meant.
    pub warnings: Vec<Mistake>,
}

impl CheckedProjection {
    /// What is to be told of a projection that has been read.
    #[must_use]
    pub fn of(projection: &YamlProjection) -> Self {
        let warnings = projection.warnings().iter();
        Self {
            declaration: Arc::new(projection.declaration().clone()),
            warnings: warnings.map(|warning| Mistake::new(&warning.place, &*warning.message)).collect(),
        }
    }
}

/// Projection files that have been read and checked.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Those without a mistake, in the order of the files.
    pub projections: Vec<Arc<YamlProjection>>,
    /// Every mistake, file by file.
    pub mistakes: Vec<Mistake>,
}

/// Reads one projection file, without a look at anything else.
///
/// # Errors
/// Every mistake in it.
pub fn load_projection(path: &Path) -> Result<CheckedProjection, Vec<Mistake>> {
    Ok(CheckedProjection::of(&spec::load(path)?))
}

/// Reads these files and checks each of them and, where there are some, against the settings.
///
/// # Errors
/// The checks themselves failed.
pub async fn load_projections(files: &[PathBuf], settings: Option<&Settings>) -> Result<Loaded, AppError> {
    let mut loaded = read(files);
    for projection in &loaded.projections {
        loaded.mistakes.extend(agreement::with_settings(projection, settings).await?);
    }
    Ok(loaded.settled())
}

/// Reads the files of the settings and checks each of them, against the settings, and all of them together.
///
/// # Errors
/// The checks themselves failed.
pub async fn configured_projections(settings: &Settings) -> Result<Loaded, AppError> {
    let mut loaded = read(&settings.projections);
    if settings.projections.is_empty() {
        let mistake = Mistake::new(&settings.projections_place, "no projection is configured");
        loaded.mistakes.push(mistake.fix("list the files: projections: [customers.v1.yaml]"));
    }
    for projection in &loaded.projections {
        loaded.mistakes.extend(agreement::with_settings(projection, Some(settings)).await?);
    }
    loaded.mistakes.extend(agreement::with_each_other(&loaded.projections, settings));
    Ok(loaded.settled())
}

fn read(files: &[PathBuf]) -> Loaded {
    let mut loaded = Loaded::default();
    for file in files {
        match spec::load(file) {
            Ok(projection) => loaded.projections.push(Arc::new(projection)),
            Err(found) => loaded.mistakes.extend(found),
        }
    }
    loaded
}

impl Loaded {
    /// With only those projections whose files have no mistake.
    fn settled(mut self) -> Self {
        self.mistakes.sort_by(|a, b| a.place.cmp(&b.place));
        let mistakes = &self.mistakes;
        self.projections.retain(|projection| {
            let file = &projection.places().name.file;
            !mistakes.iter().any(|mistake| mistake.place.file == *file)
        });
        self
    }

    /// All projections.
    ///
    /// # Errors
    /// Every mistake, where there is one.
    pub fn without_mistakes(self) -> Result<Vec<Arc<YamlProjection>>, Vec<Mistake>> {
        if self.mistakes.is_empty() { Ok(self.projections) } else { Err(self.mistakes) }
    }
}

/// The projections of the settings, or those of them that are named.
pub(super) async fn chosen_projections(
    settings: &Settings,
    names: &[String],
) -> Result<Vec<Arc<YamlProjection>>, AppError> {
    let loaded = configured_projections(settings).await?;
    let mut projections = loaded.without_mistakes().map_err(AppError::Mistakes)?;
    let known: Vec<&str> =
        projections.iter().map(|projection| projection.declaration().name.as_str()).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(AppError::Configuration {
            problem: format!("no projection {unknown}"),
            fix: format!("known: {}", known.join(", ")),
        });
    }
    projections.retain(|projection| names.is_empty() || names.contains(&projection.declaration().name));
    Ok(projections)
}

/// The error as a mistake in a file, where it is about the SQL of a view there.
pub(super) fn placed(error: AppError, projections: &[Arc<YamlProjection>]) -> AppError {
    let AppError::Prepare(
        PrepareError::Store(source @ StoreError::View { .. }) | PrepareError::Register { source, .. },
    ) = &error
    else {
        return error;
    };
    let StoreError::View { view, problem, fix } = source else {
        return error;
    };
    let place = projections.iter().find_map(|projection| {
        let index = projection.declaration().views.iter().position(|declared| declared.name == *view)?;
        projection.places().views.get(index)
    });
    match place {
        Some(place) => {
            let message = format!("view `{view}` cannot be made: {problem}");
            AppError::Mistakes(vec![Mistake::new(place, message).fix(fix.as_str())])
        }
        None => error,
    }
}
