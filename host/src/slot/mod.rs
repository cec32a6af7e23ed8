//! Served model names, the generations behind them, and the leases that requests hold.
//!
//! - A lease is taken before a request touches anything of a generation, and held until its last event.
//! - A slot points to at most one generation. Changing that is one pointer store ([`Slot::switch`]): a lease
//!   is of the generation before it or of the one after it.
//! - A generation that is closed gives no more leases, so a count of zero stays zero.
//!
//! `T` is what belongs to a generation besides its engine: tokenizer and template.

mod generation;
mod lease;
mod load;
#[cfg(test)]
mod tests;

pub use generation::{Generation, GenerationEnd};
pub use lease::{Lease, LeaseError};
pub use load::{LoadFailure, LoadSpec, load};

use std::{
    collections::BTreeMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Every served name.
pub struct Slots<T> {
    slots: RwLock<BTreeMap<String, Arc<Slot<T>>>>,
}

/// A served model name.
pub struct Slot<T> {
    name: String,
    current: RwLock<Option<Arc<Generation<T>>>>,
    last_number: AtomicU64,
}

impl<T> Slots<T> {
    /// No names.
    pub fn new() -> Self {
        Self {
            slots: RwLock::new(BTreeMap::new()),
        }
    }

    /// The slot of this name; made where there is none.
    pub fn add(&self, name: &str) -> Arc<Slot<T>> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let slot = slots
            .entry(name.to_owned())
            .or_insert_with(|| Arc::new(Slot::new(name)));
        Arc::clone(slot)
    }

    /// The slot of this name.
    pub fn get(&self, name: &str) -> Option<Arc<Slot<T>>> {
        self.slots
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .cloned()
    }

    /// Every slot, in order of name.
    pub fn all(&self) -> Vec<Arc<Slot<T>>> {
        self.slots
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect()
    }

    /// A hold on the generation that serves `model` now.
    pub fn lease(&self, model: &str) -> Result<Lease<T>, LeaseError> {
        let slot = self.get(model).ok_or_else(|| LeaseError::UnknownModel {
            model: model.to_owned(),
        })?;
        slot.lease()
    }

    /// Whether there is a slot, and each takes requests.
    pub fn is_ready(&self) -> bool {
        let slots = self.all();
        !slots.is_empty() && slots.iter().all(|slot| slot.is_ready())
    }

    /// Takes every generation out of its slot, lets their requests finish until `deadline`, and ends them, all
    /// at the same time. Returns each with its slot's name. Blocks the calling thread.
    pub fn shutdown(&self, deadline: Duration) -> Vec<(String, GenerationEnd)>
    where
        T: Send + Sync,
    {
        let slots = self.all();
        std::thread::scope(|scope| {
            let threads = slots.iter().filter_map(|slot| {
                let generation = slot.switch(None)?;
                Some(scope.spawn(move || (slot.name.clone(), generation.shutdown(deadline))))
            });
            let threads: Vec<_> = threads.collect();
            threads
                .into_iter()
                .filter_map(|thread| thread.join().ok())
                .collect()
        })
    }
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Slot<T> {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            current: RwLock::new(None),
            last_number: AtomicU64::new(0),
        }
    }

    /// The name that clients use.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of the next generation. Never the same twice.
    pub fn next_number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The generation that serves now.
    pub fn current(&self) -> Option<Arc<Generation<T>>> {
        self.current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Lets another generation serve from now on, and returns the one that did.
    pub fn switch(&self, to: Option<Arc<Generation<T>>>) -> Option<Arc<Generation<T>>> {
        std::mem::replace(
            &mut *self.current.write().unwrap_or_else(PoisonError::into_inner),
            to,
        )
    }

    /// A hold on the generation that serves now.
    pub fn lease(&self) -> Result<Lease<T>, LeaseError> {
        // One that was closed since it was read has been switched away, or the slot is being shut down.
        (0..2)
            .find_map(|_| Lease::of(self.current()?))
            .ok_or(LeaseError::NotReady {
                retry_after: lease::RETRY_AFTER,
            })
    }

    /// Whether a generation serves, and takes requests.
    pub fn is_ready(&self) -> bool {
        self.current()
            .is_some_and(|generation| generation.engine().snapshot().is_ready())
    }
}
