//! What the runs came to.

use crate::scheduler::DeviceOp;

/// How often the runs came to what they are to test.
#[derive(Clone, Debug, Default)]
pub struct Reached {
    pub steps: u64,
    pub stopped: u64,
    pub lengths: u64,
    pub cancels: u64,
    pub pauses: u64,
    pub preemptions: u64,
    pub swaps: u64,
    pub failed_ops: u64,
    pub run_ahead: u64,
    pub cached: u64,
    pub taken: u64,
    pub used: u64,
    pub freed: u64,
    pub restarts: u64,
    pub sessions: u64,
    pub expired: u64,
    pub exhausted: u64,
    pub failed_collects: u64,
    pub invalid: u64,
    pub cursed: u64,
    pub fences: u64,
    pub aborts: u64,
}

impl Reached {
    /// An operation between two steps was done, or failed.
    pub fn performed(&mut self, op: &DeviceOp, succeeded: bool) {
        match op {
            _ if !succeeded => self.failed_ops += 1,
            DeviceOp::TakeSnapshot { .. } => self.taken += 1,
            DeviceOp::UseSnapshot { .. } => self.used += 1,
            DeviceOp::FreeState { .. } => self.freed += 1,
            DeviceOp::CopyOut { .. } | DeviceOp::CopyIn { .. } => {}
        }
    }

    pub fn add(&mut self, other: &Self) {
        for ((own, _), (more, _)) in self.all().into_iter().zip(other.clone().all()) {
            *own += *more;
        }
    }

    pub fn everything(&self) -> bool {
        self.clone().all().iter().all(|(count, least)| **count > *least)
    }

    /// Each, and how often the runs come to it at least.
    fn all(&mut self) -> [(&mut u64, u64); 22] {
        [
            (&mut self.steps, 1_000_000),
            (&mut self.stopped, 300),
            (&mut self.lengths, 300),
            (&mut self.cancels, 300),
            (&mut self.pauses, 300),
            (&mut self.preemptions, 300),
            (&mut self.swaps, 300),
            (&mut self.failed_ops, 100),
            (&mut self.run_ahead, 300),
            (&mut self.cached, 300),
            (&mut self.taken, 300),
            (&mut self.used, 300),
            (&mut self.freed, 300),
            (&mut self.restarts, 100),
            (&mut self.sessions, 300),
            (&mut self.expired, 100),
            (&mut self.exhausted, 100),
            (&mut self.failed_collects, 100),
            (&mut self.invalid, 100),
            (&mut self.cursed, 100),
            (&mut self.fences, 2),
            (&mut self.aborts, 2),
        ]
    }
}
