//! Everything of a model that holds device memory, and the order in which it is released.

use crate::{Error, Result, arena::Arena, kv::Kv, states::States, weights::Weights};
use met_kernels::Ops;

/// A model resource that holds device memory.
pub trait ModelResource<O: Ops> {
    /// Its owner label on the ledger.
    fn label(&self) -> &'static str;
    /// Bytes it holds.
    fn bytes(&self) -> u64;
    /// Allocations it holds.
    fn allocations(&self) -> u64;
    /// Releases all of it, going on after a failure. A second call finds nothing and does nothing.
    fn release(&mut self, device: &mut O) -> Released;
}

/// What a release gave back, and the first of its failures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// Bytes that came back.
    pub bytes: u64,
    /// Why something was left for the sweep.
    pub error: Option<Error>,
}

impl FromIterator<Result<u64>> for Released {
    fn from_iter<I: IntoIterator<Item = Result<u64>>>(results: I) -> Self {
        let mut released = Self::default();
        for result in results {
            match result {
                Ok(bytes) => released.bytes += bytes,
                Err(error) => released.error = released.error.or(Some(error)),
            }
        }
        released
    }
}

/// One pool, as reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolReport {
    /// Its owner label on the ledger.
    pub label: &'static str,
    /// Bytes it holds.
    pub bytes: u64,
    /// Allocations it holds.
    pub allocations: u64,
}

/// A model's pools.
pub struct Pools<O: Ops> {
    /// Weights, derived and as they were.
    pub weights: Weights<O>,
    /// Recurrent states and their snapshots.
    pub states: States<O>,
    /// Keys and values.
    pub kv: Kv<O>,
    /// Activations.
    pub arena: Arena<O>,
}

impl<O: Ops> Default for Pools<O> {
    fn default() -> Self {
        Self {
            weights: Weights::default(),
            states: States::default(),
            kv: Kv::default(),
            arena: Arena::default(),
        }
    }
}

impl<O: Ops> Pools<O> {
    /// Releases every pool in order, whatever failed before.
    pub fn release(&mut self, device: &mut O) -> Vec<(&'static str, Released)> {
        let mut steps = Vec::new();
        self.in_order(|pool| steps.push((pool.label(), pool.release(device))));
        steps
    }

    /// One report a pool.
    pub fn report(&mut self) -> Vec<PoolReport> {
        let mut reports = Vec::new();
        self.in_order(|pool| {
            reports.push(PoolReport {
                label: pool.label(),
                bytes: pool.bytes(),
                allocations: pool.allocations(),
            });
        });
        reports
    }

    /// The pools in the order of their release: what is made from others goes before them, and the weight
    /// store last, because the layers point into it. A model without recurrent state has no pools for it.
    fn in_order(&mut self, mut each: impl FnMut(&mut dyn ModelResource<O>)) {
        each(&mut self.weights.derived_pool());
        if self.states.are_there() {
            each(&mut self.states.snapshot_pool());
            each(&mut self.states.state_pool());
        }
        each(&mut self.kv);
        each(&mut self.arena);
        each(&mut self.weights.store_pool());
    }
}
