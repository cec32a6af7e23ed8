//! A request's hold on a generation.

use super::{Generation, ModelText, RequestStream, Slot};
use crate::request::{Refused, Request};
use std::{ops::Deref, sync::Arc, time::Duration};

/// When to ask again for a slot that doesn't serve.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(2);

/// A request's hold on a generation, given back when it is dropped.
pub struct Lease<T> {
    generation: Arc<Generation<T>>,
    slot: Arc<Slot<T>>,
}

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
    /// The slot's model is being swapped, and as many requests wait for it as may.
    #[error("the model is being swapped and too many requests wait for it; try again in {} s", retry_after.as_secs())]
    Full {
        /// When to ask again.
        retry_after: Duration,
    },
}

impl<T> Lease<T> {
    /// A hold on `generation`, unless it is closed.
    pub(super) fn of(slot: &Arc<Slot<T>>, generation: &Arc<Generation<T>>) -> Option<Self> {
        generation.hold().then(|| Self {
            generation: Arc::clone(generation),
            slot: Arc::clone(slot),
        })
    }

    /// The slot that it was taken at.
    pub fn slot(&self) -> &Arc<Slot<T>> {
        &self.slot
    }

    fn again(&self) -> Self {
        self.generation.hold_again();
        Self {
            generation: Arc::clone(&self.generation),
            slot: Arc::clone(&self.slot),
        }
    }
}

impl<T: ModelText> Lease<T> {
    /// Hands requests to the engine, all of them or none. Their streams hold the generation from here on, and
    /// go on in another one where the slot is swapped and its requests are carried over.
    pub fn submit(self, requests: Vec<Request>) -> Result<Vec<RequestStream<T>>, Refused> {
        match self.engine().submit_all(requests) {
            Ok(streams) => Ok(streams
                .into_iter()
                .map(|events| RequestStream::here(self.again(), events))
                .collect()),
            // Carried over before it came in.
            Err((Refused::Draining, requests)) if self.slot.goes_on_after(self.number()) => Ok(requests
                .into_iter()
                .map(|request| RequestStream::moving(&self, request))
                .collect()),
            Err((refused, _)) => Err(refused),
        }
    }
}

impl<T> Deref for Lease<T> {
    type Target = Generation<T>;
    fn deref(&self) -> &Generation<T> {
        &self.generation
    }
}

impl<T> Drop for Lease<T> {
    fn drop(&mut self) {
        self.generation.release();
    }
}
