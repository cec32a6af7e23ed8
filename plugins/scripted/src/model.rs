//! The "model": its KV cache holds tokens, and the next token is a hash of those it is led to.

use crate::{
    dropped,
    script::Settings,
    stage::Stage,
    states::{State, States},
};
use met_backend_api::{
    Batch, Error, ModelInfo, ModelSpec, ReleaseReport, ReleaseStep, ResourceReport, Row, RowOutput, Ticket,
    TokenLogprob, Want,
    abi_stable::std_types::ROption,
    sdk::{BackendModel, Host, Output},
};
use met_kernels::{Kind, Serial};
use met_model::convert;
use std::{collections::VecDeque, thread, time::Duration};

const STATE_POOL: &str = "state pool";

/// A loaded "model".
pub struct ScriptedModel {
    stage: Stage,
    info: ModelInfo,
    /// One a pool, in the order of their release.
    pools: Vec<(&'static str, Serial, u64)>,
    /// Token of each position of each block.
    kv: Vec<u32>,
    states: States,
    last_ticket: Ticket,
    in_flight: VecDeque<(Ticket, Vec<Answer>)>,
    /// The last step's tokens, for rows that take them as input.
    sampled: Vec<(Ticket, Vec<u32>)>,
}

struct Answer {
    want: Want,
    /// Its slot, and what the state there has come to.
    slot: u32,
    state: State,
    /// The next token after each of the row's tokens.
    next: Vec<u32>,
    top: u32,
}

impl ScriptedModel {
    pub(crate) fn load(stage: Stage, host: &Host, spec: &ModelSpec, identity: String) -> Result<Self, Error> {
        let nonsense = stage.call("load_model")?;
        let s = stage.settings();
        for ms in 0..s.load_ms {
            if host.cancelled() {
                return Err(Error::cancelled());
            }
            let done = u128::from(s.weights) * u128::from(ms) / u128::from(s.load_ms);
            host.progress("weights".into(), done as u64, s.weights);
            thread::sleep(Duration::from_millis(1));
        }
        let context = if spec.context == 0 {
            s.context
        } else {
            spec.context.min(s.context)
        };
        let per_sequence = context.div_ceil(s.block_size);
        let max_rows = spec.max_rows.max(1);
        let block_count = if s.blocks == 0 {
            per_sequence.saturating_mul(max_rows)
        } else {
            s.blocks
        };
        let block_bytes = u64::from(s.block_size) * 4;
        let info = ModelInfo {
            architecture: "scripted".into(),
            name: "scripted".into(),
            quantization: "none".into(),
            weights_identity: match s.salt {
                Settings::SALT => identity.into(),
                salt => format!("{identity}-{salt}").into(),
            },
            parameters: s.weights,
            vocab_size: s.vocab,
            context_length: if nonsense { 0 } else { context },
            block_size: s.block_size,
            block_count,
            block_bytes,
            state_slots: s.state_slots,
            state_bytes: State::BYTES,
            snapshot_slots: s.snapshots,
            max_rows,
            max_batch_tokens: spec.max_batch_tokens.max(1),
            max_in_flight: s.in_flight,
        };
        let ledger = stage.ledger();
        let mut pools = Vec::new();
        let all = [
            ("state snapshots", State::BYTES * u64::from(s.snapshots)),
            (STATE_POOL, State::BYTES * u64::from(s.state_slots)),
            ("kv cache", block_bytes * u64::from(block_count)),
            ("weight store", s.weights),
        ];
        let skipped = if s.state_slots == 0 { 2 } else { 0 };
        for (label, bytes) in all.into_iter().skip(skipped) {
            match ledger.enter(Kind::Memory, label, bytes) {
                Ok(serial) => pools.push((label, serial, bytes)),
                Err(e) => {
                    for (_, serial, _) in pools {
                        ledger.strike(serial).map_err(convert::error)?;
                    }
                    return Err(convert::error(e));
                }
            }
        }
        let kv = vec![u32::MAX; (block_count * s.block_size) as usize];
        Ok(Self {
            stage,
            info,
            pools,
            kv,
            states: States::new(s.state_slots, s.snapshots),
            last_ticket: 0,
            in_flight: VecDeque::new(),
            sampled: Vec::new(),
        })
    }

    fn slot(&self, row: &Row<'_>, position: u32) -> Result<usize, Error> {
        let size = self.info.block_size;
        let block = row
            .blocks
            .get((position / size) as usize)
            .copied()
            .filter(|b| *b < self.info.block_count);
        let block = block.ok_or_else(|| Error::invalid(format!("no block holds position {position}")))?;
        Ok((block * size + position % size) as usize)
    }

    fn input(&self, row: &Row<'_>) -> Result<Vec<u32>, Error> {
        let tokens = match row.input {
            ROption::RNone => row.tokens.to_vec(),
            ROption::RSome(by) => {
                let step = self.sampled.iter().find(|(ticket, _)| *ticket == by.ticket);
                let token = step.and_then(|(_, tokens)| tokens.get(by.row as usize));
                vec![*token.ok_or_else(|| Error::invalid("the input names no row of an earlier step"))?]
            }
        };
        match tokens.iter().find(|t| **t >= self.info.vocab_size) {
            Some(token) => Err(Error::invalid(format!("token {token} is not in the vocabulary"))),
            None if tokens.is_empty() => Err(Error::invalid("a row needs a token")),
            None => Ok(tokens),
        }
    }

    /// Computes a row. What its state comes to is set once all rows are computed.
    fn run(&mut self, row: &Row<'_>) -> Result<Answer, Error> {
        let tokens = self.input(row)?;
        let slots = (0..row.position + tokens.len() as u32)
            .map(|p| self.slot(row, p))
            .collect::<Result<Vec<_>, _>>()?;
        let s = self.stage.settings();
        let mut hash = s.salt;
        let mut next = Vec::with_capacity(tokens.len());
        for (position, slot) in slots.into_iter().enumerate() {
            let new = position.checked_sub(row.position as usize);
            if let Some(i) = new {
                if i == 0 {
                    let position = row.position;
                    self.states.check(row.state_slot, State { position, hash })?;
                }
                self.kv[slot] = tokens[i];
            }
            hash = mix(hash ^ u64::from(self.kv[slot]));
            if new.is_some() {
                next.push(s.first + (hash % u64::from(s.last - s.first)) as u32);
            }
        }
        Ok(Answer {
            want: row.want,
            slot: row.state_slot,
            state: State {
                position: row.position + tokens.len() as u32,
                hash,
            },
            next,
            top: row.top_logprobs,
        })
    }
}

impl BackendModel for ScriptedModel {
    fn info(&self) -> Result<ModelInfo, Error> {
        self.stage.call("model_info")?;
        Ok(self.info.clone())
    }

    fn resources(&self) -> Result<Vec<ResourceReport>, Error> {
        self.stage.call("resources")?;
        let report = |(label, _, bytes): &(&str, _, u64)| ResourceReport {
            label: (*label).into(),
            bytes: *bytes,
            allocations: 1,
        };
        Ok(self.pools.iter().map(report).collect())
    }

    fn submit(&mut self, batch: &Batch<'_>) -> Result<Ticket, Error> {
        let nonsense = self.stage.call("submit")?;
        if self.in_flight.len() >= self.info.max_in_flight as usize {
            return Err(Error::invalid("too many tickets are outstanding"));
        }
        let answers = batch
            .rows
            .iter()
            .map(|row| self.run(row))
            .collect::<Result<Vec<_>, _>>()?;
        for answer in &answers {
            self.states.set(answer.slot, answer.state);
        }
        self.last_ticket += 1;
        let tokens = answers
            .iter()
            .map(|a| a.next.last().copied().unwrap_or_default())
            .collect();
        self.sampled.push((self.last_ticket, tokens));
        if self.sampled.len() > self.info.max_in_flight as usize + 1 {
            self.sampled.remove(0);
        }
        self.in_flight.push_back((self.last_ticket, answers));
        Ok(if nonsense { Ticket::MAX } else { self.last_ticket })
    }

    fn collect(&mut self, ticket: Ticket, out: &mut Output<'_>) -> Result<(), Error> {
        // A step that fails is over too.
        let oldest = self.in_flight.pop_front();
        let nonsense = self.stage.call("collect")?;
        let (oldest, answers) = oldest.ok_or_else(|| Error::invalid("no ticket is outstanding"))?;
        if oldest != ticket {
            return Err(Error::invalid(format!("ticket {oldest} comes before {ticket}")));
        }
        thread::sleep(Duration::from_micros(self.stage.settings().step_us));
        let vocab = self.info.vocab_size as usize;
        let short = || Error::invalid("an output slice is too short");
        let (mut top, mut logits) = (0, 0);
        for (i, answer) in answers.iter().enumerate() {
            let last = answer.next.last().copied().unwrap_or_default();
            let mut row = RowOutput::default();
            match answer.want {
                Want::Nothing => {}
                Want::Token => {
                    row.sampled = TokenLogprob {
                        token: if nonsense { u32::MAX } else { last },
                        logprob: 0.0,
                    };
                    row.top = answer.top;
                    let best = out
                        .top
                        .get_mut(top..top + answer.top as usize)
                        .ok_or_else(short)?;
                    for (rank, entry) in best.iter_mut().enumerate() {
                        let token = (last + rank as u32) % self.info.vocab_size;
                        *entry = TokenLogprob {
                            token,
                            logprob: if rank == 0 { 0.0 } else { -100.0 },
                        };
                    }
                    top += answer.top as usize;
                }
                Want::Logits | Want::AllLogits => {
                    let wanted = if answer.want == Want::Logits {
                        &answer.next[answer.next.len() - 1..]
                    } else {
                        &answer.next
                    };
                    for token in wanted {
                        let values = out.logits.get_mut(logits..logits + vocab).ok_or_else(short)?;
                        values.fill(if nonsense { f32::NAN } else { 0.0 });
                        values[*token as usize] = 100.0;
                        logits += vocab;
                    }
                }
            }
            row.not_finite = nonsense;
            *out.rows.get_mut(i).ok_or_else(short)? = row;
        }
        Ok(())
    }

    fn copy_blocks_out(&mut self, blocks: &[u32], data: &mut [u8]) -> Result<(), Error> {
        let bytes = self.info.block_bytes as usize;
        for (block, part) in blocks.iter().zip(data.chunks_exact_mut(bytes)) {
            let tokens = self.block(*block)?.to_vec();
            for (word, token) in part.chunks_exact_mut(4).zip(tokens) {
                word.copy_from_slice(&token.to_le_bytes());
            }
        }
        Ok(())
    }

    fn copy_blocks_in(&mut self, blocks: &[u32], data: &[u8]) -> Result<(), Error> {
        let bytes = self.info.block_bytes as usize;
        for (block, part) in blocks.iter().zip(data.chunks_exact(bytes)) {
            for (token, word) in self.block(*block)?.iter_mut().zip(part.chunks_exact(4)) {
                *token = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            }
        }
        Ok(())
    }

    fn save_state(&mut self, slot: u32, data: &mut [u8]) -> Result<(), Error> {
        self.stage.call("save_state")?;
        self.states.save(slot, data)
    }

    fn restore_state(&mut self, slot: u32, position: u32, data: &[u8]) -> Result<(), Error> {
        self.stage.call("restore_state")?;
        self.states.restore(slot, position, data)
    }

    fn free_state(&mut self, slot: u32) -> Result<(), Error> {
        self.stage.call("free_state")?;
        self.states.free(slot)
    }

    fn take_snapshot(&mut self, slot: u32, snapshot: u32) -> Result<(), Error> {
        self.stage.call("take_snapshot")?;
        self.states.take(slot, snapshot)
    }

    fn use_snapshot(&mut self, snapshot: u32, slot: u32) -> Result<(), Error> {
        self.stage.call("use_snapshot")?;
        self.states.give(snapshot, slot)
    }

    fn release_pools(&mut self) -> Result<ReleaseReport, Error> {
        let nonsense = self.stage.call("release_pools")?;
        let mut report = ReleaseReport::default();
        for (label, serial, bytes) in self.pools.drain(..) {
            let held = if label == STATE_POOL {
                self.states.held()
            } else {
                0
            };
            let freed = match (held, nonsense) {
                (0, true) => Ok(u64::MAX),
                (0, false) => self.stage.ledger().strike(serial).map_err(convert::error),
                _ => Err(Error::invalid(format!(
                    "{held} slots are still held by sequences: nothing is freed under them"
                ))),
            };
            report.steps.push(ReleaseStep {
                label: label.into(),
                bytes: if freed.is_ok() { bytes } else { 0 },
                error: ROption::from(freed.err()),
            });
        }
        self.kv = Vec::new();
        Ok(report)
    }
}

impl ScriptedModel {
    fn block(&mut self, block: u32) -> Result<&mut [u32], Error> {
        let size = self.info.block_size as usize;
        let start = block as usize * size;
        self.kv
            .get_mut(start..start + size)
            .ok_or_else(|| Error::invalid(format!("there is no block {block}")))
    }
}

impl Drop for ScriptedModel {
    fn drop(&mut self) {
        dropped(&self.stage, "drop_model");
    }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
