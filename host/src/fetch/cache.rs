//! The folder of fetched models.

use super::FetchError;
use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

const LOCK: &str = "fetching.lock";
const LONGEST_WAIT: Duration = Duration::from_secs(60 * 60);
const POLL: Duration = Duration::from_millis(200);

/// The folder of fetched models.
pub(super) struct Cache<'a>(&'a Path);

impl<'a> Cache<'a> {
    pub(super) fn new(folder: &'a Path) -> Self {
        Self(folder)
    }

    /// Makes this caller the one that fetches, until the file is dropped.
    pub(super) fn lock(&self, is_cancelled: &dyn Fn() -> bool) -> Result<File, FetchError> {
        fs::create_dir_all(self.0).map_err(|e| self.unusable(e))?;
        let file = File::create(self.0.join(LOCK)).map_err(|e| self.unusable(e))?;
        let begun = Instant::now();
        let mut has_told = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::Error(e)) => return Err(self.unusable(e)),
                Err(TryLockError::WouldBlock) if begun.elapsed() > LONGEST_WAIT => {
                    return Err(FetchError::Locked {
                        path: self.0.to_owned(),
                        minutes: LONGEST_WAIT.as_secs() / 60,
                    });
                }
                Err(TryLockError::WouldBlock) if is_cancelled() => return Err(FetchError::Cancelled),
                Err(TryLockError::WouldBlock) => {
                    if !has_told {
                        tracing::info!("another process is fetching a model; waiting for it");
                        has_told = true;
                    }
                    std::thread::sleep(POLL);
                }
            }
        }
    }

    /// The folder of a package's files.
    pub(super) fn of_package(&self, name: &str, version: &str) -> PathBuf {
        self.0.join("pypi").join(name).join(version)
    }

    /// The folder that the hub's files are kept in, as hubs' clients lay it out.
    pub(super) fn of_hub(&self) -> PathBuf {
        self.0.join("hub")
    }

    /// An error of this folder.
    pub(super) fn unusable(&self, error: io::Error) -> FetchError {
        FetchError::Cache {
            path: self.0.to_owned(),
            error,
        }
    }
}
