//! Recurrent state: the slots that hold it, the snapshots that are taken of it, and what a lost one is begun again from.
//!
//! The state in a sequence's slot has seen its `placed` tokens, and can't go back. So its snapshots are taken as it
//! passes: at the last block border before a prompt's end, where a chunk ends for it, and at every one that it crosses
//! while it generates, of which the newest is kept. With them it shares the beginnings of others, and itself begins
//! again after a failed step.

use super::{DeviceOp, Effect, FlightRow, RequestId, Scheduler, State, sequence::Sequence};
use crate::request::{Event, Failure};

/// Times that a sequence may begin again without getting further than before.
const MAX_RESTARTS: u32 = 8;

impl Scheduler {
    /// Whether the model has recurrent state.
    pub(super) fn is_recurrent(&self) -> bool {
        self.limits.state_slots > 0
    }

    /// Nobody has steps in flight on what it holds: its blocks and its slot are given back.
    pub(super) fn give_back(&mut self, sequence: &mut Sequence) {
        if let Some(slot) = sequence.slot.take() {
            self.free_slots.push(slot);
            self.ops.push_back(DeviceOp::FreeState { slot });
        }
        sequence.release(&mut self.pool);
    }

    /// Reserves a snapshot of a row that was submitted and ends where one is to be taken.
    pub(super) fn take_snapshot(&mut self, row: &mut FlightRow, slot: Option<u32>) {
        if let Some(slot) = slot.filter(|_| row.is_border)
            && let Some(snapshot) = self.pool.reserve_snapshot()
        {
            row.snapshot = Some(snapshot);
            self.ops.push_back(DeviceOp::TakeSnapshot { slot, snapshot });
        }
    }

    /// A snapshot could not be taken: the row has none.
    pub(super) fn not_taken(&mut self, snapshot: u32) {
        let mut rows = self.flights.iter_mut().flat_map(|flight| &mut flight.rows);
        if let Some(row) = rows.find(|row| row.snapshot == Some(snapshot)) {
            row.snapshot = None;
            self.pool.release_snapshot(snapshot);
        }
    }

    /// The row of a snapshot was collected, and the state at its end is that of `block`.
    pub(super) fn snapshot_taken(&mut self, at: usize, end: u32, snapshot: u32, block: u32) {
        let mark = self.pool.attach_snapshot(snapshot, block);
        let sequence = &mut self.running[at];
        // The one at the prompt's end stays: other conversations may begin alike.
        if end >= sequence.prompt
            && let Some(mark) = mark
            && let Some(older) = sequence.newest_snapshot.replace(mark)
        {
            self.pool.drop_snapshot(older);
        }
    }

    /// A snapshot was copied to a sequence's slot, or not: then it begins at its first token.
    pub(super) fn restored(&mut self, id: RequestId, succeeded: bool) {
        let Some(at) = self.running_at(id) else { return };
        let sequence = &mut self.running[at];
        let Some(snapshot) = sequence.snapshot.take_if(|_| sequence.state == State::Restoring) else {
            return;
        };
        self.pool.unpin_snapshot(snapshot);
        if succeeded {
            sequence.state = State::Prefilling;
            self.found(at, self.running[at].placed);
        } else {
            sequence.is_wary = true;
            self.restart(at);
        }
    }

    /// A sequence goes on after `tokens` that were found in the cache.
    pub(super) fn found(&mut self, at: usize, tokens: u32) {
        let sequence = &mut self.running[at];
        sequence.computed = sequence.computed.max(tokens);
        if !sequence.is_fresh && sequence.restarts == 0 {
            self.totals.cached_tokens += u64::from(tokens);
            sequence.cached = tokens;
        }
    }

    /// The step of a row failed, which leaves the sequence's state undefined.
    pub(super) fn lose(&mut self, id: RequestId, effects: &mut Vec<Effect>) {
        let Some(at) = self.running_at(id) else { return };
        let sequence = &mut self.running[at];
        if sequence.is_lost {
            return;
        }
        sequence.is_lost = true;
        sequence.restarts += 1;
        if sequence.state == State::SwappingOut {
            // Nothing is left that is worth keeping.
            sequence.state = State::Preempted;
        }
        if sequence.state != State::Leaving {
            self.totals.restarts += 1;
        }
        if sequence.restarts > MAX_RESTARTS {
            let failure =
                Failure::Backend("the backend's steps fail again and again at the same place".into());
            self.leave(id, Some(Event::Failed(failure)), effects);
        }
    }

    /// Begins again with what is known of a sequence's beginning, in its own slot, now that no step in flight uses
    /// what it holds.
    pub(super) fn restart(&mut self, at: usize) {
        let sequence = &mut self.running[at];
        sequence.release(&mut self.pool);
        sequence.share(&mut self.pool);
        let missing = self.pool.missing(&sequence.blocks, sequence.total());
        sequence.state = match (self.pool.can_allocate(missing), sequence.snapshot) {
            (false, _) => State::Preempted,
            (true, Some(_)) => State::Restoring,
            (true, None) => State::Prefilling,
        };
        match sequence.state {
            State::Preempted => self.settle(at),
            _ => self.pool.allocate(missing, &mut sequence.blocks),
        }
    }
}

impl Sequence {
    /// Whether something is to be done on the device for it now.
    pub fn waits_for_op(&self) -> bool {
        self.is_copying() && self.in_flight == 0
    }
}
