//! Chooses a token from a row of logits: what is asked for, and how it is done in host memory.
//!
//! Penalties and bias, then the mask, then temperature, top-k, top-p, min-p, and a draw whose random number
//! depends on (seed, sequence, position) alone. Nothing here depends on the batch.

mod filter;
mod philox;
mod scan;

#[cfg(test)]
mod tests;

use crate::Result;
use filter::{Filters, Kept};

/// How a token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Key of the random numbers.
    pub seed: u64,
    /// Tells apart sequences that share a seed.
    pub sequence: u64,
    /// 0 takes the largest logit, of the lowest token among equals.
    pub temperature: f32,
    /// Keep the smallest set of tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less probable than this share of the most probable one; 0 keeps all.
    pub min_p: f32,
    /// Keep this many tokens; 0 keeps all.
    pub top_k: u32,
    /// Divides positive logits, multiplies negative ones, of every token counted; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from tokens that were generated.
    pub presence_penalty: f32,
    /// Subtracted for each time a token was generated.
    pub frequency_penalty: f32,
}

/// What changes a row's logits before the choice. Tokens outside the vocabulary are ignored.
#[derive(Clone, Copy, Debug)]
pub struct Adjustments<'a, C, B> {
    /// (token, times generated) of every token seen, each once.
    pub counts: C,
    /// (token, value added).
    pub bias: B,
    /// One bit a token, little end first: 1 is allowed. Empty allows all.
    pub mask: &'a [u32],
}

/// A chosen token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// Its log-probability under the row's own logits.
    pub logprob: f32,
}

/// A row of logits from which a token is to be chosen.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// How.
    pub params: Params,
    /// The token's position in its sequence.
    pub position: u32,
    /// (token, times generated) of every token seen, each once.
    pub counts: Vec<(u32, u32)>,
    /// (token, value added).
    pub bias: Vec<(u32, f32)>,
    /// One bit a token, little end first: 1 is allowed, and some are. Empty allows all.
    pub mask: &'a [u32],
    /// How many of the most probable tokens are listed; at most [`MAX_TOP`].
    pub top: usize,
}

/// What a row gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The token; `None` where a logit is NaN or infinite.
    pub sampled: Option<Sampled>,
    /// The most probable tokens, best first; none where a logit is NaN or infinite.
    pub top: Vec<Sampled>,
}

/// The most entries of [`Choice::top`].
pub const MAX_TOP: usize = 20;

/// Room for choices made in host memory.
#[derive(Debug, Default)]
pub struct Scratch {
    logits: Vec<f32>,
    sampler: Sampler,
}

impl Scratch {
    /// Chooses a token for each request from its row of the logits that `fill` writes, which are `vocab` a row.
    pub fn choose(
        &mut self,
        vocab: usize,
        requests: &[Request<'_>],
        fill: impl FnOnce(&mut [f32]) -> Result<()>,
    ) -> Result<Vec<Choice>> {
        let Self { logits, sampler } = self;
        logits.resize(requests.len() * vocab, 0.0);
        fill(logits)?;
        let rows = logits.chunks_exact(vocab).zip(requests);
        let choices = rows.map(|(logits, request)| match Row::new(logits) {
            None => Choice {
                sampled: None,
                top: Vec::new(),
            },
            Some(row) => {
                let adjustments = Adjustments {
                    counts: request.counts.iter().copied(),
                    bias: request.bias.iter().copied(),
                    mask: request.mask,
                };
                Choice {
                    sampled: Some(sampler.sample(&row, &request.params, request.position, adjustments)),
                    top: row.top(request.top),
                }
            }
        });
        Ok(choices.collect())
    }
}

/// A row of logits, all finite, with what its probabilities are made of.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    logits: &'a [f32],
    maxima: Vec<f32>,
    max: f32,
    /// Natural log of the sum of `exp(logit - max)`.
    log_sum: f64,
}

impl<'a> Row<'a> {
    /// Takes in a row; `None` where it is empty or a logit is NaN or infinite.
    pub fn new(logits: &'a [f32]) -> Option<Self> {
        let mut maxima = Vec::with_capacity(logits.len().div_ceil(scan::BLOCK));
        let (max, finite) = scan::maxima(logits, &mut maxima);
        let mut sums = Vec::with_capacity(maxima.len());
        (finite && !logits.is_empty()).then(|| Self {
            logits,
            maxima,
            max,
            log_sum: scan::sums(logits, max, 1.0, &mut sums).ln(),
        })
    }

    /// A token's log-probability.
    pub fn logprob(&self, token: u32) -> f32 {
        (f64::from(self.logits[token as usize]) - f64::from(self.max) - self.log_sum) as f32
    }

    /// The `n` most probable tokens, best first, the lower token first among equals.
    pub fn top(&self, n: usize) -> Vec<Sampled> {
        filter::best(self.scan(), n)
            .into_iter()
            .map(|token| Sampled {
                token,
                logprob: self.logprob(token),
            })
            .collect()
    }

    fn scan(&self) -> scan::Row<'_> {
        scan::Row {
            values: self.logits,
            maxima: &self.maxima,
            max: self.max,
        }
    }
}

/// Chooses tokens; keeps its working memory between rows.
#[derive(Debug, Default)]
pub struct Sampler {
    adjusted: Vec<f32>,
    maxima: Vec<f32>,
    chooser: Chooser,
}

impl Sampler {
    /// Chooses the token at `position` of its sequence.
    ///
    /// A mask that allows no token of the vocabulary gives token 0: the caller checks it.
    pub fn sample<C, B>(
        &mut self,
        row: &Row<'_>,
        params: &Params,
        position: u32,
        adjustments: Adjustments<'_, C, B>,
    ) -> Sampled
    where
        C: ExactSizeIterator<Item = (u32, u32)>,
        B: ExactSizeIterator<Item = (u32, f32)>,
    {
        let plain =
            adjustments.counts.len() == 0 && adjustments.bias.len() == 0 && adjustments.mask.is_empty();
        let token = if plain {
            self.chooser.make(row.scan(), params, position)
        } else {
            adjust(&mut self.adjusted, row.logits, params, adjustments);
            let (max, _) = scan::maxima(&self.adjusted, &mut self.maxima);
            let adjusted = scan::Row {
                values: &self.adjusted,
                maxima: &self.maxima,
                max,
            };
            self.chooser.make(adjusted, params, position)
        };
        Sampled {
            token,
            logprob: row.logprob(token),
        }
    }
}

/// Working memory of a choice.
#[derive(Debug, Default)]
struct Chooser {
    sums: Vec<f32>,
    kept: Kept,
}

impl Chooser {
    /// Chooses from logits of which some may be negative infinity, but the largest is finite.
    fn make(&mut self, row: scan::Row<'_>, params: &Params, position: u32) -> u32 {
        let scale = 1.0 / params.temperature;
        if params.temperature <= 0.0 || !scale.is_finite() {
            let largest = row.blocks(row.max).flatten().find(|&(_, logit)| logit == row.max);
            return largest.map_or(0, |(token, _)| token);
        }
        let uniform = philox::uniform(params.seed, params.sequence, position);
        let filters = Filters::new(params);
        if filters.keep_all() {
            return self.draw_from_all(row, scale, uniform);
        }
        self.kept.fill(row, scale, &filters);
        draw(
            self.kept.candidates.iter().map(|c| (c.token, c.probability)),
            uniform,
        )
    }

    /// Inverts the cumulative distribution, first by blocks, then within one.
    fn draw_from_all(&mut self, row: scan::Row<'_>, scale: f32, uniform: f64) -> u32 {
        let total = scan::sums(row.values, row.max, scale, &mut self.sums);
        let mut target = uniform * total;
        let mut block = 0;
        for (i, sum) in self.sums.iter().map(|&sum| f64::from(sum)).enumerate() {
            if sum > 0.0 {
                block = i;
                if target < sum {
                    break;
                }
                target -= sum;
            }
        }
        let start = block * scan::BLOCK;
        let mut probabilities = [0f32; scan::BLOCK];
        let values = &row.values[start..row.values.len().min(start + scan::BLOCK)];
        let probabilities = &mut probabilities[..values.len()];
        probabilities.copy_from_slice(values);
        scan::exponentials(probabilities, row.max, scale);
        let within = target / f64::from(self.sums[block]);
        draw((start as u32..).zip(probabilities.iter().copied()), within)
    }
}

/// Takes the token at which the cumulative probability passes `uniform` of the total. A token of probability 0
/// is never taken while another has more.
fn draw(tokens: impl Iterator<Item = (u32, f32)> + Clone, uniform: f64) -> u32 {
    let total: f64 = tokens.clone().map(|(_, p)| f64::from(p)).sum();
    let target = uniform * total;
    let mut taken = 0;
    let mut sum = 0.0;
    for (token, p) in tokens {
        if p > 0.0 {
            taken = token;
            sum += f64::from(p);
            if sum > target {
                break;
            }
        }
    }
    taken
}

/// Writes the row's logits after penalties, bias and mask to `out`.
fn adjust<C, B>(out: &mut Vec<f32>, logits: &[f32], params: &Params, adjustments: Adjustments<'_, C, B>)
where
    C: Iterator<Item = (u32, u32)>,
    B: Iterator<Item = (u32, f32)>,
{
    out.clear();
    out.extend_from_slice(logits);
    for (token, generated) in adjustments.counts {
        if let Some(logit) = out.get_mut(token as usize) {
            let repeated = if *logit > 0.0 {
                *logit / params.repetition_penalty
            } else {
                *logit * params.repetition_penalty
            };
            let presence = if generated > 0 {
                params.presence_penalty
            } else {
                0.0
            };
            *logit = finite(repeated - presence - params.frequency_penalty * generated as f32);
        }
    }
    for (token, bias) in adjustments.bias {
        if let Some(logit) = out.get_mut(token as usize) {
            *logit = finite(*logit + bias);
        }
    }
    if !adjustments.mask.is_empty() {
        let mut words = adjustments.mask.iter();
        for logits in out.chunks_mut(u32::BITS as usize) {
            let word = words.next().copied().unwrap_or(0);
            if word != u32::MAX {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    if word >> bit & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}

fn finite(x: f32) -> f32 {
    x.clamp(f32::MIN, f32::MAX)
}
