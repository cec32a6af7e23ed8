//! One life of a slot.

use crate::engine::{Engine, TeardownReport};
use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

/// One opened backend with its model, its engine and its text.
pub struct Generation<T> {
    number: u64,
    engine: Engine,
    text: Arc<T>,
    created: SystemTime,
    holds: Mutex<Holds>,
    released: Condvar,
}

#[derive(Default)]
struct Holds {
    leases: usize,
    closed: bool,
}

impl<T> Generation<T> {
    /// A generation whose engine is running. `number` is from [`super::Slot::next_number`].
    pub fn new(number: u64, engine: Engine, text: Arc<T>) -> Arc<Self> {
        Arc::new(Self {
            number,
            engine,
            text,
            created: SystemTime::now(),
            holds: Mutex::default(),
            released: Condvar::new(),
        })
    }

    /// Counts from 1 within its slot.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Its text.
    pub fn text(&self) -> &Arc<T> {
        &self.text
    }

    /// When it was made.
    pub fn created(&self) -> SystemTime {
        self.created
    }

    /// Leases held now.
    pub fn leases(&self) -> usize {
        self.holds().leases
    }

    /// Gives no more leases, lets those that are held come to their end until `deadline`, and tears the engine
    /// down. Blocks the calling thread.
    pub fn shutdown(&self, deadline: Duration) -> TeardownReport {
        let end = Instant::now() + deadline;
        let mut holds = self.holds();
        holds.closed = true;
        let waited = self
            .released
            .wait_timeout_while(holds, deadline, |holds| holds.leases > 0);
        drop(waited);
        self.engine
            .shutdown(end.saturating_duration_since(Instant::now()))
    }

    /// Counts a lease, unless it is closed.
    pub(super) fn hold(&self) -> bool {
        let mut holds = self.holds();
        holds.leases += usize::from(!holds.closed);
        !holds.closed
    }

    /// Counts a lease back.
    pub(super) fn release(&self) {
        self.holds().leases -= 1;
        self.released.notify_all();
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        // Nothing panics while it holds the lock.
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
