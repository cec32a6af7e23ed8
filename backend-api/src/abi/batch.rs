//! One step: a ragged batch in, tokens and logits out.

use abi_stable::{
    StableAbi,
    std_types::{ROption, RSlice, RSliceMut},
};

/// Names a submitted step. Counts up from 1 within a model.
pub type Ticket = u64;

/// How a row's next token is chosen.
///
/// Order of operations: penalties and bias on the logits, then the mask, then temperature, top-k,
/// top-p, min-p, and a draw. Temperature 0 takes the largest logit (the lowest token id among equals).
/// The draw's random number is a function of (`seed`, `sequence`, position of the new token) alone.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Key of the counter-based random numbers.
    pub seed: u64,
    /// Tells apart sequences that share a seed (the choices of one request).
    pub sequence: u64,
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the smallest set of tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less probable than this share of the most probable one; 0 keeps all.
    pub min_p: f32,
    /// Keep this many tokens; 0 keeps all.
    pub top_k: u32,
    /// Divides positive logits, multiplies negative ones, of every token in [`Row::counts`]; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from tokens that were generated.
    pub presence_penalty: f32,
    /// Subtracted for each time a token was generated.
    pub frequency_penalty: f32,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            seed: 0,
            sequence: 0,
            temperature: 0.0,
            top_p: 1.0,
            min_p: 0.0,
            top_k: 0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
        }
    }
}

/// How often a token has been seen, for the penalties.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenCount {
    /// The token.
    pub token: u32,
    /// Times it was generated; 0 where it stands in the prompt alone.
    pub generated: u32,
}

/// A value added to a token's logit.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq)]
pub struct TokenBias {
    /// The token.
    pub token: u32,
    /// What is added.
    pub bias: f32,
}

/// What a row gives back.
#[repr(u8)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Nothing: a chunk of a prompt that goes on.
    Nothing,
    /// A sampled token, its log-probability and those of the top [`Row::top_logprobs`].
    Token,
    /// The logits after the row's last token, before any penalty.
    Logits,
    /// The logits after each of the row's tokens.
    AllLogits,
}

/// "The token that row `row` of step `ticket` sampled", as an input that never leaves the device.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledBy {
    /// A step that was submitted before this one.
    pub ticket: Ticket,
    /// Its row.
    pub row: u32,
}

/// One sequence's part of a step: `n ≥ 1` new tokens.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct Row<'a> {
    /// The new tokens. Empty where `input` is set: then the row is that one token.
    pub tokens: RSlice<'a, u32>,
    /// Takes the row's only token from an earlier step.
    pub input: ROption<SampledBy>,
    /// Position of the first new token; what stands before it is in the blocks.
    pub position: u32,
    /// The sequence's block table, long enough for the new tokens.
    pub blocks: RSlice<'a, u32>,
    /// Slot of the recurrent state, or [`crate::NO_SLOT`] for models without. The sequence holds the slot from its first
    /// row until [`crate::abi::Model::free_state`]. A row at position 0 begins it anew, whatever it held; another must be at
    /// the position that the slot is at, one after its last row's. Two rows of a step can't have the same.
    pub state_slot: u32,
    /// What to give back.
    pub want: Want,
    /// With [`Want::Token`]: how many of the most probable tokens to list, at most 20. Log-probabilities
    /// are of the raw logits, before penalties and temperature.
    pub top_logprobs: u32,
    /// How to choose the token.
    pub sampling: Sampling,
    /// Tokens seen so far, each once; empty where no penalty is used.
    pub counts: RSlice<'a, TokenCount>,
    /// Biases, each token once.
    pub bias: RSlice<'a, TokenBias>,
    /// One bit a token, little end first: 1 is allowed. Empty allows all.
    pub mask: RSlice<'a, u32>,
}

/// A step.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Its rows; at most [`crate::ModelInfo::max_rows`] of them with at most
    /// [`crate::ModelInfo::max_batch_tokens`] tokens in all.
    pub rows: RSlice<'a, Row<'a>>,
}

/// A token with its log-probability.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// Its natural-log probability.
    pub logprob: f32,
}

/// What a row with [`Want::Token`] gave; default for the others.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug, Default, PartialEq)]
pub struct RowOutput {
    /// The token and its log-probability under the raw logits.
    pub sampled: TokenLogprob,
    /// Whether a logit of the row was NaN or infinite: the token has no meaning then.
    pub not_finite: bool,
    /// Entries written to [`BatchOutput::top`] for this row.
    pub top: u32,
}

/// The caller's memory for a step's results. A slice that is too short is an `invalid` error.
#[repr(C)]
#[derive(StableAbi)]
pub struct BatchOutput<'a> {
    /// One a row.
    pub rows: RSliceMut<'a, RowOutput>,
    /// `top_logprobs` entries for each row that asked for them, rows in order, best first.
    pub top: RSliceMut<'a, TokenLogprob>,
    /// `vocab_size` values for each row of [`Want::Logits`] and for each token of [`Want::AllLogits`],
    /// rows in order.
    pub logits: RSliceMut<'a, f32>,
}
