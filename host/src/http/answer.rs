//! An answer under way: its choices, each fed by the engine, until the last one has ended.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_util::Stream;

use super::{
    choice::{Choice, Delta},
    error::ApiError,
    openai::{PromptDetails, Usage, WholeChoice},
};
use crate::{
    request::{Event, Failure, FinishReason},
    slot::RequestStream,
    text::Text,
};

/// An answer under way. Dropping it cancels what still runs.
pub struct Answer {
    choices: Vec<Running>,
    prompt_tokens: u32,
    /// Choices of each prompt.
    n: usize,
}

/// One choice with its source of tokens; none once it has ended.
pub struct Running {
    /// What the engine says, whichever generation it is of.
    pub events: Option<RequestStream<Text>>,
    /// What becomes of it.
    pub choice: Choice,
}

/// What a choice has to say.
#[derive(Debug, PartialEq)]
pub struct Step {
    /// Which choice.
    pub index: u32,
    /// Its further text.
    pub delta: Delta,
    /// Why it has ended, if so.
    pub finish: Option<FinishReason>,
}

impl Answer {
    /// An answer of these choices, `n` for each prompt in turn, to prompts of so many tokens together.
    pub fn new(choices: Vec<Running>, n: usize, prompt_tokens: u32) -> Self {
        Self {
            choices,
            prompt_tokens,
            n,
        }
    }

    /// The next step of any choice; `None` once all have ended. After an error it is over.
    pub fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Step, ApiError>>> {
        let mut pending = false;
        for (running, index) in self.choices.iter_mut().zip(0..) {
            match running.poll_step(context) {
                Poll::Pending => pending = true,
                Poll::Ready(None) => {}
                Poll::Ready(Some(Ok((delta, finish)))) => {
                    return Poll::Ready(Some(Ok(Step { index, delta, finish })));
                }
                Poll::Ready(Some(Err(error))) => {
                    self.choices.iter_mut().for_each(|choice| choice.events = None);
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(None) }
    }

    /// What it took so far.
    pub fn usage(&self) -> Usage {
        let completion_tokens = self.choices.iter().map(|running| running.choice.tokens).sum();
        let firsts = self.choices.iter().step_by(self.n.max(1));
        let cached_tokens = firsts.map(|running| running.choice.cached).sum();
        Usage {
            prompt_tokens_details: PromptDetails { cached_tokens },
            prompt_tokens: self.prompt_tokens,
            completion_tokens,
            total_tokens: self.prompt_tokens + completion_tokens,
        }
    }

    /// Waits for the end.
    pub async fn whole(&mut self) -> Result<Vec<WholeChoice>, ApiError> {
        let empty = WholeChoice {
            text: String::new(),
            logprobs: None,
            finish: FinishReason::Stop,
        };
        let mut whole = vec![empty; self.choices.len()];
        while let Some(step) = std::future::poll_fn(|context| self.poll_step(context)).await {
            let Step { index, delta, finish } = step?;
            let choice = &mut whole[index as usize];
            choice.text.push_str(&delta.text);
            if let Some(logprobs) = delta.logprobs {
                choice.logprobs.get_or_insert_default().extend(logprobs);
            }
            choice.finish = finish.unwrap_or(choice.finish);
        }
        Ok(whole)
    }
}

/// What a choice says next, and whether that was its end.
type Said = Result<(Delta, Option<FinishReason>), ApiError>;

impl Running {
    /// Takes tokens until there is something to say.
    fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<Option<Said>> {
        while let Some(events) = &mut self.events {
            let (delta, finish) = match ready!(Pin::new(events).poll_next(context)) {
                Some(Event::Started { cached }) => {
                    self.choice.cached = cached;
                    continue;
                }
                Some(Event::Token(token)) => {
                    let delta = self.choice.push(token);
                    let finish = delta.stopped.then_some(FinishReason::Stop);
                    (delta, finish)
                }
                Some(Event::Finished(reason)) => {
                    let delta = self.choice.finish();
                    let reason = if delta.stopped { FinishReason::Stop } else { reason };
                    (delta, Some(reason))
                }
                Some(Event::Failed(failure)) => return Poll::Ready(Some(Err(ApiError::failed(failure)))),
                // The stream has followed it.
                Some(Event::Moved(_)) => return Poll::Ready(Some(Err(ApiError::failed(Failure::Draining)))),
                // A stream ends with one of the two above.
                None => return Poll::Ready(Some(Err(ApiError::internal("an engine's stream has no end")))),
            };
            if finish.is_some() {
                self.events = None;
            }
            if finish.is_some() || !delta.is_empty() {
                return Poll::Ready(Some(Ok((delta, finish))));
            }
        }
        Poll::Ready(None)
    }
}
