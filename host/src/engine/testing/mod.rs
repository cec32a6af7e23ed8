//! A device without a backend, for tests: its "model" samples a function of all tokens that it finds in
//! the cache, so a wrong position, block, order or repetition changes what comes out.

mod controls;
mod state;

pub use controls::FakeControls;

use super::DeviceIo;
use crate::request::Request;
use met_backend_api::{
    Batch, DeviceInfo, Error, ErrorKind, LedgerEntry, MemoryInfo, ModelInfo, NO_SLOT, ReleaseReport,
    ReleaseStep, ResourceKind, Row, RowOutput, Sampling, SweepReport, SweptEntry, Ticket, TokenCount,
    TokenLogprob, Want, abi_stable::std_types::ROption, sdk::Output,
};
use state::States;
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::Duration,
};

/// The token that follows `tokens`.
pub type NextToken = Box<dyn Fn(&[u32]) -> u32 + Send>;

/// A model whose cache is one token a place, and a scripted device around it.
pub struct FakeDevice {
    device: DeviceInfo,
    model: ModelInfo,
    cache: Vec<u32>,
    next: Option<NextToken>,
    /// Steps in flight with their results, oldest first.
    flights: VecDeque<Flight>,
    sampled: HashMap<Ticket, Vec<u32>>,
    last_ticket: Ticket,
    states: States,
    controls: FakeControls,
}

struct Flight {
    ticket: Ticket,
    answers: Vec<Answer>,
    /// Cache places it wrote.
    written: Vec<usize>,
}

struct Answer {
    output: RowOutput,
    top: Vec<TokenLogprob>,
    asked: usize,
}

/// A cache place that nothing was written to.
const UNWRITTEN: u32 = u32::MAX;
/// What a failed step leaves behind.
const GARBAGE: u32 = u32::MAX - 1;
const SNAPSHOTS: &str = "state snapshots";
const STATES: &str = "state pool";
const POOLS: [(&str, u64); 3] = [("kv cache", 4096), ("arena", 1024), ("weights", 65536)];

impl FakeDevice {
    /// A device with a pool of `block_count` blocks of `block_size` tokens, a batch of `max_rows` rows, and a
    /// vocabulary of 256 tokens. Change [`model_mut`](Self::model_mut) for other sizes.
    pub fn new(block_count: u32, block_size: u32, max_rows: u32) -> Self {
        let model = ModelInfo {
            architecture: "fake".into(),
            name: "fake".into(),
            weights_identity: "fake".into(),
            vocab_size: 256,
            context_length: block_count * block_size,
            block_size,
            block_count,
            block_bytes: 4 * u64::from(block_size),
            max_rows,
            max_batch_tokens: 512,
            max_in_flight: 1,
            ..ModelInfo::default()
        };
        let device = DeviceInfo {
            index: 0,
            kind: "fake".into(),
            name: "fake".into(),
            features: "".into(),
            total_memory: 1 << 20,
            compute_units: 1,
        };
        let controls = FakeControls::default();
        let pools = POOLS
            .iter()
            .zip(1..)
            .map(|(&(owner, bytes), serial)| entry(serial, owner, bytes));
        controls.lock().ledger = pools.collect();
        Self {
            device,
            cache: vec![UNWRITTEN; (block_count * block_size) as usize],
            model,
            next: None,
            flights: VecDeque::new(),
            sampled: HashMap::new(),
            last_ticket: 0,
            states: States::default(),
            controls,
        }
    }

    /// Gives the model recurrent state, which has to be where each row says, and to have seen the row's tokens.
    pub fn with_state(mut self, slots: u32, snapshots: u32) -> Self {
        self.states = States::new(slots, snapshots);
        (self.model.state_slots, self.model.snapshot_slots) = (slots, snapshots);
        self.model.state_bytes = state::BYTES as u64;
        let mut controls = self.controls.lock();
        controls
            .ledger
            .push(entry(901, SNAPSHOTS, 64 * u64::from(snapshots)));
        controls.ledger.push(entry(902, STATES, 64 * u64::from(slots)));
        drop(controls);
        self
    }

    /// The position of each slot of recurrent state that is held.
    pub fn held_states(&self) -> impl Iterator<Item = (u32, u32)> {
        self.states.held()
    }

    /// Makes it sample `next(all tokens)`; without it, a hash of everything it was given.
    pub fn sampling(mut self, next: impl Fn(&[u32]) -> u32 + Send + 'static) -> Self {
        self.next = Some(Box::new(next));
        self
    }

    /// What it says of its model.
    pub fn model_mut(&mut self) -> &mut ModelInfo {
        &mut self.model
    }

    /// The test's handle on it.
    pub fn controls(&self) -> FakeControls {
        self.controls.clone()
    }

    /// Computes a row: writes its tokens to the cache, and answers from what the cache holds.
    fn compute(&mut self, row: &Row<'_>, written: &mut Vec<usize>) -> Answer {
        let sampled;
        let tokens = match row.input {
            ROption::RSome(source) => {
                sampled = [self.sampled[&source.ticket][source.row as usize]];
                &sampled[..]
            }
            ROption::RNone => row.tokens.as_slice(),
        };
        assert!(!tokens.is_empty(), "a row without tokens");
        let size = self.model.block_size;
        let place =
            |position: u32| (row.blocks[(position / size) as usize] * size + position % size) as usize;
        for (position, token) in (row.position..).zip(tokens) {
            self.cache[place(position)] = *token;
            written.push(place(position));
        }
        let end = row.position + tokens.len() as u32;
        let seen: Vec<u32> = (0..end).map(|position| self.cache[place(position)]).collect();
        assert!(!seen.contains(&UNWRITTEN), "a row reads what was never written");
        self.states
            .see(row.state_slot, row.position, &seen, self.last_ticket + 1);
        let mut answer = Answer {
            output: RowOutput::default(),
            top: Vec::new(),
            asked: 0,
        };
        if row.want == Want::Token {
            let token = match &self.next {
                Some(next) => next(&seen),
                None => next_token(&seen, &row.sampling, &row.counts, self.model.vocab_size),
            };
            let logprob = -(token as f32);
            answer.asked = row.top_logprobs as usize;
            answer.top = (0..row.top_logprobs)
                .map(|rank| TokenLogprob { token: rank, logprob })
                .collect();
            answer.output.sampled = TokenLogprob { token, logprob };
            answer.output.top = row.top_logprobs;
        }
        answer
    }
}

/// What the fake device samples for a request after `tokens`, which begin with its prompt.
pub fn token_after(request: &Request, tokens: &[u32], vocab_size: u32) -> u32 {
    let mut counts = BTreeMap::new();
    if request.sampling.presence_penalty != 0.0 {
        for (at, token) in tokens.iter().enumerate() {
            *counts.entry(*token).or_insert(0) += u32::from(at >= request.prompt.len());
        }
    }
    let count = |(token, generated)| TokenCount { token, generated };
    let counts: Vec<_> = counts.into_iter().map(count).collect();
    next_token(tokens, &request.sampling, &counts, vocab_size)
}

/// A hash of everything that the choice of a token may depend on.
fn next_token(seen: &[u32], sampling: &Sampling, counts: &[TokenCount], vocab_size: u32) -> u32 {
    let counts = counts.iter().flat_map(|count| [count.token, count.generated]);
    let words = [sampling.seed as u32, sampling.sequence as u32];
    let hash = seen
        .iter()
        .copied()
        .chain(words)
        .chain(counts)
        .fold(0x811c_9dc5_u32, |hash, word| {
            (hash ^ word).wrapping_mul(0x0100_0193).rotate_left(5)
        });
    hash % vocab_size
}

impl DeviceIo for FakeDevice {
    fn device(&self) -> &DeviceInfo {
        &self.device
    }

    fn model(&self) -> &ModelInfo {
        &self.model
    }

    fn memory(&mut self) -> Result<MemoryInfo, Error> {
        self.controls.call("memory")?;
        let controls = self.controls.lock();
        let used = controls.ledger.iter().map(|entry| entry.bytes).sum();
        let total = self.device.total_memory;
        Ok(MemoryInfo {
            free: total - used,
            total,
            ledger_bytes: used,
            ledger_count: controls.ledger.len() as u64,
        })
    }

    fn ledger(&mut self) -> Result<Vec<LedgerEntry>, Error> {
        self.controls.call("ledger")?;
        Ok(self.controls.lock().ledger.clone())
    }

    fn submit(&mut self, batch: Batch<'_>) -> Result<Ticket, Error> {
        if let Err(error) = self.controls.call("submit") {
            if error.kind == ErrorKind::Exhausted {
                // It came halfway.
                let slots = batch.rows.iter().map(|row| row.state_slot);
                slots.for_each(|slot| self.states.lose(slot));
            }
            return Err(error);
        }
        let tokens: usize = batch.rows.iter().map(|row| row.tokens.len().max(1)).sum();
        assert!(!batch.rows.is_empty(), "an empty batch");
        assert!(batch.rows.len() <= self.model.max_rows as usize, "too many rows");
        assert!(tokens <= self.model.max_batch_tokens as usize, "too many tokens");
        assert!(
            self.flights.len() < self.model.max_in_flight as usize,
            "too many steps in flight"
        );
        let mut slots: Vec<u32> = batch.rows.iter().map(|row| row.state_slot).collect();
        slots.retain(|slot| *slot != NO_SLOT);
        slots.sort_unstable();
        assert!(slots.is_sorted_by(|a, b| a < b), "two rows of one slot");
        let mut written = Vec::new();
        let answers: Vec<Answer> = batch
            .rows
            .iter()
            .map(|row| self.compute(row, &mut written))
            .collect();
        self.last_ticket += 1;
        // Steps still in flight are the only ones that a row may name.
        let oldest = self
            .flights
            .front()
            .map_or(self.last_ticket, |flight| flight.ticket);
        self.sampled.retain(|ticket, _| *ticket >= oldest);
        let tokens = answers.iter().map(|answer| answer.output.sampled.token).collect();
        self.sampled.insert(self.last_ticket, tokens);
        let ticket = self.last_ticket;
        self.flights.push_back(Flight {
            ticket,
            answers,
            written,
        });
        Ok(ticket)
    }

    fn collect(&mut self, ticket: Ticket, out: Output<'_>) -> Result<(), Error> {
        let flight = self
            .flights
            .pop_front()
            .ok_or_else(|| Error::invalid("nothing is in flight"))?;
        assert_eq!(flight.ticket, ticket, "collected out of order");
        let step_time = self.controls.lock().step_time;
        if step_time > Duration::ZERO {
            std::thread::sleep(step_time);
        }
        if let Err(error) = self.controls.call("collect") {
            for flight in std::iter::once(&flight).chain(&self.flights) {
                flight
                    .written
                    .iter()
                    .for_each(|place| self.cache[*place] = GARBAGE);
            }
            self.states.spoil(ticket);
            if matches!(error.kind, ErrorKind::Fault | ErrorKind::Bug) {
                // Nobody collects from a device that was lost.
                self.flights.clear();
            }
            return Err(error);
        }
        let mut top = 0;
        for (answer, row) in flight.answers.iter().zip(out.rows) {
            *row = answer.output;
            out.top[top..top + answer.asked].copy_from_slice(&answer.top);
            top += answer.asked;
        }
        Ok(())
    }

    fn copy_blocks_out(&mut self, blocks: &[u32], data: &mut [u8]) -> Result<(), Error> {
        self.controls.call("copy_blocks_out")?;
        let size = self.model.block_size as usize;
        let places = blocks.iter().flat_map(|block| {
            let first = *block as usize * size;
            first..first + size
        });
        for (place, bytes) in places.zip(data.chunks_exact_mut(4)) {
            bytes.copy_from_slice(&self.cache[place].to_le_bytes());
        }
        Ok(())
    }

    fn copy_blocks_in(&mut self, blocks: &[u32], data: &[u8]) -> Result<(), Error> {
        self.controls.call("copy_blocks_in")?;
        let size = self.model.block_size as usize;
        let places = blocks.iter().flat_map(|block| {
            let first = *block as usize * size;
            first..first + size
        });
        for (place, bytes) in places.zip(data.chunks_exact(4)) {
            self.cache[place] = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Ok(())
    }

    fn save_state(&mut self, slot: u32, data: &mut [u8]) -> Result<(), Error> {
        self.controls.call("save_state")?;
        self.states.save(slot, data);
        Ok(())
    }

    fn restore_state(&mut self, slot: u32, position: u32, data: &[u8]) -> Result<(), Error> {
        self.controls.call("restore_state")?;
        self.states.restore(slot, position, data);
        Ok(())
    }

    fn free_state(&mut self, slot: u32) -> Result<(), Error> {
        self.controls.call("free_state")?;
        self.states.free(slot);
        Ok(())
    }

    fn take_snapshot(&mut self, slot: u32, snapshot: u32) -> Result<(), Error> {
        self.controls.call("take_snapshot")?;
        self.states.take(slot, snapshot);
        Ok(())
    }

    fn use_snapshot(&mut self, snapshot: u32, slot: u32) -> Result<(), Error> {
        self.controls.call("use_snapshot")?;
        self.states.take_from(snapshot, slot);
        Ok(())
    }

    fn synchronize(&mut self, stream: u32) -> Result<(), Error> {
        self.controls.call(if stream == 0 {
            "synchronize 0"
        } else {
            "synchronize 1"
        })
    }

    fn release_pools(&mut self) -> Result<ReleaseReport, Error> {
        self.controls.call("release_pools")?;
        assert!(self.flights.is_empty(), "released with a step in flight");
        let mut controls = self.controls.lock();
        let mut steps = Vec::new();
        let pools = POOLS.map(|(label, _)| label);
        let recurrent: &[&str] = if self.model.state_slots > 0 {
            &[SNAPSHOTS, STATES]
        } else {
            &[]
        };
        for label in recurrent.iter().copied().chain(pools) {
            let held = if label == STATES {
                self.states.held().count()
            } else {
                0
            };
            let is_kept = |entry: &LedgerEntry| entry.owner != label || held > 0;
            let before: u64 = controls.ledger.iter().map(|entry| entry.bytes).sum();
            controls.ledger.retain(is_kept);
            let after: u64 = controls.ledger.iter().map(|entry| entry.bytes).sum();
            let error = (held > 0).then(|| Error::invalid(format!("{held} handles are alive")));
            steps.push(ReleaseStep {
                label: label.into(),
                bytes: before - after,
                error: error.into(),
            });
        }
        Ok(ReleaseReport { steps: steps.into() })
    }

    fn drop_model(&mut self) {
        // Recorded; a failure can't be reported by a drop.
        let _ = self.controls.call("drop_model");
    }

    fn sweep_unreleased(&mut self) -> Result<SweepReport, Error> {
        self.controls.call("sweep_unreleased")?;
        let entries: Vec<LedgerEntry> = std::mem::take(&mut self.controls.lock().ledger);
        Ok(SweepReport {
            count: entries.len() as u64,
            bytes: entries.iter().map(|entry| entry.bytes).sum(),
            failures: 0,
            entries: entries
                .into_iter()
                .map(|entry| SweptEntry {
                    entry,
                    error: ROption::RNone,
                })
                .collect(),
        })
    }
}

impl Drop for FakeDevice {
    fn drop(&mut self) {
        self.controls.lock().dropped = true;
    }
}

/// An error of `kind`.
pub fn error(kind: ErrorKind, message: &str) -> Error {
    Error::new(kind, message)
}

fn entry(serial: u64, owner: &str, bytes: u64) -> LedgerEntry {
    LedgerEntry {
        serial,
        kind: ResourceKind::Memory,
        owner: owner.into(),
        bytes,
    }
}
