//! Sequences that give their blocks back for a while: copied to host memory where that is cheaper than computing them
//! again, dropped where it is not.
//!
//! ```text
//! admitted ─ park ─▶ SwappingOut ─ copied ─▶ Swapped ─ admit ─▶ SwappingIn ─ copied ─▶ Prefilling
//!               └──▶ Preempted  ◀─ or not ──────┘                    └─ or not: computed again
//! ```
//!
//! Nobody starves: the oldest that runs is never parked for a younger one, and one that was brought back is left alone
//! until it has given a token, for which it has its blocks.

use super::{Input, RequestId, Scheduler, State};
use std::time::Duration;

/// A copy between the blocks of the device and host memory, to be made before the next step is submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Copy {
    /// Keep what these blocks hold, under the request's name.
    Out {
        /// Whose they are.
        id: RequestId,
        /// The blocks, in the order of the tokens.
        blocks: Vec<u32>,
    },
    /// Put what was kept under the request's name into these blocks, and keep it no longer.
    In {
        /// Whose they are.
        id: RequestId,
        /// As many blocks as were kept.
        blocks: Vec<u32>,
    },
}

/// Bytes a second that a copy is taken to make before one was measured.
const FIRST_RATE: f64 = 2e9;

impl Scheduler {
    /// The next copy to be made; its outcome is told with [`Input::Copied`] before anything else is.
    pub fn next_copy(&mut self) -> Option<Copy> {
        let sequence = self.running.iter().find(|sequence| match sequence.state {
            State::SwappingOut => sequence.in_flight == 0,
            state => state == State::SwappingIn,
        })?;
        let (id, size) = (sequence.id, self.limits.block_size);
        Some(match sequence.state {
            State::SwappingIn => Copy::In {
                id,
                blocks: sequence.blocks[..sequence.saved.div_ceil(size) as usize].to_vec(),
            },
            _ => Copy::Out {
                id,
                blocks: sequence.blocks[..sequence.placed.div_ceil(size) as usize].to_vec(),
            },
        })
    }

    /// A copy was made, or was not.
    pub(super) fn copied(&mut self, id: RequestId, succeeded: bool, elapsed: Duration) {
        let Some(at) = self.running_at(id) else { return };
        let sequence = &mut self.running[at];
        let blocks = sequence
            .placed
            .max(sequence.saved)
            .div_ceil(self.limits.block_size);
        match sequence.state {
            State::SwappingOut if succeeded => {
                sequence.saved = sequence.placed;
                sequence.state = State::Swapped;
                self.totals.swaps += 1;
            }
            State::SwappingOut => sequence.state = State::Preempted,
            State::SwappingIn => {
                sequence.placed = if succeeded { sequence.saved } else { 0 };
                sequence.saved = 0;
                sequence.state = State::Prefilling;
            }
            _ => {}
        }
        if succeeded && blocks > 0 {
            let seconds = elapsed.as_secs_f64().max(1e-9);
            let rate = f64::from(blocks) * self.limits.block_bytes as f64 / seconds;
            self.copy_rate = (self.copy_rate + rate) / 2.0;
        }
        self.settle(at);
    }

    /// Takes the blocks of a running sequence: as soon as no step in flight uses them, and they are copied if that
    /// is cheaper than to compute them again.
    pub(super) fn park(&mut self, at: usize) {
        let copies = self.is_copied(at);
        self.totals.preemptions += 1;
        let sequence = &mut self.running[at];
        sequence.state = match copies {
            true => State::SwappingOut,
            false => State::Preempted,
        };
        self.settle(at);
    }

    /// The running sequence that gives way first: one whose client is slow, else the youngest; none that was just
    /// brought back.
    pub(super) fn victim(&self) -> Option<usize> {
        self.slow_victim().or_else(|| {
            self.running
                .iter()
                .rposition(|sequence| sequence.is_admitted() && !sequence.is_fresh)
        })
    }

    /// Whether to copy a sequence out and in takes less time than to compute its tokens again.
    fn is_copied(&self, at: usize) -> bool {
        let placed = self.running[at].placed;
        let bytes = u64::from(placed.div_ceil(self.limits.block_size)) * self.limits.block_bytes;
        let there_and_back = 2.0 * bytes as f64 / self.copy_rate;
        let again = self.pace.seconds_of(placed);
        self.limits.parks && bytes > 0 && again.is_none_or(|again| there_and_back < again)
    }

    pub(super) fn first_rate() -> f64 {
        FIRST_RATE
    }
}

impl Input<'_> {
    /// The outcome of a copy.
    pub fn copied(copy: &Copy, succeeded: bool, elapsed: Duration) -> Self {
        let (Copy::Out { id, .. } | Copy::In { id, .. }) = copy;
        Input::Copied {
            id: *id,
            succeeded,
            elapsed,
        }
    }
}
