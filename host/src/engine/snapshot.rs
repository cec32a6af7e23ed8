//! What the engine thread publishes into host memory, readable also while a call of the backend hangs.

use super::DeviceIo;
use super::report::{LedgerItem, Memory, TeardownReport};
use crate::scheduler::Counts;
use serde::Serialize;
use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// What a generation's engine does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "state", content = "reason", rename_all = "snake_case")]
pub enum EngineState {
    /// Takes and computes requests.
    #[default]
    Serving,
    /// Finishes what it has; takes nothing new.
    Draining,
    /// The backend has failed, for this reason: nothing is computed any more.
    Fenced(String),
    /// Torn down.
    Stopped,
}

/// An engine at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Snapshot {
    /// What it does.
    #[serde(flatten)]
    pub state: EngineState,
    /// Sequences, blocks and totals.
    pub counts: Counts,
    /// Device memory, as last read.
    pub memory: Memory,
    /// The ledger's live entries, as last read.
    pub ledger: Vec<LedgerItem>,
    /// The call that the backend is in, and for how many milliseconds.
    pub call: Option<(&'static str, u64)>,
}

/// Where the engine thread publishes.
#[derive(Default)]
pub(super) struct Board {
    state: Mutex<Published>,
    changed: Condvar,
}

#[derive(Default)]
struct Published {
    snapshot: Snapshot,
    call: Option<(&'static str, Instant)>,
    report: TeardownReport,
    empty: bool,
    ended: bool,
}

impl Board {
    pub fn snapshot(&self) -> Snapshot {
        let published = self.lock();
        let call = published
            .call
            .map(|(name, since)| (name, since.elapsed().as_millis() as u64));
        Snapshot {
            call,
            ..published.snapshot.clone()
        }
    }

    /// The present counts, and whether no request is left.
    pub fn set_counts(&self, counts: Counts, empty: bool) {
        let mut published = self.lock();
        published.snapshot.counts = counts;
        if published.empty != empty {
            published.empty = empty;
            self.changed.notify_all();
        }
    }

    pub fn set_state(&self, state: EngineState) {
        self.lock().snapshot.state = state;
    }

    /// Reads the device's memory, and its ledger where that has changed.
    pub fn refresh(&self, device: &mut dyn DeviceIo) {
        let memory = match self.calling("memory", || device.memory()) {
            Ok(memory) => Memory::from(memory),
            Err(error) => return tracing::warn!("the device's memory can't be read: {error}"),
        };
        let old = std::mem::replace(&mut self.lock().snapshot.memory, memory);
        if (old.ledger_bytes, old.ledger_count) == (memory.ledger_bytes, memory.ledger_count) {
            return;
        }
        match self.calling("ledger", || device.ledger()) {
            Ok(entries) => self.lock().snapshot.ledger = entries.iter().map(LedgerItem::from).collect(),
            Err(error) => tracing::warn!("the ledger can't be read: {error}"),
        }
    }

    /// Makes a call of the backend under its name.
    pub fn calling<T>(&self, name: &'static str, call: impl FnOnce() -> T) -> T {
        self.lock().call = Some((name, Instant::now()));
        let result = call();
        self.lock().call = None;
        result
    }

    /// Changes the report of the teardown under way.
    pub fn report(&self, change: impl FnOnce(&mut TeardownReport)) {
        change(&mut self.lock().report);
    }

    /// The engine thread makes no call any more.
    pub fn set_ended(&self) {
        let mut published = self.lock();
        published.snapshot.state = EngineState::Stopped;
        published.call = None;
        published.ended = true;
        self.changed.notify_all();
    }

    /// Whether it makes none any more.
    pub fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// Waits until no request is left. False where `patience` ran out.
    pub fn wait_empty(&self, patience: Duration) -> bool {
        self.wait(patience, |published| published.empty || published.ended)
    }

    /// Waits for the end of the engine thread's work, and returns what it did. Where `patience` runs out,
    /// the report names the call that is `stuck`.
    pub fn wait_report(&self, patience: Duration) -> TeardownReport {
        let ended = self.wait(patience, |published| published.ended);
        let published = self.lock();
        let mut report = published.report.clone();
        if !ended {
            report.stuck = Some(
                published
                    .call
                    .map_or("the engine thread", |(name, _)| name)
                    .into(),
            );
        }
        report
    }

    fn wait(&self, patience: Duration, done: impl Fn(&Published) -> bool) -> bool {
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), patience, |published| !done(published));
        done(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    fn lock(&self) -> MutexGuard<'_, Published> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
