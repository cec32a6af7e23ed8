//! The simulated device's steps, and how they fail.

use super::World;
use crate::{
    engine::{DeviceIo, testing::error},
    scheduler::{Flight, Input, RequestId},
};
use met_backend_api::{Batch, ErrorKind, RowOutput, Ticket, TokenLogprob, sdk::Output};
use std::{ops::Range, time::Duration};

/// A step in flight: its ticket, and its rows.
pub type Submitted = (Ticket, Vec<SubmittedRow>);

/// Whose row it is, the blocks it uses, and the positions of its tokens.
pub struct SubmittedRow {
    pub id: RequestId,
    pub blocks: Vec<u32>,
    pub positions: Range<u32>,
}

impl World {
    pub fn submit_step(&mut self, fatal: bool) {
        self.reached.steps += 1;
        let rows = self.scheduler.batch();
        let planned: Vec<RequestId> = self
            .scheduler
            .planned
            .iter()
            .flat_map(|flight: &Flight| &flight.rows)
            .map(|row| row.id)
            .collect();
        assert_eq!(rows.len(), planned.len());
        self.reached.run_ahead += rows.iter().filter(|row| row.input.is_some()).count() as u64;
        for (row, id) in rows.iter().zip(&planned) {
            let client = &self.clients[id];
            assert!(!client.paused, "{id:?} is paused");
            let end = row.position as usize + row.tokens.len().max(1);
            let last = client.request.prompt.len() + client.request.max_tokens as usize;
            assert!(end < last, "{id:?} computes what nobody asked for");
            assert_eq!(
                (
                    row.sampling,
                    row.top_logprobs > 0 && client.request.top_logprobs.is_none()
                ),
                (client.request.sampling, false)
            );
            // What this step writes belongs to nobody else in flight.
            let size = self.limits.block_size;
            let written = &row.blocks[(row.position / size) as usize..];
            for other in self.flights.iter().flat_map(|(_, rows)| rows) {
                let shared = other.blocks.iter().any(|block| written.contains(block));
                assert!(
                    other.id == *id || !shared,
                    "{id:?} writes to blocks that {:?} has in flight",
                    other.id
                );
            }
        }
        let poisoned = planned.iter().any(|id| self.clients[id].poisoned);
        let kind = if fatal {
            Some(if self.random.chance(500) {
                ErrorKind::Fault
            } else {
                ErrorKind::Bug
            })
        } else if self.random.chance(self.trouble) {
            Some(ErrorKind::Exhausted)
        } else {
            poisoned.then_some(ErrorKind::Invalid)
        };
        let submitted = planned.iter().zip(&rows).map(|(id, row)| SubmittedRow {
            id: *id,
            blocks: row.blocks.to_vec(),
            positions: row.position..row.position + row.tokens.len().max(1) as u32,
        });
        let submitted = submitted.collect();
        if let Some(kind) = kind {
            self.device.controls().fail("submit", [error(kind, "ordered")]);
        }
        let outcome = self.device.submit(Batch {
            rows: rows.as_slice().into(),
        });
        drop(rows);
        match outcome {
            Ok(ticket) => {
                self.flights.push_back((ticket, submitted));
                self.tell(Input::Submitted { ticket });
            }
            Err(error) => {
                if error.kind == ErrorKind::Exhausted {
                    for id in &planned {
                        self.clients
                            .entry(*id)
                            .and_modify(|client| client.failed_steps += 1);
                    }
                }
                self.fail(error.kind, planned.len(), |error| Input::SubmitFailed { error });
            }
        }
        self.age(&planned);
    }

    pub fn collect_step(&mut self, fatal: bool) {
        let Some((ticket, step)) = self.flights.pop_front() else {
            return;
        };
        let (row_count, top_count) = self.scheduler.oldest_sizes();
        assert_eq!(row_count, step.len());
        let mut rows = vec![RowOutput::default(); row_count];
        let mut top = vec![TokenLogprob::default(); top_count];
        let curses = step.iter().filter_map(|row| {
            let (position, kind) = self.clients.get(&row.id)?.curse?;
            row.positions.contains(&position).then_some(kind)
        });
        let cursed = curses.min_by_key(|kind| *kind == ErrorKind::Invalid);
        let is_void = self.scheduler.flights.front().is_some_and(|flight| flight.void);
        let kind = if fatal {
            Some(ErrorKind::Fault)
        } else if cursed.is_some() {
            self.reached.cursed += 1;
            cursed
        } else if is_void && self.random.chance(300) {
            // What an earlier failure left behind may be no good input.
            Some(ErrorKind::Invalid)
        } else if self.random.chance(self.trouble) {
            // A step that fails alone is taken as the fault of its only request.
            Some(if row_count > 1 && self.random.chance(500) {
                ErrorKind::Invalid
            } else {
                ErrorKind::Exhausted
            })
        } else {
            None
        };
        if let Some(kind) = kind {
            self.device.controls().fail("collect", [error(kind, "ordered")]);
        }
        let out = Output {
            rows: &mut rows,
            top: &mut top,
            logits: &mut [],
        };
        match self.device.collect(ticket, out) {
            Ok(()) => {
                if !is_void {
                    self.exhausted_in_a_row = 0;
                }
                let elapsed = Duration::from_millis(self.random.between(0, 3000));
                self.tell(Input::Collected {
                    rows: &rows,
                    top: &top,
                    elapsed,
                });
            }
            Err(error) => {
                self.reached.failed_collects += 1;
                // Those that are set back by it hold up the others for longer.
                self.clients
                    .values_mut()
                    .for_each(|client| client.passed_over = 0);
                let later = self.flights.iter().flat_map(|(_, rows)| rows);
                for row in step.iter().chain(later) {
                    if let Some(client) = self.clients.get_mut(&row.id) {
                        client.failed_steps += 1;
                    }
                }
                self.fail(error.kind, row_count, |error| Input::CollectFailed { error });
            }
        }
    }

    fn fail(
        &mut self,
        kind: ErrorKind,
        rows: usize,
        input: impl FnOnce(&met_backend_api::Error) -> Input<'_>,
    ) {
        match kind {
            ErrorKind::Exhausted => {
                self.reached.exhausted += 1;
                self.exhausted_in_a_row += 1;
            }
            ErrorKind::Invalid => self.reached.invalid += 1,
            _ => {
                self.reached.fences += 1;
                self.flights.clear();
            }
        }
        assert!(rows > 0);
        let error = error(kind, "ordered");
        self.tell(input(&error));
    }
}
