//! What others do to a swap that runs: one lock decides whether a cancel still comes in time.

use super::{Machine, Next};
use crate::loader::Services;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What others do to a swap that runs.
#[derive(Default)]
pub(super) struct Control(Mutex<Controlled>);

#[derive(Default)]
struct Controlled {
    /// Once it has begun.
    machine: Option<Machine>,
    /// Asked for before it had.
    cancelled: bool,
    /// Of the candidate's load.
    services: Option<Services>,
}

impl Control {
    /// Asks to give the candidate up; false where it is too late, or there is none.
    pub fn cancel(&self) -> bool {
        let mut state = self.lock();
        let possible = match &mut state.machine {
            Some(machine) => machine.cancel(),
            None => true,
        };
        state.cancelled |= possible;
        if possible && let Some(services) = &state.services {
            services.cancel();
        }
        possible
    }

    pub fn is_cancelled(&self) -> bool {
        self.lock().cancelled
    }

    pub fn begin(&self, machine: Machine) {
        let mut state = self.lock();
        let cancelled = state.cancelled;
        let machine = state.machine.insert(machine);
        if cancelled {
            machine.cancel();
        }
    }

    pub fn done(&self, succeeded: bool) -> Option<Next> {
        Some(self.lock().machine.as_mut()?.done(succeeded))
    }

    pub fn loads_with(&self, services: &Services) {
        let mut state = self.lock();
        if state.cancelled {
            services.cancel();
        }
        state.services = Some(services.clone());
    }

    fn lock(&self) -> MutexGuard<'_, Controlled> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
