//! Sequences that give their blocks, and their slot of recurrent state, back for a while: copied to host memory where
//! that is cheaper than computing them again, dropped where it is not.
//!
//! ```text
//! admitted ─ park ─▶ SwappingOut ─ copied ─▶ Swapped ─ admit ─▶ SwappingIn ─ copied ─▶ Prefilling
//!               └──▶ Preempted  ◀─ or not ──────┘                    └─ or not: computed again
//! ```
//!
//! Nobody starves: the oldest that runs is never parked for a younger one, and one that was brought back is left alone
//! until it has given a token, for which it has its blocks.

use super::{RequestId, Scheduler, State};
use std::time::Duration;

/// Bytes a second that a copy is taken to make before one was measured.
const FIRST_RATE: f64 = 2e9;

impl Scheduler {
    /// What a sequence holds was copied to host memory, or was not.
    pub(super) fn copied_out(&mut self, id: RequestId, succeeded: bool, elapsed: Duration) {
        let Some(at) = self.running_at(id) else { return };
        let sequence = &mut self.running[at];
        let tokens = sequence.placed;
        if sequence.state == State::SwappingOut {
            sequence.state = match succeeded {
                true => State::Swapped,
                false => State::Preempted,
            };
            if succeeded {
                sequence.saved = tokens;
                self.totals.swaps += 1;
            }
        }
        if succeeded {
            self.copied(tokens, elapsed);
        }
        self.settle(at);
    }

    /// What was kept of a sequence was copied back, or was not.
    pub(super) fn copied_in(&mut self, id: RequestId, succeeded: bool, elapsed: Duration) {
        let Some(at) = self.running_at(id) else { return };
        let sequence = &mut self.running[at];
        let tokens = std::mem::take(&mut sequence.saved);
        if sequence.state == State::SwappingIn {
            sequence.placed = if succeeded { tokens } else { 0 };
            sequence.state = State::Prefilling;
        }
        if succeeded {
            self.copied(tokens, elapsed);
        }
        self.settle(at);
    }

    /// Learns how fast copies are.
    fn copied(&mut self, tokens: u32, elapsed: Duration) {
        if tokens > 0 {
            let rate = self.copied_bytes(tokens) as f64 / elapsed.as_secs_f64().max(1e-9);
            self.copy_rate = (self.copy_rate + rate) / 2.0;
        }
    }

    /// Bytes of a sequence that has so many tokens placed.
    fn copied_bytes(&self, tokens: u32) -> u64 {
        let blocks = u64::from(tokens.div_ceil(self.limits.block_size));
        blocks * self.limits.block_bytes + self.limits.state_bytes
    }

    /// Takes the blocks of a running sequence: as soon as no step in flight uses them, and they are copied if that
    /// is cheaper than to compute them again.
    pub(super) fn park(&mut self, at: usize) {
        let copies = !self.running[at].is_lost && self.is_copied(at);
        self.totals.preemptions += 1;
        let sequence = &mut self.running[at];
        sequence.state = match copies {
            true => State::SwappingOut,
            false => State::Preempted,
        };
        self.settle(at);
    }

    /// The running sequence that gives way to `id` first: one whose client is slow, else the youngest, which may be
    /// itself; none that is older, and none that was just brought back.
    pub(super) fn victim(&self, id: RequestId) -> Option<usize> {
        self.slow_victim().or_else(|| {
            self.running
                .iter()
                .rposition(|sequence| sequence.is_admitted() && !sequence.is_fresh && sequence.id >= id)
        })
    }

    /// Whether to copy a sequence out and in takes less time than to compute its tokens again.
    pub(super) fn is_copied(&self, at: usize) -> bool {
        let placed = self.running[at].placed;
        let there_and_back = 2.0 * self.copied_bytes(placed) as f64 / self.copy_rate;
        let again = self.pace.seconds_of(placed);
        self.limits.parks && placed > 0 && again.is_none_or(|again| there_and_back < again)
    }

    pub(super) fn first_rate() -> f64 {
        FIRST_RATE
    }
}
