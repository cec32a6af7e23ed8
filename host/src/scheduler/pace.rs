//! How many prompt tokens a step may carry, so that running streams don't stall behind a long prompt.
//!
//! The device's speed is learnt from the steps' durations, which whoever has a clock passes in.

use std::time::Duration;

/// Aims for steps of a given duration.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    /// Seconds of a step without prompt tokens.
    decode: Option<f32>,
    /// Seconds that a prompt token adds to a step.
    per_token: Option<f32>,
    max_tokens: u32,
}

/// What a step should take while streams are running.
const TARGET_S: f32 = 0.1;
/// What it may take while nothing else runs: a cancel and a new request wait for that long.
const TARGET_ALONE_S: f32 = 0.4;
/// The budgets before the first measurement.
const FIRST: u32 = 64;
const FIRST_ALONE: u32 = 256;
/// The least a step carries, however slow the device is: prompts must come to their end.
const LEAST: u32 = 16;

impl Pace {
    pub fn new(max_tokens: u32) -> Self {
        Self {
            decode: None,
            per_token: None,
            max_tokens,
        }
    }

    /// Prompt tokens for the next step; `decoding` tells whether streams are running.
    pub fn budget(&self, decoding: bool) -> u32 {
        let tokens = match (self.per_token, decoding) {
            (None, true) => FIRST,
            (None, false) => FIRST_ALONE,
            (Some(cost), true) => {
                // Half of it at least: where decoding alone takes that long, prompts must not starve.
                let left = TARGET_S - self.decode.unwrap_or(0.0);
                (left.max(TARGET_S / 2.0) / cost) as u32
            }
            (Some(cost), false) => (TARGET_ALONE_S / cost) as u32,
        };
        tokens.max(LEAST).min(self.max_tokens)
    }

    /// Seconds that so many prompt tokens take, once the device is known.
    pub fn seconds_of(&self, tokens: u32) -> Option<f64> {
        Some(f64::from(self.per_token?) * f64::from(tokens))
    }

    /// Learns from a step that took `elapsed`.
    pub fn observe(&mut self, prompt_tokens: u32, decoding: bool, elapsed: Duration) {
        let seconds = elapsed.as_secs_f32();
        if prompt_tokens == 0 {
            self.decode = Some(smooth(self.decode, seconds));
        } else if prompt_tokens >= LEAST {
            let decode = if decoding { self.decode.unwrap_or(0.0) } else { 0.0 };
            // The decode part is a guess: never let it explain the whole step.
            let cost = (seconds - decode).max(seconds / 4.0) / prompt_tokens as f32;
            self.per_token = Some(smooth(self.per_token, cost.max(1e-9)));
        }
    }
}

/// Follows a change within a few steps.
fn smooth(old: Option<f32>, new: f32) -> f32 {
    old.map_or(new, |old| old + (new - old) * 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    proptest! {
        /// Once the device is known, a step takes no longer than the target, and uses it.
        #[test]
        fn steps_of_a_running_stream_stay_near_the_target(per_token in 1e-4..4e-3f32, decode in 0.0..0.06f32) {
            let mut pace = Pace::new(100_000);
            let step = |tokens: u32| decode + per_token * tokens as f32;
            pace.observe(0, true, Duration::from_secs_f32(decode));
            let tokens = pace.budget(true);
            pace.observe(tokens, true, Duration::from_secs_f32(step(tokens)));
            for _ in 0..50 {
                let tokens = pace.budget(true);
                let seconds = step(tokens);
                prop_assert!(tokens == LEAST || seconds < TARGET_S * 1.3, "{seconds} s for {tokens} tokens");
                prop_assert!(seconds > TARGET_S * 0.7, "{seconds} s for {tokens} tokens");
                pace.observe(tokens, true, Duration::from_secs_f32(seconds));
            }
        }
    }

    #[test]
    fn prompts_get_their_share_beside_slow_decoding() {
        let mut pace = Pace::new(512);
        pace.observe(0, true, Duration::from_secs(1));
        pace.observe(100, false, Duration::from_millis(100));
        assert_eq!(pace.budget(true), 50);
    }

    #[test]
    fn prompts_advance_on_the_slowest_device_and_fill_the_batch_of_the_fastest() {
        let mut pace = Pace::new(512);
        pace.observe(128, false, Duration::from_secs(100));
        assert_eq!(pace.budget(true), LEAST);
        let mut pace = Pace::new(512);
        pace.observe(128, false, Duration::ZERO);
        assert_eq!((pace.budget(true), pace.budget(false)), (512, 512));
    }
}
