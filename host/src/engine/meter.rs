//! The metrics of an engine, under the names that `/metrics` shows. Each carries the label `model`.

use crate::scheduler::Counts;
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use std::time::Duration;

/// Requests that generate, or whose prompt is being computed.
const REQUESTS_RUNNING: &str = "met_requests_running";
/// Requests in the line.
const REQUESTS_WAITING: &str = "met_requests_waiting";
/// KV blocks in use.
const KV_BLOCKS_USED: &str = "met_kv_blocks_used";
/// KV blocks in all.
const KV_BLOCKS_TOTAL: &str = "met_kv_blocks_total";
/// Of these, those that sessions pin.
const KV_BLOCKS_PINNED: &str = "met_kv_blocks_pinned";
/// Sessions whose last turn is kept.
const SESSIONS: &str = "met_sessions";
/// Slots of recurrent state held.
const STATE_SLOTS_USED: &str = "met_state_slots_used";
/// Slots of recurrent state in all.
const STATE_SLOTS_TOTAL: &str = "met_state_slots_total";
/// Snapshots of recurrent state that hold something.
const SNAPSHOTS_USED: &str = "met_state_snapshots_used";
/// Snapshots in all.
const SNAPSHOTS_TOTAL: &str = "met_state_snapshots_total";
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
    running: Gauge,
    waiting: Gauge,
    blocks_used: Gauge,
    blocks_total: Gauge,
    blocks_pinned: Gauge,
    sessions: Gauge,
    state_slots: (Gauge, Gauge),
    snapshots: (Gauge, Gauge),
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
            running: gauge!(REQUESTS_RUNNING, &[label()]),
            waiting: gauge!(REQUESTS_WAITING, &[label()]),
            blocks_used: gauge!(KV_BLOCKS_USED, &[label()]),
            blocks_total: gauge!(KV_BLOCKS_TOTAL, &[label()]),
            blocks_pinned: gauge!(KV_BLOCKS_PINNED, &[label()]),
            sessions: gauge!(SESSIONS, &[label()]),
            state_slots: (
                gauge!(STATE_SLOTS_USED, &[label()]),
                gauge!(STATE_SLOTS_TOTAL, &[label()]),
            ),
            snapshots: (
                gauge!(SNAPSHOTS_USED, &[label()]),
                gauge!(SNAPSHOTS_TOTAL, &[label()]),
            ),
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
        self.running.set(f64::from(now.prefilling + now.active));
        self.waiting
            .set(f64::from(now.waiting + now.preempted + now.swapped));
        self.blocks_used.set(f64::from(now.blocks_used));
        self.blocks_total.set(f64::from(now.blocks_total));
        self.blocks_pinned.set(f64::from(now.blocks_pinned));
        self.sessions.set(f64::from(now.sessions));
        self.state_slots.0.set(f64::from(now.state_slots_used));
        self.state_slots.1.set(f64::from(now.state_slots_total));
        self.snapshots.0.set(f64::from(now.snapshots_used));
        self.snapshots.1.set(f64::from(now.snapshots_total));
        self.prompt_tokens
            .increment(now.prompt_tokens - before.prompt_tokens);
        self.cached_tokens
            .increment(now.cached_tokens - before.cached_tokens);
        self.generated_tokens
            .increment(now.generated_tokens - before.generated_tokens);
        self.preemptions.increment(now.preemptions - before.preemptions);
    }
}
