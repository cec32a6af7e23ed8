//! A batch, checked whole before anything happens, and laid out for the operations.

use crate::{Error, Result, slots::Slots};
use met_backend_api::{Batch, NO_SLOT, Row, Sampling, Ticket, Want};
use met_kernels::{NO_STATE, StepRow};
use std::{collections::HashSet, ops::Range};

/// The most entries of [`Row::top_logprobs`].
const MAX_TOP: u32 = 20;

/// What a batch has to stay within.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) vocab: usize,
    pub(crate) context: usize,
    pub(crate) block_size: usize,
    pub(crate) blocks: usize,
    pub(crate) rows: usize,
    pub(crate) tokens: usize,
}

/// What the rows of the last step sampled.
#[derive(Debug, Default)]
pub(crate) struct SampledTokens {
    pub(crate) ticket: Ticket,
    pub(crate) rows: Vec<Sampled>,
}

/// What a row sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sampled {
    /// It asked for no token, or had no finite logits.
    Nothing,
    /// This token.
    Token(u32),
    /// What will be known once the step is collected.
    UnderWay(Place),
}

/// Where in a step's choices a row's is: the round, and the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) round: usize,
    pub(crate) request: usize,
}

/// A checked batch.
#[derive(Debug)]
pub(crate) struct Step<'a> {
    /// The tokens of all rows.
    pub(crate) tokens: Vec<u32>,
    /// The rows for the operations.
    pub(crate) rows: Vec<StepRow<'a>>,
    /// Tokens whose logits are wanted, ascending.
    pub(crate) wanted: Vec<u32>,
    /// The part of `wanted` that belongs to each row.
    pub(crate) wanted_by_row: Vec<Range<u32>>,
    /// Tokens that the last step is still sampling, and which those are.
    pub(crate) inputs: Vec<(usize, Place)>,
}

impl<'a> Step<'a> {
    /// Checks every field of `batch`.
    ///
    /// `slots` are those of recurrent states, where the model has such.
    pub(crate) fn new(
        batch: &Batch<'a>,
        limits: &Limits,
        previous: &SampledTokens,
        slots: Option<&Slots>,
    ) -> Result<Self> {
        let count = batch.rows.len();
        if count == 0 || count > limits.rows {
            return Err(Error::invalid(format!(
                "a batch has {count} rows, but must have 1 to {}",
                limits.rows
            )));
        }
        let mut step = Self {
            tokens: Vec::new(),
            rows: Vec::with_capacity(count),
            wanted: Vec::new(),
            wanted_by_row: Vec::with_capacity(count),
            inputs: Vec::new(),
        };
        let (mut written, mut states) = (HashSet::new(), HashSet::new());
        for (index, row) in batch.rows.as_slice().iter().enumerate() {
            check_state(row, slots, &mut states)
                .and_then(|()| step.push(row, limits, previous, &mut written))
                .map_err(|e| Error::new(e.kind, format!("row {index}: {e}")))?;
        }
        Ok(step)
    }

    fn push(
        &mut self,
        row: &Row<'a>,
        limits: &Limits,
        previous: &SampledTokens,
        written: &mut HashSet<u32>,
    ) -> Result<()> {
        let first = self.tokens.len();
        self.push_tokens(row, limits, previous)?;
        let len = self.tokens.len() - first;
        let position = row.position as usize;
        let end = position + len;
        if end > limits.context {
            return Err(Error::invalid(format!(
                "it ends at position {end}, but the context is {}",
                limits.context
            )));
        }
        let blocks: &'a [u32] = row.blocks.as_slice();
        check_blocks(blocks, position..end, limits, written)?;
        if row.want == Want::Token {
            check_choice(row, limits)?;
        }
        self.rows.push(StepRow {
            first,
            len,
            position,
            blocks,
            state: match row.state_slot {
                NO_SLOT => NO_STATE,
                slot => slot,
            },
        });
        let start = self.wanted.len() as u32;
        let tokens = first as u32..(first + len) as u32;
        match row.want {
            Want::Nothing => {}
            Want::Token | Want::Logits => self.wanted.push(tokens.end - 1),
            Want::AllLogits => self.wanted.extend(tokens),
        }
        self.wanted_by_row.push(start..self.wanted.len() as u32);
        Ok(())
    }

    fn push_tokens(&mut self, row: &Row<'_>, limits: &Limits, previous: &SampledTokens) -> Result<()> {
        let given = row.tokens.as_slice();
        if given.len() > limits.tokens - self.tokens.len() {
            return Err(Error::invalid(format!(
                "the batch has more than {} tokens",
                limits.tokens
            )));
        }
        match (given, row.input.into_option()) {
            ([], None) => Err(Error::invalid("it has no token")),
            ([], Some(input)) => {
                let sampled = previous.rows.get(input.row as usize).copied();
                let sampled = sampled.filter(|_| input.ticket == previous.ticket);
                let token = match sampled.unwrap_or(Sampled::Nothing) {
                    Sampled::Token(token) => token,
                    Sampled::UnderWay(place) => {
                        self.inputs.push((self.tokens.len(), place));
                        0
                    }
                    Sampled::Nothing => {
                        return Err(Error::invalid(format!(
                            "its input is row {} of ticket {}, which sampled no token; the last step was {}",
                            input.row, input.ticket, previous.ticket
                        )));
                    }
                };
                if self.tokens.len() == limits.tokens {
                    return Err(Error::invalid(format!(
                        "the batch has more than {} tokens",
                        limits.tokens
                    )));
                }
                self.tokens.push(token);
                Ok(())
            }
            (_, Some(_)) => Err(Error::invalid("it has both tokens and an input")),
            (given, None) => match given.iter().find(|&&token| token as usize >= limits.vocab) {
                Some(token) => Err(outside(*token, limits)),
                None => {
                    self.tokens.extend_from_slice(given);
                    Ok(())
                }
            },
        }
    }
}

/// A row's state must be where the row goes on, and no other row's.
fn check_state(row: &Row<'_>, slots: Option<&Slots>, taken: &mut HashSet<u32>) -> Result<()> {
    match (slots, row.state_slot) {
        (None, NO_SLOT) => Ok(()),
        (None, slot) => Err(Error::invalid(format!(
            "state slot {slot} is named, but this model has no recurrent state"
        ))),
        (Some(_), NO_SLOT) => Err(Error::invalid(
            "it names no state slot, but this model has recurrent state",
        )),
        (Some(slots), slot) => {
            slots.check_row(slot, row.position as usize)?;
            match taken.insert(slot) {
                true => Ok(()),
                false => Err(Error::invalid(format!("state slot {slot} is another row's, too"))),
            }
        }
    }
}

/// A block table must exist as far as the row's last position, and no block may be written by two rows, or
/// twice by one: operations write them in parallel.
fn check_blocks(
    blocks: &[u32],
    positions: Range<usize>,
    limits: &Limits,
    written: &mut HashSet<u32>,
) -> Result<()> {
    let needed = positions.end.div_ceil(limits.block_size);
    if blocks.len() < needed {
        return Err(Error::invalid(format!(
            "its block table has {} blocks, but position {} needs {needed}",
            blocks.len(),
            positions.end - 1
        )));
    }
    if let Some(block) = blocks.iter().find(|&&block| block as usize >= limits.blocks) {
        return Err(Error::invalid(format!(
            "block {block} is not one of the {} there are",
            limits.blocks
        )));
    }
    for block in &blocks[positions.start / limits.block_size..needed] {
        if !written.insert(*block) {
            return Err(Error::invalid(format!(
                "block {block} is written twice in one step"
            )));
        }
    }
    Ok(())
}

fn check_choice(row: &Row<'_>, limits: &Limits) -> Result<()> {
    if row.top_logprobs > MAX_TOP {
        return Err(Error::invalid(format!(
            "top_logprobs is {}, but at most {MAX_TOP} are given",
            row.top_logprobs
        )));
    }
    check_sampling(&row.sampling)?;
    let tokens = row.counts.as_slice().iter().map(|c| c.token);
    let tokens = tokens.chain(row.bias.as_slice().iter().map(|b| b.token));
    if let Some(token) = tokens.into_iter().find(|&token| token as usize >= limits.vocab) {
        return Err(outside(token, limits));
    }
    if let Some(bias) = row.bias.as_slice().iter().find(|b| !b.bias.is_finite()) {
        return Err(Error::invalid(format!(
            "the bias of token {} is {}, but must be finite",
            bias.token, bias.bias
        )));
    }
    let mask = row.mask.as_slice();
    let words = limits.vocab.div_ceil(u32::BITS as usize);
    if !mask.is_empty() && mask.len() != words {
        return Err(Error::invalid(format!(
            "its mask has {} words, but {} tokens take {words}",
            mask.len(),
            limits.vocab
        )));
    }
    let allowed = |(i, word): (usize, &u32)| {
        let bits = (limits.vocab - i * u32::BITS as usize).min(u32::BITS as usize);
        word & (u32::MAX >> (u32::BITS as usize - bits)) != 0
    };
    if !mask.is_empty() && !mask.iter().enumerate().any(allowed) {
        return Err(Error::invalid("its mask allows no token"));
    }
    Ok(())
}

fn check_sampling(s: &Sampling) -> Result<()> {
    let at_least_0 = |x: f32| x.is_finite() && x >= 0.0;
    for (name, value, right, range) in [
        (
            "temperature",
            s.temperature,
            at_least_0(s.temperature),
            "0 or more",
        ),
        (
            "top_p",
            s.top_p,
            s.top_p > 0.0 && s.top_p <= 1.0,
            "above 0, at most 1",
        ),
        ("min_p", s.min_p, (0.0..=1.0).contains(&s.min_p), "0 to 1"),
        (
            "repetition_penalty",
            s.repetition_penalty,
            at_least_0(s.repetition_penalty) && s.repetition_penalty > 0.0,
            "above 0",
        ),
        (
            "presence_penalty",
            s.presence_penalty,
            s.presence_penalty.is_finite(),
            "finite",
        ),
        (
            "frequency_penalty",
            s.frequency_penalty,
            s.frequency_penalty.is_finite(),
            "finite",
        ),
    ] {
        if !right {
            return Err(Error::invalid(format!("{name} is {value}, but must be {range}")));
        }
    }
    Ok(())
}

fn outside(token: u32, limits: &Limits) -> Error {
    Error::invalid(format!(
        "token {token} is outside the vocabulary of {}",
        limits.vocab
    ))
}
