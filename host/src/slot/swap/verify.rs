//! The trial of a candidate before it serves: what it generates must make sense.

use super::Verify;
use crate::{
    engine::EventStream,
    request::{Event, Failure, Request, Token},
    slot::{Generation, ModelText},
};
use std::time::Duration;

/// Continued by every candidate, together.
const PROMPTS: [&str; 2] = ["The capital of France is", "1, 2, 3, 4, 5,"];
/// Tokens of a continuation: one of the prefill, and two steps of decoding, of which the second takes what the first
/// sampled.
const TOKENS: u32 = 3;
/// Tokens of a continuation that is compared with a text, at most.
const MOST_TOKENS: u32 = 256;
/// How long it may take.
const DEADLINE: Duration = Duration::from_secs(60);
/// How often it is asked whether it should stop.
const POLL: Duration = Duration::from_millis(20);

/// Tries a generation that nobody else uses yet. Blocks the calling thread; stops soon after `is_cancelled`.
pub(super) fn verify<T: ModelText>(
    generation: &Generation<T>,
    how: &Verify,
    is_cancelled: impl Fn() -> bool,
) -> Result<(), String> {
    if *how == Verify::Skip {
        return Ok(());
    }
    let mut trials: Vec<(&str, &str)> = PROMPTS.map(|prompt| (prompt, "")).to_vec();
    if let Verify::Text { prompt, expect } = how {
        trials.push((prompt, expect));
    }
    let mut streams = Vec::new();
    for (prompt, expect) in &trials {
        let request = request(generation, prompt, expect)?;
        let stream = generation.engine().submit(request);
        streams.push(stream.map_err(|refused| format!("it refused the prompt {prompt:?}: {refused}"))?);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(|error| format!("no clock for the trial: {error}"))?;
    runtime.block_on(async {
        let trial = async {
            for ((prompt, expect), stream) in trials.into_iter().zip(streams) {
                let tokens = answer(stream)
                    .await
                    .map_err(|problem| format!("on the prompt {prompt:?} {problem}"))?;
                let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
                let text = generation.text().text(&ids);
                if !text.trim_start().starts_with(expect.trim_start()) {
                    return Err(format!(
                        "it continued {prompt:?} with {text:?}, not with {expect:?}"
                    ));
                }
            }
            Ok(())
        };
        let cancelled = async {
            while !is_cancelled() {
                tokio::time::sleep(POLL).await;
            }
        };
        tokio::select! {
            tried = trial => tried,
            () = cancelled => Err("cancelled".to_owned()),
            () = tokio::time::sleep(DEADLINE) => Err(format!("no answer within {} s", DEADLINE.as_secs())),
        }
    })
}

/// The greedy continuation of `prompt`, as long as `expect` may need.
fn request<T: ModelText>(generation: &Generation<T>, prompt: &str, expect: &str) -> Result<Request, String> {
    let limits = &generation.engine().info().limits;
    let mut tokens = generation.text().tokens(prompt)?;
    // A tiny model may have few tokens, or room for few.
    tokens.retain(|token| *token < limits.vocab_size);
    tokens.truncate(limits.longest().saturating_sub(TOKENS).max(1) as usize);
    if tokens.is_empty() {
        tokens.push(0);
    }
    let room = limits.longest().saturating_sub(tokens.len() as u32).max(1);
    let wanted = TOKENS.max(expect.len() as u32).min(MOST_TOKENS);
    Ok(Request {
        prompt: tokens,
        max_tokens: wanted.min(room),
        top_logprobs: Some(1.min(limits.vocab_size)),
        ..Request::default()
    })
}

/// The tokens of a stream that ends well. The scheduler has seen to it that each is in range and that no logit is
/// without a number.
async fn answer(mut stream: EventStream) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    while let Some(event) = stream.next().await {
        match event {
            Event::Token(token) if !token.logprob.is_finite() || token.logprob > 1e-3 => {
                return Err(format!(
                    "it gave token {} the log-probability {}",
                    token.id, token.logprob
                ));
            }
            Event::Token(token) => tokens.push(token),
            Event::Started { .. } => {}
            Event::Finished(_) => return Ok(tokens),
            Event::Failed(Failure::Backend(why) | Failure::Invalid(why)) => {
                return Err(format!("it failed: {why}"));
            }
            Event::Failed(failure) => return Err(format!("it failed: {failure:?}")),
            Event::Moved(_) => return Err("it gave the request away".to_owned()),
        }
    }
    Err("its stream had no end".to_owned())
}
