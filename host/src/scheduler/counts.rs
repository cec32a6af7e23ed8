//! The scheduler's figures.

use super::{Scheduler, State};
use serde::Serialize;

/// How many sequences are in which state, what is in use, and totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// In the line, never admitted.
    pub waiting: u32,
    /// Being put into the cache.
    pub prefilling: u32,
    /// Generating.
    pub active: u32,
    /// Put back into the line; their blocks are computed again.
    pub preempted: u32,
    /// Put back into the line; their blocks are kept in host memory.
    pub swapped: u32,
    /// Of all of these, those whose client is slow.
    pub paused: u32,
    /// Blocks held, by sequences and sessions.
    pub blocks_used: u32,
    /// Of these, those that sessions pin.
    pub blocks_pinned: u32,
    /// Blocks in all.
    pub blocks_total: u32,
    /// Sessions whose last turn is kept.
    pub sessions: u32,
    /// Slots of recurrent state held.
    pub state_slots_used: u32,
    /// Slots of recurrent state in all.
    pub state_slots_total: u32,
    /// Snapshots of recurrent state that hold something.
    pub snapshots_used: u32,
    /// Snapshots in all.
    pub snapshots_total: u32,
    /// Prompt tokens computed, each once.
    pub prompt_tokens: u64,
    /// Prompt tokens that were found in the cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Times that a sequence was put back.
    pub preemptions: u64,
    /// Of these, times that its blocks were kept.
    pub swaps: u64,
    /// Times that a sequence began again because a failed step had left its recurrent state undefined.
    pub restarts: u64,
    /// Rows whose logits were not finite.
    pub not_finite: u64,
}

impl Scheduler {
    /// The present counts.
    pub fn counts(&self) -> Counts {
        let (snapshots_used, snapshots_total) = self.pool.snapshots();
        let mut counts = Counts {
            blocks_used: self.pool.total() - self.pool.free(),
            blocks_pinned: self.sessions.pinned(),
            blocks_total: self.pool.total(),
            sessions: self.sessions.count(),
            state_slots_used: self.limits.state_slots - self.free_slots.len() as u32,
            state_slots_total: self.limits.state_slots,
            snapshots_used,
            snapshots_total,
            ..self.totals
        };
        for sequence in self.running.iter().chain(&self.waiting) {
            match sequence.state {
                State::Waiting => counts.waiting += 1,
                State::Prefilling | State::Restoring => counts.prefilling += 1,
                State::Active => counts.active += 1,
                State::Preempted => counts.preempted += 1,
                State::SwappingOut | State::Swapped | State::SwappingIn => counts.swapped += 1,
                State::Leaving => continue,
            }
            counts.paused += u32::from(sequence.paused);
        }
        counts
    }
}
