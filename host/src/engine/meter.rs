//! What an engine counts and times, under the names that `/metrics` shows. Each carries the label `model`.

use crate::scheduler::Counts;
use metrics::{Counter, Histogram, counter, histogram};
use std::time::Duration;

/// Prompt tokens computed.
const PROMPT_TOKENS: &str = "met_prompt_tokens_total";
/// Prompt tokens that were found in the cache.
const CACHED_TOKENS: &str = "met_cached_prompt_tokens_total";
/// Tokens generated.
const GENERATED_TOKENS: &str = "met_generated_tokens_total";
/// Times that a sequence gave its blocks back and was computed again.
const PREEMPTIONS: &str = "met_preemptions_total";
/// Seconds from the arrival of a request to its first token.
const TIME_TO_FIRST_TOKEN: &str = "met_time_to_first_token_seconds";
/// Seconds from one token of a request to its next.
const INTER_TOKEN: &str = "met_inter_token_seconds";

/// Handles on one engine's metrics, bound to the recorder that is installed when it is made.
pub(super) struct Meter {
    prompt_tokens: Counter,
    cached_tokens: Counter,
    generated_tokens: Counter,
    preemptions: Counter,
    first_token: Histogram,
    inter_token: Histogram,
}

impl Meter {
    pub fn new(model: &str) -> Self {
        let model = model.to_owned();
        let label = || ("model", model.clone());
        Self {
            prompt_tokens: counter!(PROMPT_TOKENS, &[label()]),
            cached_tokens: counter!(CACHED_TOKENS, &[label()]),
            generated_tokens: counter!(GENERATED_TOKENS, &[label()]),
            preemptions: counter!(PREEMPTIONS, &[label()]),
            first_token: histogram!(TIME_TO_FIRST_TOKEN, &[label()]),
            inter_token: histogram!(INTER_TOKEN, &[label()]),
        }
    }

    pub fn first_token(&self, after: Duration) {
        self.first_token.record(after.as_secs_f64());
    }

    pub fn next_token(&self, after: Duration) {
        self.inter_token.record(after.as_secs_f64());
    }

    /// What changed from one moment to another.
    pub fn counts(&self, before: &Counts, now: &Counts) {
        self.prompt_tokens
            .increment(now.prompt_tokens - before.prompt_tokens);
        self.cached_tokens
            .increment(now.cached_tokens - before.cached_tokens);
        self.generated_tokens
            .increment(now.generated_tokens - before.generated_tokens);
        self.preemptions.increment(now.preemptions - before.preemptions);
    }
}
