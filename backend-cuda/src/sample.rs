//! Choices of tokens on the card: what sample.cu reads and writes.

use crate::{
    context::{Event, Stream},
    launch::Arg,
    memory::{Allocator, DeviceBuffer, Pinned},
    workspace::STEP,
};
use met_kernels::{
    Error, Ledger, Result,
    sample::{Choice, MAX_TOP, Request, Sampled},
};

/// A row without a mask.
const NO_MASK: u32 = u32::MAX;
/// Words of a choice.
const CHOICE: usize = 6 + 2 * MAX_TOP;
/// The kernel's fixed point.
const ONE: f64 = (1u64 << 40) as f64;

/// Choices that may still be under way.
#[derive(Debug)]
pub struct Choices {
    /// Requests, pairs and masks, at these bytes.
    input: DeviceBuffer,
    pairs: u64,
    masks: u64,
    adjusted: DeviceBuffer,
    candidates: DeviceBuffer,
    choices: DeviceBuffer,
    tops: Vec<usize>,
    slot: Option<Slot>,
}

/// Pinned memory to which choices are copied, and the event that tells when they are there. It goes back to
/// [`Slots`] once they are read.
#[derive(Debug)]
struct Slot {
    memory: Pinned,
    done: Event,
}

/// Slots that are free.
#[derive(Debug, Default)]
pub(crate) struct Slots(Vec<Slot>);

/// Owner label of the slots.
const SLOTS: &str = "choices";

impl Slots {
    fn take(&mut self, ledger: &Ledger, bytes: usize) -> Result<Slot> {
        if let Some(i) = self.0.iter().position(|slot| slot.memory.len() >= bytes) {
            return Ok(self.0.swap_remove(i));
        }
        Ok(Slot {
            memory: Pinned::new(ledger, SLOTS, bytes.next_power_of_two())?,
            done: Event::new(ledger, SLOTS)?,
        })
    }

    /// Waits for choices, and takes back their slot.
    pub(crate) fn collect(&mut self, mut choices: Choices) -> Result<Vec<Choice>> {
        let Some(slot) = choices.slot.take() else {
            return Err(Error::bug("choices were collected that nothing was asked of"));
        };
        slot.done.synchronize()?;
        let (words, _) = slot.memory.as_chunks::<4>();
        let words: Vec<_> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let found = words.chunks_exact(CHOICE).zip(&choices.tops);
        let found = found.map(|(words, &top)| choice(words, top)).collect();
        self.0.push(slot);
        Ok(found)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // Until it is done the card writes here. After an error it does no more.
        let _ = self.done.synchronize();
    }
}

impl Choices {
    pub(crate) fn new(allocator: &Allocator, vocab: usize, requests: &[Request<'_>]) -> Result<Self> {
        let (mut words, mut pairs, mut masks) = (Vec::new(), Vec::new(), Vec::new());
        for (row, request) in requests.iter().enumerate() {
            check(request, vocab)?;
            let p = &request.params;
            let mask = match request.mask {
                [] => NO_MASK,
                mask => {
                    let start = masks.len() as u32;
                    masks.extend_from_slice(mask);
                    start
                }
            };
            let halves = |x: u64| [x as u32, (x >> 32) as u32];
            words.extend(halves(p.seed));
            words.extend(halves(p.sequence));
            words.extend([request.position, row as u32]);
            words.extend([scale(p.temperature), p.top_p, p.min_p].map(f32::to_bits));
            words.push(p.top_k);
            words.extend([p.repetition_penalty, p.presence_penalty, p.frequency_penalty].map(f32::to_bits));
            words.extend([
                (pairs.len() / 2) as u32,
                request.counts.len() as u32,
                request.bias.len() as u32,
            ]);
            words.extend([mask, request.top.min(vocab) as u32]);
            pairs.extend(
                request
                    .counts
                    .iter()
                    .flat_map(|&(token, generated)| [token, generated]),
            );
            pairs.extend(
                request
                    .bias
                    .iter()
                    .flat_map(|&(token, bias)| [token, bias.to_bits()]),
            );
        }
        let any = |is: fn(&Request<'_>) -> bool| requests.iter().any(is);
        let adjusted = any(|r| !r.counts.is_empty() || !r.bias.is_empty() || !r.mask.is_empty()) as usize;
        let filtered = any(|r| r.params.top_k > 0 || r.params.top_p < 1.0 || r.params.min_p > 0.0) as usize;
        let values = requests
            .len()
            .checked_mul(vocab)
            .ok_or_else(|| Error::invalid("more logits than can be addressed"))?;
        // Pairs are read 8 bytes at a time.
        words.resize(words.len().next_multiple_of(2), 0);
        let starts = [words.len(), words.len() + pairs.len()];
        words.extend(pairs);
        words.extend(masks);
        Ok(Self {
            input: allocator.upload(STEP, &words)?,
            pairs: (starts[0] * size_of::<u32>()) as u64,
            masks: (starts[1] * size_of::<u32>()) as u64,
            adjusted: allocator.scratch(STEP, adjusted * values * size_of::<f32>())?,
            candidates: allocator.scratch(STEP, filtered * values * 2 * size_of::<u32>())?,
            choices: allocator.upload(STEP, &vec![0u32; requests.len() * CHOICE])?,
            tops: requests.iter().map(|request| request.top.min(vocab)).collect(),
            slot: None,
        })
    }

    /// The kernel's arguments.
    pub(crate) fn args(&self, logits: u64, vocab: usize) -> [Arg; 8] {
        let input = self.input.address();
        [
            logits.into(),
            input.into(),
            (input + self.pairs).into(),
            (input + self.masks).into(),
            self.adjusted.address().into(),
            self.candidates.address().into(),
            self.choices.address().into(),
            (vocab as u32).into(),
        ]
    }

    /// Starts copying the choices to the host, once the kernel was started.
    pub(crate) fn send(&mut self, slots: &mut Slots, ledger: &Ledger, stream: &Stream) -> Result<()> {
        let bytes = self.choices.bytes();
        let mut slot = slots.take(ledger, bytes)?;
        // SAFETY: the slot is kept, and read only when the event below says so; a dropped one waits for it.
        unsafe { self.choices.fetch(&mut slot.memory[..bytes], stream) }?;
        if let Err(e) = slot.done.record(stream) {
            // No event will tell when the copy is done.
            stream.synchronize()?;
            return Err(e);
        }
        self.slot = Some(slot);
        Ok(())
    }

    /// Where a request's choice is on the card, as the words of an address.
    pub(crate) fn place_of(&self, request: usize) -> Result<[u32; 2]> {
        if request >= self.tops.len() {
            return Err(Error::bug(format!(
                "choice {request} of {} is asked for",
                self.tops.len()
            )));
        }
        let address = self.choices.address() + (request * CHOICE * size_of::<u32>()) as u64;
        Ok([address as u32, (address >> 32) as u32])
    }
}

fn choice(words: &[u32], top: usize) -> Choice {
    let [token, not_finite, logit, largest, sum_low, sum_high] = words[..6] else {
        return Choice {
            sampled: None,
            top: Vec::new(),
        };
    };
    if not_finite != 0 {
        return Choice {
            sampled: None,
            top: Vec::new(),
        };
    }
    let sum = u64::from(sum_high) << 32 | u64::from(sum_low);
    let log_sum = (sum as f64 / ONE).ln();
    let logprob =
        |logit: u32| (f64::from(f32::from_bits(logit)) - f64::from(f32::from_bits(largest)) - log_sum) as f32;
    let (tokens, logits) = words[6..].split_at(MAX_TOP);
    let listed = tokens.iter().zip(logits).take(top);
    Choice {
        sampled: Some(Sampled {
            token,
            logprob: logprob(logit),
        }),
        top: listed
            .map(|(&token, &logit)| Sampled {
                token,
                logprob: logprob(logit),
            })
            .collect(),
    }
}

/// 1 / temperature; 0 where the largest logit is taken.
fn scale(temperature: f32) -> f32 {
    let scale = 1.0 / temperature;
    if temperature > 0.0 && scale.is_finite() {
        scale
    } else {
        0.0
    }
}

fn check(request: &Request<'_>, vocab: usize) -> Result<()> {
    let words = vocab.div_ceil(u32::BITS as usize);
    let fits =
        vocab > 0 && request.top <= MAX_TOP && (request.mask.is_empty() || request.mask.len() == words);
    match fits && u32::try_from(vocab).is_ok() {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "{} top tokens and a mask of {} words don't fit a vocabulary of {vocab}",
            request.top,
            request.mask.len()
        ))),
    }
}
