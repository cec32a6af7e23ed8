//! What the next step consists of: a row for each running stream, then prompts in the order of arrival.

use super::{Flight, FlightRow, RequestId, Scheduler, Sequence, State};
use met_backend_api::{NO_SLOT, Row, Want};

impl Scheduler {
    /// Plans the next step. Where it returns true, the step's [`batch`](Self::batch) is to be submitted
    /// and its outcome told before anything else is.
    pub fn plan(&mut self) -> bool {
        let depth = if self.exhausted > 0 {
            1
        } else {
            self.limits.max_in_flight as usize
        };
        if self.is_fenced() || self.flights.len() >= depth || self.flights.iter().any(|flight| flight.void) {
            return false;
        }
        // Whoever is to be tried alone waits for what is to be done for it.
        if !self.suspects.is_empty() && self.running.iter().any(Sequence::waits_for_op) {
            return false;
        }
        let mut rows = self.spare_rows.pop().unwrap_or_default();
        if let Some(at) = self.next_suspect() {
            rows.push(self.next_row(&self.running[at], self.limits.max_batch_tokens));
        } else {
            self.plan_decode(&mut rows);
            self.admit();
            self.plan_prefill(&mut rows);
        }
        if rows.is_empty() {
            self.spare_rows.push(rows);
            return false;
        }
        self.planned = Some(Flight { rows, void: false });
        true
    }

    /// The rows of the planned step; empty where none is planned.
    pub fn batch(&self) -> Vec<Row<'_>> {
        let rows = self.planned.iter().flat_map(|flight| &flight.rows);
        rows.filter_map(|row| Some(self.row(row, &self.running[self.running_at(row.id)?])))
            .collect()
    }

    fn row<'a>(&self, row: &FlightRow, sequence: &'a Sequence) -> Row<'a> {
        let known = row.start as usize..(row.start + row.tokens) as usize;
        Row {
            tokens: if row.input.is_some() {
                &[]
            } else {
                &sequence.tokens[known]
            }
            .into(),
            input: row.input.into(),
            position: row.start,
            blocks: sequence.blocks.as_slice().into(),
            state_slot: sequence.slot.unwrap_or(NO_SLOT),
            want: if row.samples { Want::Token } else { Want::Nothing },
            top_logprobs: row.top,
            sampling: sequence.sampling,
            counts: sequence.counts.as_slice().into(),
            bias: sequence.bias.as_slice().into(),
            mask: (&[][..]).into(),
        }
    }

    fn plan_decode(&mut self, rows: &mut Vec<FlightRow>) {
        let mut from = RequestId(0);
        // By id, not by index: making room may take sequences out of the list.
        while let Some(at) = self.first_active(from) {
            let id = self.running[at].id;
            from = RequestId(id.0 + 1);
            if self.make_room(id)
                && let Some(at) = self.running_at(id)
            {
                rows.push(self.next_row(&self.running[at], 1));
            }
        }
    }

    fn plan_prefill(&mut self, rows: &mut Vec<FlightRow>) {
        let left = self.limits.max_batch_tokens - rows.len() as u32;
        // After a step that found no memory, smaller ones are tried.
        let mut budget = (self.pace.budget(!rows.is_empty()) >> self.exhausted.min(31)).clamp(1, left.max(1));
        for sequence in &self.running {
            if budget == 0 {
                break;
            }
            if sequence.state == State::Prefilling && sequence.is_runnable() {
                let row = self.next_row(sequence, budget);
                budget -= row.tokens;
                rows.push(row);
            }
        }
    }

    /// Moves the head of the line to the running ones while there is room, in order of arrival. A
    /// sequence with a slow client neither is admitted nor stands in the way.
    fn admit(&mut self) {
        while let Some(at) = self.waiting.iter().position(|sequence| !sequence.paused) {
            let id = self.waiting[at].id;
            let goes_first = |other: &Sequence| other.id < id && other.is_admitted() && !other.paused;
            if self.hold && self.running.iter().any(goes_first) {
                return;
            }
            // One that is on its way back into the line comes before those that are younger.
            let parked = self.running.iter().find(|sequence| sequence.is_parking());
            if parked.is_some_and(|parked| parked.id < id) {
                return;
            }
            // Shared first: what it shares is not given away to make room for the rest of it.
            let is_swapped = self.waiting[at].state == State::Swapped;
            if !is_swapped {
                self.waiting[at].share(&mut self.pool);
            }
            if !self.can_admit(at) {
                self.waiting[at].release(&mut self.pool);
                if self.lacks_blocks(at) && self.end_oldest_session() {
                    continue;
                }
                let Some(victim) = self.slow_victim() else { return };
                self.park(victim);
                continue;
            }
            let Some(mut sequence) = self.waiting.remove(at) else {
                return;
            };
            let missing = self.pool.missing(&sequence.blocks, sequence.total());
            self.pool.allocate(missing, &mut sequence.blocks);
            sequence.slot = self.free_slots.pop();
            sequence.is_fresh = sequence.state != State::Waiting;
            sequence.state = match (is_swapped, sequence.snapshot) {
                (true, _) => State::SwappingIn,
                (false, Some(_)) => State::Restoring,
                (false, None) => State::Prefilling,
            };
            let at = self.running.partition_point(|other| other.id < sequence.id);
            self.running.insert(at, sequence);
            if self.running[at].state == State::Prefilling {
                self.found(at, self.running[at].placed);
            }
        }
    }

    /// Whether a waiting sequence has a place among the running ones, and blocks.
    fn can_admit(&self, at: usize) -> bool {
        self.running.len() < self.limits.max_running as usize && !self.lacks_blocks(at)
    }

    /// Whether a waiting sequence's tokens don't fit, with a block to spare for each running stream: else one of
    /// the two would be put back at once.
    fn lacks_blocks(&self, at: usize) -> bool {
        let sequence = &self.waiting[at];
        let growing = self
            .running
            .iter()
            .filter(|other| other.is_admitted() && !other.paused)
            .count() as u32;
        let blocks = self.pool.missing(&sequence.blocks, sequence.total()) + growing;
        !self.pool.can_allocate(blocks)
    }

    /// Sees to it that a running sequence has blocks for its next token; sequences with slow clients give
    /// way first, then the youngest. False where it must wait, or was itself the youngest.
    fn make_room(&mut self, id: RequestId) -> bool {
        while let Some(at) = self.running_at(id).filter(|at| self.running[*at].is_admitted()) {
            if self.grow(at) {
                return true;
            }
            if self.end_oldest_session() {
                continue;
            }
            // Blocks that come back with a step in flight are waited for.
            if self.running.iter().any(|sequence| !sequence.is_admitted()) {
                return false;
            }
            let Some(victim) = self.victim(id) else {
                return false;
            };
            self.park(victim);
        }
        false
    }

    /// Gives a running sequence the blocks for the tokens that exist, where they are free.
    fn grow(&mut self, at: usize) -> bool {
        let sequence = &mut self.running[at];
        let missing = self.pool.missing(&sequence.blocks, sequence.total());
        let fits = self.pool.can_allocate(missing);
        if fits {
            self.pool.allocate(missing, &mut sequence.blocks);
        }
        fits
    }

    fn first_active(&self, from: RequestId) -> Option<usize> {
        let start = self.running.partition_point(|sequence| sequence.id < from);
        let runs = |sequence: &Sequence| sequence.state == State::Active && sequence.is_runnable();
        self.running[start..].iter().position(runs).map(|at| start + at)
    }

    /// The youngest running sequence whose client is slow.
    pub(super) fn slow_victim(&self) -> Option<usize> {
        self.running
            .iter()
            .rposition(|sequence| sequence.is_admitted() && sequence.paused)
    }

    pub(super) fn youngest(&self) -> Option<usize> {
        self.running.iter().rposition(Sequence::is_admitted)
    }

    /// The next sequence to be tried alone; one that can't run now is no longer suspected.
    fn next_suspect(&mut self) -> Option<usize> {
        while let Some(&(id, end)) = self.suspects.last() {
            if let Some(at) = self.running_at(id).filter(|at| self.running[*at].is_runnable())
                && self.grow(at)
            {
                let row = self.next_row(&self.running[at], self.limits.max_batch_tokens);
                if row.start + row.tokens >= end {
                    self.suspects.pop();
                }
                return Some(at);
            }
            self.suspects.pop();
        }
        None
    }

    /// A sequence's next `1..=budget` tokens.
    fn next_row(&self, sequence: &Sequence, budget: u32) -> FlightRow {
        let (size, total, start) = (self.limits.block_size, sequence.total(), sequence.placed);
        let mut end = total.min(start + budget);
        // The last block border before the end of what is known; of models with snapshots.
        let border = match self.limits.snapshot_slots {
            0 => None,
            _ => Some((total - 1) / size * size),
        };
        if let Some(border) = border.filter(|border| start < *border) {
            end = end.min(border);
        }
        let samples = end == total;
        FlightRow {
            id: sequence.id,
            start,
            tokens: end - start,
            input: sequence.newest,
            samples,
            prefill: sequence.state == State::Prefilling,
            is_border: end % size == 0 && border.is_some_and(|border| end >= border),
            snapshot: None,
            top: if samples {
                sequence.top_logprobs.unwrap_or(0)
            } else {
                0
            },
        }
    }
}
