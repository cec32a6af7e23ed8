//! How a test sees and steers a fake device.

use super::entry;
use met_backend_api::{Error, LedgerEntry};
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// How long a test waits for a call.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a test sees of a [`FakeDevice`], and how it steers it. Clones share it.
#[derive(Clone, Default)]
pub struct FakeControls(Arc<(Mutex<Controls>, Condvar)>);

#[derive(Default)]
pub(super) struct Controls {
    calls: Vec<&'static str>,
    failures: HashMap<&'static str, VecDeque<Error>>,
    held: Option<&'static str>,
    /// A call hangs, or the next one may pass.
    hangs: bool,
    passes: bool,
    pub step_time: Duration,
    pub ledger: Vec<LedgerEntry>,
    pub dropped: bool,
}

impl FakeControls {
    /// Makes the next calls of `name` fail, one with each error.
    pub fn fail(&self, name: &'static str, errors: impl IntoIterator<Item = Error>) {
        self.lock().failures.entry(name).or_default().extend(errors);
    }

    /// Makes calls of `name` hang until [`release`](Self::release).
    pub fn hold(&self, name: &'static str) {
        self.lock().held = Some(name);
    }

    /// Lets the call that hangs, or the next one, go on, and waits until another hangs.
    ///
    /// # Panics
    /// Where none comes within [`PATIENCE`].
    pub fn pass(&self) {
        let mut controls = self.lock();
        controls.passes = true;
        self.0.1.notify_all();
        let waited = self
            .0
            .1
            .wait_timeout_while(controls, PATIENCE, |controls| controls.passes || !controls.hangs);
        let (controls, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(!waited.timed_out(), "no call of {:?} came", controls.held);
    }

    /// Lets what hangs go on.
    pub fn release(&self) {
        self.lock().held = None;
        self.0.1.notify_all();
    }

    /// How long a step takes.
    pub fn set_step_time(&self, time: Duration) {
        self.lock().step_time = time;
    }

    /// Puts something on the ledger that no pool owns.
    pub fn leak(&self, owner: &str, bytes: u64) {
        let mut controls = self.lock();
        let serial = 1000 + controls.ledger.len() as u64;
        controls.ledger.push(entry(serial, owner, bytes));
    }

    /// The names of the calls made so far, in order; `submit` and `collect` are not kept.
    pub fn calls(&self) -> Vec<&'static str> {
        self.lock().calls.clone()
    }

    /// Whether the device was dropped.
    pub fn is_dropped(&self) -> bool {
        self.lock().dropped
    }

    /// Counts a call; fails or hangs as ordered.
    pub(super) fn call(&self, name: &'static str) -> Result<(), Error> {
        let mut controls = self.lock();
        if !matches!(name, "submit" | "collect" | "memory" | "ledger") {
            controls.calls.push(name);
        }
        while controls.held == Some(name) && !std::mem::take(&mut controls.passes) {
            controls.hangs = true;
            self.0.1.notify_all();
            controls = self.0.1.wait(controls).unwrap_or_else(PoisonError::into_inner);
            controls.hangs = false;
        }
        match controls.failures.get_mut(name).and_then(VecDeque::pop_front) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Controls> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
