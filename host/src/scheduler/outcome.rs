//! What became of a step.

use super::{DeviceOp, Effect, Flight, FlightRow, Scheduler, State};
use crate::request::{Event, Failure, FinishReason, Token};
use met_backend_api::{Error, ErrorKind, RowOutput, Ticket, TokenLogprob, abi::SampledBy};
use std::time::Duration;

/// Steps in a row that may find no memory before the only sequence left is given up.
const MAX_EXHAUSTED: u32 = 8;
/// Rows in a row whose logits may not be finite before it is the device's fault, not the request's.
const MAX_NOT_FINITE: u32 = 8;

impl Scheduler {
    pub(super) fn submitted(&mut self, ticket: Ticket) {
        let Some(mut flight) = self.planned.take() else {
            return;
        };
        for (index, row) in flight.rows.iter_mut().enumerate() {
            let Some(at) = self.running_at(row.id) else {
                continue;
            };
            self.take_snapshot(row, self.running[at].slot);
            let sequence = &mut self.running[at];
            sequence.in_flight += 1;
            sequence.placed = row.start + row.tokens;
            if row.samples {
                sequence.pending += 1;
                sequence.newest = Some(SampledBy {
                    ticket,
                    row: index as u32,
                });
                sequence.state = State::Active;
            }
        }
        self.flights.push_back(flight);
    }

    pub(super) fn submit_failed(&mut self, error: &Error, effects: &mut Vec<Effect>) {
        let Some(flight) = self.planned.take() else { return };
        // Where the device ran out of memory halfway, the states of the rows have gone on, or not.
        if self.is_recurrent() && error.kind == ErrorKind::Exhausted {
            for row in &flight.rows {
                self.lose(row.id, effects);
                if let Some(at) = self.running_at(row.id) {
                    self.settle(at);
                }
            }
        }
        self.failed(flight, error, effects);
    }

    pub(super) fn collected(
        &mut self,
        rows: &[RowOutput],
        top: &[TokenLogprob],
        elapsed: Duration,
        effects: &mut Vec<Effect>,
    ) {
        let Some(flight) = self.flights.pop_front() else {
            return;
        };
        if !flight.void {
            self.exhausted = 0;
            let prefill = flight.rows.iter().filter(|row| row.prefill);
            let prompt_tokens = prefill.clone().map(|row| row.tokens).sum();
            self.pace
                .observe(prompt_tokens, prefill.count() < flight.rows.len(), elapsed);
        }
        let mut top = top;
        for (row, output) in flight.rows.iter().zip(rows) {
            let (own, rest) = top.split_at(top.len().min(row.top as usize));
            top = rest;
            let own = &own[..own.len().min(output.top as usize)];
            self.row_collected(row, (!flight.void).then_some((output, own)), effects);
        }
        self.recycle(flight);
    }

    pub(super) fn collect_failed(&mut self, error: &Error, effects: &mut Vec<Effect>) {
        let Some(flight) = self.flights.pop_front() else {
            return;
        };
        // Later steps have computed with what this one should have written.
        for later in &mut self.flights {
            later.void = true;
        }
        let mut lost = Vec::new();
        if !flight.void {
            let later = self.flights.iter().flat_map(|flight| &flight.rows);
            for row in flight.rows.iter().chain(later) {
                let Ok(at) = self.running.binary_search_by_key(&row.id, |sequence| sequence.id) else {
                    continue;
                };
                let sequence = &mut self.running[at];
                sequence.placed = sequence.placed.min(row.start);
                sequence.pending = 0;
                sequence.newest = None;
                if sequence.state == State::Active {
                    sequence.state = State::Prefilling;
                }
                lost.push(row.id);
            }
        }
        if self.is_recurrent() {
            for id in lost {
                self.lose(id, effects);
            }
        }
        for row in &flight.rows {
            self.row_collected(row, None, effects);
        }
        self.failed(flight, error, effects);
    }

    /// A row came back, with what it gave unless the step failed.
    fn row_collected(
        &mut self,
        row: &FlightRow,
        result: Option<(&RowOutput, &[TokenLogprob])>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(at) = self.running_at(row.id) else { return };
        let sequence = &mut self.running[at];
        sequence.in_flight -= 1;
        let mut snapshot = row.snapshot;
        if let Some((output, top)) = result
            && sequence.state != State::Leaving
        {
            let end = row.start + row.tokens;
            let fresh = end
                .min(sequence.prompt)
                .saturating_sub(row.start.max(sequence.computed));
            self.totals.prompt_tokens += u64::from(fresh);
            if end > sequence.computed {
                sequence.computed = end;
                sequence.restarts = 0;
            }
            // The row's own tokens are collected; what it samples is not in the cache yet.
            let last = sequence.make_known(end, &mut self.pool);
            if let Some((taken, block)) = snapshot.take_if(|_| last.is_some()).zip(last) {
                self.snapshot_taken(at, end, taken, block);
            }
            let sequence = &mut self.running[at];
            if row.samples {
                sequence.pending -= 1;
                if sequence.pending == 0 {
                    sequence.newest = None;
                }
                self.sampled(at, output, top, effects);
            }
        }
        if let Some(unused) = snapshot {
            self.pool.release_snapshot(unused);
        }
        // The sequence may have left by now, and another one stands there.
        if let Some(at) = self.running_at(row.id) {
            self.settle(at);
        }
    }

    fn sampled(&mut self, at: usize, output: &RowOutput, top: &[TokenLogprob], effects: &mut Vec<Effect>) {
        let sequence = &mut self.running[at];
        let id = sequence.id;
        let TokenLogprob { token, logprob } = output.sampled;
        if output.not_finite {
            self.totals.not_finite += 1;
            self.not_finite += 1;
            if self.not_finite >= MAX_NOT_FINITE {
                return self.fence(
                    &Error::bug("the backend computes nothing but logits that are no numbers"),
                    effects,
                );
            }
            let failure = Failure::Backend("the backend computed logits that are no numbers".into());
            return self.leave(id, Some(Event::Failed(failure)), effects);
        }
        self.not_finite = 0;
        let vocab = self.limits.vocab_size;
        if let Some(token) = top
            .iter()
            .map(|entry| entry.token)
            .chain([token])
            .find(|token| *token >= vocab)
        {
            return self.fence(
                &Error::bug(format!("the backend sampled token {token} of {vocab}")),
                effects,
            );
        }
        if !std::mem::replace(&mut sequence.is_started, true) {
            let cached = sequence.cached;
            let event = Event::Started { cached };
            effects.push(Effect::Emit { id, event });
        }
        if sequence.stop_tokens.contains(&token) {
            return self.leave(id, Some(Event::Finished(FinishReason::Stop)), effects);
        }
        sequence.push(token);
        self.totals.generated_tokens += 1;
        let top = top.iter().map(|entry| (entry.token, entry.logprob)).collect();
        effects.push(Effect::Emit {
            id,
            event: Event::Token(Token {
                id: token,
                logprob,
                top,
            }),
        });
        if sequence.generated() == sequence.max_tokens {
            self.leave(id, Some(Event::Finished(FinishReason::Length)), effects);
        }
    }

    /// Decides by the kind of an error what becomes of the sequences of a step that did not happen.
    fn failed(&mut self, flight: Flight, error: &Error, effects: &mut Vec<Effect>) {
        match error.kind {
            // It has computed with what an earlier one should have written, which explains it.
            ErrorKind::Exhausted | ErrorKind::Invalid if flight.void => {}
            ErrorKind::Fault | ErrorKind::Bug | ErrorKind::Cancelled => self.fence(error, effects),
            ErrorKind::Exhausted => self.no_memory(error, effects),
            ErrorKind::Invalid => match flight.rows.as_slice() {
                [row] => {
                    let failure = Failure::Invalid(error.message.to_string());
                    self.leave(row.id, Some(Event::Failed(failure)), effects);
                }
                rows => {
                    let suspects = rows.iter().rev();
                    self.suspects = suspects.map(|row| (row.id, row.start + row.tokens)).collect();
                }
            },
        }
        self.recycle(flight);
    }

    fn no_memory(&mut self, error: &Error, effects: &mut Vec<Effect>) {
        self.exhausted += 1;
        self.hold = true;
        let Some(youngest) = self.youngest() else { return };
        if self
            .running
            .iter()
            .filter(|sequence| sequence.is_admitted())
            .count()
            > 1
        {
            self.park(youngest);
        } else if self.exhausted > MAX_EXHAUSTED {
            self.exhausted = 0;
            let failure = Failure::Backend(format!("no memory for even one sequence: {error}"));
            self.leave(self.running[youngest].id, Some(Event::Failed(failure)), effects);
        }
    }

    /// The device is lost: nothing of it is asked any more.
    pub(super) fn fence(&mut self, error: &Error, effects: &mut Vec<Effect>) {
        self.fenced = Some(error.to_string());
        self.planned = None;
        let rows = self.flights.drain(..).flat_map(|flight| flight.rows);
        for snapshot in rows.filter_map(|row| row.snapshot) {
            self.pool.release_snapshot(snapshot);
        }
        for sequence in &mut self.running {
            sequence.in_flight = 0;
        }
        self.abort(Failure::Backend(error.to_string()), effects);
        for at in (0..self.running.len()).rev() {
            self.settle(at);
        }
        self.end_sessions();
        // A device that was lost still counts who holds its slots.
        self.ops.retain(|op| matches!(op, DeviceOp::FreeState { .. }));
    }

    fn recycle(&mut self, mut flight: Flight) {
        flight.rows.clear();
        self.spare_rows.push(flight.rows);
    }
}
