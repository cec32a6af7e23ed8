//! A request's hold on a generation.

use super::Generation;
use std::{ops::Deref, sync::Arc, time::Duration};

/// When to ask again for a slot that doesn't serve.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(2);

/// A request's hold on a generation, given back when it is dropped.
pub struct Lease<T>(Arc<Generation<T>>);

/// Why there is no lease.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// No slot has this name.
    #[error("the model {model:?} does not exist; GET /v1/models lists those that are served")]
    UnknownModel {
        /// The name.
        model: String,
    },
    /// The slot is there, and serves nothing at the moment.
    #[error("the model is not ready; try again in {} s", retry_after.as_secs())]
    NotReady {
        /// When to ask again.
        retry_after: Duration,
    },
}

impl<T> Lease<T> {
    /// A hold on `generation`, unless it is closed.
    pub(super) fn of(generation: Arc<Generation<T>>) -> Option<Self> {
        generation.hold().then(|| Self(generation))
    }
}

impl<T> Deref for Lease<T> {
    type Target = Generation<T>;
    fn deref(&self) -> &Generation<T> {
        &self.0
    }
}

impl<T> Drop for Lease<T> {
    fn drop(&mut self) {
        self.0.release();
    }
}
