//! What others do to a swap that runs: one lock decides whether a cancel still comes in time.

use super::{Machine, Next, Order, Subject};
use crate::loader::Services;
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// What others do to a swap that runs.
pub(super) struct Control(Mutex<Controlled>);

struct Controlled {
    /// Whether a generation is to be brought.
    has_candidate: bool,
    /// Once it has begun.
    machine: Option<Machine>,
    /// The candidate is given up, maybe before it had begun.
    cancelled: bool,
    /// The server is being stopped: nothing is loaded any more, and requests may run until then.
    stop: Option<Instant>,
    /// Of the latest load.
    services: Option<Services>,
}

impl Control {
    /// Of a swap that is to carry this out.
    pub fn of(order: &Order) -> Self {
        Self(Mutex::new(Controlled {
            has_candidate: !matches!(order, Order::Unload { .. }),
            machine: None,
            cancelled: false,
            stop: None,
            services: None,
        }))
    }

    /// Asks to give the candidate up; false where it is too late, or there is none.
    pub fn cancel(&self) -> bool {
        self.lock().cancel()
    }

    /// The server is being stopped: what is being brought is given up, and requests may run until `until`.
    pub fn stop(&self, until: Instant) {
        let mut state = self.lock();
        state.cancel();
        state.stop = Some(until);
        if let Some(services) = &state.services {
            services.cancel();
        }
    }

    /// Until when requests may run at most, where the server is being stopped.
    pub fn stops_at(&self) -> Option<Instant> {
        self.lock().stop
    }

    pub fn is_cancelled(&self) -> bool {
        self.lock().cancelled
    }

    /// Whether a generation is not wanted any more.
    pub fn is_given_up(&self, of: Subject) -> bool {
        self.lock().is_given_up(of)
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

    /// A generation is loaded with these services.
    pub fn loads_with(&self, of: Subject, services: &Services) {
        let mut state = self.lock();
        if state.is_given_up(of) {
            services.cancel();
        }
        state.services = Some(services.clone());
    }

    fn lock(&self) -> MutexGuard<'_, Controlled> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Controlled {
    fn cancel(&mut self) -> bool {
        let possible = match &mut self.machine {
            Some(machine) => machine.cancel(),
            None => self.has_candidate,
        };
        self.cancelled |= possible;
        if possible && let Some(services) = &self.services {
            services.cancel();
        }
        possible
    }

    fn is_given_up(&self, of: Subject) -> bool {
        self.stop.is_some() || (self.cancelled && of == Subject::Candidate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::swap::{InFlight, Plan};
    use std::time::Duration;

    #[test]
    fn an_unload_is_not_cancelled_before_it_has_begun_either() {
        let control = Control::of(&Order::Unload {
            in_flight: InFlight::Finish,
            drain_deadline: Duration::ZERO,
        });
        assert!(!control.cancel() && !control.is_cancelled());
        control.begin(Machine::begin(Plan::DrainFirst, true, false).0);
        assert!(!control.cancel() && !control.is_cancelled());
    }
}
