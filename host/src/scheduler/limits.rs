//! What a generation can take at all: checked before a request enters the line.

use crate::request::{Refused, Request};
use met_backend_api::ModelInfo;
use std::time::Duration;

/// Most entries of [`Request::top_logprobs`].
pub const MAX_TOP_LOGPROBS: u32 = 20;

/// Sizes that the scheduler works within. Constant for a generation's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most tokens of one sequence.
    pub context: u32,
    /// Tokens a KV block holds.
    pub block_size: u32,
    /// KV blocks in all.
    pub block_count: u32,
    /// Tokens are `0..vocab_size`.
    pub vocab_size: u32,
    /// Most sequences that hold blocks at a time; each has at most one row in a step.
    pub max_running: u32,
    /// Most new tokens of a step.
    pub max_batch_tokens: u32,
    /// Bytes of a KV block.
    pub block_bytes: u64,
    /// Whether there is host memory to keep blocks in.
    pub parks: bool,
    /// Steps that may be outstanding on the device.
    pub max_in_flight: u32,
    /// Slots of recurrent state; 0 for models without.
    pub state_slots: u32,
    /// Bytes of one.
    pub state_bytes: u64,
    /// Snapshots of recurrent state.
    pub snapshot_slots: u32,
    /// Most sessions that are kept at a time.
    pub max_sessions: u32,
    /// How long a session is kept after its last turn.
    pub session_ttl: Duration,
}

/// Sessions that are kept at a time where nobody says otherwise.
pub const MAX_SESSIONS: u32 = 256;
/// How long a session is kept after its last turn where nobody says otherwise.
pub const SESSION_TTL: Duration = Duration::from_secs(600);

impl Limits {
    /// The limits of a loaded model; an error where one of its sizes leaves nothing to serve with.
    pub fn of(model: &ModelInfo) -> Result<Self, String> {
        // Each that runs holds a slot of state.
        let slots = match model.state_slots {
            0 => u32::MAX,
            slots => slots,
        };
        let limits = Self {
            context: model.context_length,
            block_size: model.block_size,
            block_count: model.block_count,
            vocab_size: model.vocab_size,
            max_running: model.max_rows.min(model.max_batch_tokens).min(slots),
            max_batch_tokens: model.max_batch_tokens,
            block_bytes: model.block_bytes,
            parks: true,
            max_in_flight: model.max_in_flight,
            state_slots: model.state_slots,
            state_bytes: model.state_bytes,
            snapshot_slots: if model.state_slots == 0 {
                0
            } else {
                model.snapshot_slots
            },
            max_sessions: MAX_SESSIONS,
            session_ttl: SESSION_TTL,
        };
        let sizes = [
            ("context_length", limits.context),
            ("block_size", limits.block_size),
            ("block_count", limits.block_count),
            ("vocab_size", limits.vocab_size),
            ("max_rows", model.max_rows),
            ("max_batch_tokens", limits.max_batch_tokens),
            ("max_in_flight", limits.max_in_flight),
        ];
        match sizes.iter().find(|(_, size)| *size == 0) {
            Some((name, _)) => Err(format!("the backend reports a model whose {name} is 0")),
            None => Ok(limits),
        }
    }

    /// Most tokens, prompt and output, that one sequence may have.
    pub fn longest(&self) -> u32 {
        let pool = u64::from(self.block_size) * u64::from(self.block_count);
        self.context.min(u32::try_from(pool).unwrap_or(u32::MAX))
    }

    /// Whether `request` can be served at some time, whatever else runs.
    pub fn check(&self, request: &Request) -> Result<(), Refused> {
        let invalid = |message: String| Err(Refused::Invalid(message));
        let Request {
            prompt,
            sampling,
            bias,
            ..
        } = request;
        if prompt.is_empty() {
            return invalid("the prompt has no tokens".into());
        }
        if request.max_tokens == 0 {
            return invalid("max_tokens is 0: nothing is to be generated".into());
        }
        let generated = request.generated as usize;
        if generated >= prompt.len() || request.generated >= request.max_tokens {
            return invalid("the request has generated all that it asked for".into());
        }
        let asked = prompt.len() - generated;
        if asked as u64 + u64::from(request.max_tokens) > u64::from(self.longest()) {
            return Err(Refused::TooLong {
                prompt: u32::try_from(asked).unwrap_or(u32::MAX),
                max_tokens: request.max_tokens,
                context: self.longest(),
            });
        }
        let mut tokens = prompt.iter().chain(bias.iter().map(|(token, _)| token));
        if let Some(token) = tokens.find(|token| **token >= self.vocab_size) {
            return invalid(format!(
                "token {token} is not among the model's {}",
                self.vocab_size
            ));
        }
        if request
            .top_logprobs
            .is_some_and(|top| top > MAX_TOP_LOGPROBS.min(self.vocab_size))
        {
            return invalid(format!(
                "at most {MAX_TOP_LOGPROBS} log-probabilities can be listed"
            ));
        }
        let numbers = [
            sampling.temperature,
            sampling.top_p,
            sampling.min_p,
            sampling.repetition_penalty,
            sampling.presence_penalty,
            sampling.frequency_penalty,
        ];
        if numbers
            .iter()
            .chain(bias.iter().map(|(_, bias)| bias))
            .any(|number| !number.is_finite())
        {
            return invalid("a sampling parameter is not a finite number".into());
        }
        Ok(())
    }
}
