//! Chooses a token from a row of logits in host memory.
//!
//! Penalties and bias, then the mask, then temperature, top-k, top-p, min-p, and a draw whose random number
//! depends on (seed, sequence, position) alone. Nothing here depends on the batch or the machine.

mod filter;
mod philox;
mod scan;

#[cfg(test)]
mod tests;

use filter::{Candidate, Filters};

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

/// A row of logits, all finite, with what its probabilities are made of.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    logits: &'a [f32],
    max: f32,
    /// Natural log of the sum of `exp(logit - max)`.
    log_sum: f64,
}

impl<'a> Row<'a> {
    /// Takes in a row; `None` where it is empty or a logit is NaN or infinite.
    pub fn new(logits: &'a [f32]) -> Option<Self> {
        let max = scan::finite_max(logits)?;
        Some(Self {
            logits,
            max,
            log_sum: scan::sum_exp(logits, max, 1.0).ln(),
        })
    }

    /// A token's log-probability.
    pub fn logprob(&self, token: u32) -> f32 {
        (f64::from(self.logits[token as usize]) - f64::from(self.max) - self.log_sum) as f32
    }

    /// The `n` most probable tokens, best first, the lower token first among equals.
    pub fn top(&self, n: usize) -> Vec<Sampled> {
        filter::best(self.logits, n)
            .into_iter()
            .map(|token| Sampled {
                token,
                logprob: self.logprob(token),
            })
            .collect()
    }
}

/// Chooses tokens; keeps its working memory between rows.
#[derive(Debug, Default)]
pub struct Sampler {
    adjusted: Vec<f32>,
    probabilities: Vec<f32>,
    candidates: Vec<Candidate>,
    order: Vec<Candidate>,
}

impl Sampler {
    /// Chooses the token at `position` of its sequence.
    ///
    /// A mask that allows no token of the vocabulary is as good as none: the caller checks it.
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
            self.choose(row.logits, row.max, params, position)
        } else {
            let mut adjusted = std::mem::take(&mut self.adjusted);
            let max = adjust(&mut adjusted, row.logits, params, adjustments);
            let token = self.choose(&adjusted, max, params, position);
            self.adjusted = adjusted;
            token
        };
        Sampled {
            token,
            logprob: row.logprob(token),
        }
    }

    /// Chooses from logits of which some may be negative infinity, but `max` is not.
    fn choose(&mut self, logits: &[f32], max: f32, params: &Params, position: u32) -> u32 {
        let scale = 1.0 / params.temperature;
        if params.temperature <= 0.0 || !scale.is_finite() {
            return scan::first_of(logits, max);
        }
        let uniform = philox::uniform(params.seed, params.sequence, position);
        let filters = Filters::new(params);
        if filters.keep_all() {
            return self.draw_from_all(logits, max, scale, uniform);
        }
        filter::keep(
            logits,
            max,
            scale,
            &filters,
            &mut self.candidates,
            &mut self.order,
        );
        draw(self.candidates.iter().map(|c| (c.token, c.probability)), uniform)
    }

    /// Inverts the cumulative distribution, first by blocks, then within one.
    fn draw_from_all(&mut self, logits: &[f32], max: f32, scale: f32, uniform: f64) -> u32 {
        self.probabilities.resize(logits.len(), 0.0);
        let sums = scan::exp(logits, max, scale, &mut self.probabilities);
        let mut target = uniform * sums.iter().sum::<f64>();
        let mut last = 0;
        for (block, &sum) in sums.iter().enumerate() {
            if sum > 0.0 {
                last = block;
                if target < sum {
                    break;
                }
                target -= sum;
            }
        }
        let start = last * scan::BLOCK;
        let end = logits.len().min(start + scan::BLOCK);
        let block = (start as u32..).zip(self.probabilities[start..end].iter().copied());
        draw(block, target / sums[last])
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

/// Writes the row's logits after penalties, bias and mask to `out` and returns the largest.
fn adjust<C, B>(
    out: &mut Vec<f32>,
    logits: &[f32],
    params: &Params,
    adjustments: Adjustments<'_, C, B>,
) -> f32
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
    scan::max(out)
}

fn finite(x: f32) -> f32 {
    x.clamp(f32::MIN, f32::MAX)
}
