//! `POST /v1/chat/completions` and `POST /v1/completions`: from a body to an answer.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};

use tokio::sync::Semaphore;

use super::{
    AppState,
    answer::{Answer, Running},
    body::read_json,
    choice::{Choice, Logprobs},
    error::ApiError,
    openai::{ChatRequest, CompletionRequest, Form, Head, Options, Prompt},
    sse,
};
use crate::{
    engine::EngineInfo,
    request::{Refused, Request, Sampling},
    slot::{Lease, LeaseError},
    text::{Chat, Detokenizer, Special, StopMatcher, Text, TextError},
};

/// Bodies up to this size are tokenised where they were read: it takes under a millisecond.
const INLINE_BYTES: usize = 16 << 10;

/// Larger ones are tokenised so many at a time: the cores are the model's.
static LONG_TEXTS: Semaphore = Semaphore::const_new(2);

/// `POST /v1/chat/completions`
pub async fn chat(
    State(state): State<Arc<AppState>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = read_json(&headers, body).await?;
    let ChatRequest {
        model,
        messages,
        logprobs,
        options,
    } = ChatRequest::parse(&body)?;
    let lease = lease(&state, &model).await?;
    let text = lease.text().clone();
    let size = body.len();
    let chat = Chat {
        messages,
        ..Chat::default()
    };
    let prompt = off_thread(size, move || text.prompt(&chat)).await?;
    let prompt = prompt.map_err(|error| text_error(error, "messages"))?;
    let job = Job {
        form: Form::Chat,
        param: "messages",
        prompts: vec![prompt],
        logprobs,
        options,
    };
    job.answer(lease).await
}

/// `POST /v1/completions`
pub async fn complete(
    State(state): State<Arc<AppState>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = read_json(&headers, body).await?;
    let CompletionRequest {
        model,
        prompts,
        logprobs,
        options,
    } = CompletionRequest::parse(&body)?;
    let lease = lease(&state, &model).await?;
    let text = lease.text().clone();
    let encode = move || {
        let encode = |prompt| match prompt {
            Prompt::Text(prompt) => text.encode(&prompt, Special::Text, true),
            Prompt::Tokens(tokens) => Ok(tokens),
        };
        prompts.into_iter().map(encode).collect::<Result<Vec<_>, _>>()
    };
    let prompts = off_thread(body.len(), encode)
        .await?
        .map_err(|error| text_error(error, "prompt"))?;
    let job = Job {
        form: Form::Completion,
        param: "prompt",
        prompts,
        logprobs,
        options,
    };
    job.answer(lease).await
}

/// A request whose prompts are tokens.
struct Job {
    form: Form,
    /// The parameter that holds the prompts.
    param: &'static str,
    prompts: Vec<Vec<u32>>,
    logprobs: Option<u32>,
    options: Options,
}

impl Job {
    async fn answer(self, lease: Lease<Text>) -> Result<Response, ApiError> {
        self.check(&lease)?;
        let prompt_tokens = self.prompts.iter().map(|prompt| prompt.len() as u32).sum();
        let info = lease.engine().info();
        let head = Head::new(
            self.form,
            info.name.clone(),
            fingerprint(info),
            self.options.include_usage,
        );
        let mut answer = Answer::new(self.submit(lease)?, self.options.n as usize, prompt_tokens);
        if self.options.stream {
            return sse::respond(answer, head).await;
        }
        let whole = answer.whole().await?;
        let json = head.whole(&whole, answer.usage()).map_err(ApiError::internal)?;
        let content_type = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        Ok((content_type, json).into_response())
    }

    /// Checks what only the model can tell.
    fn check(&self, lease: &Lease<Text>) -> Result<(), ApiError> {
        let vocabulary = lease.engine().info().limits.vocab_size;
        if self.prompts.iter().any(Vec::is_empty) {
            return Err(ApiError::invalid_value(
                self.param,
                format!("'{}' has no tokens", self.param),
            ));
        }
        let unknown = |token: u32| token >= vocabulary;
        if let Some(token) = self
            .prompts
            .iter()
            .flatten()
            .copied()
            .find(|&token| unknown(token))
        {
            let message = format!("token {token} is not one of the model's {vocabulary}");
            return Err(ApiError::invalid_value(self.param, message));
        }
        if let Some((token, _)) = self.options.bias.iter().find(|(token, _)| unknown(*token)) {
            let message = format!("token {token} is not one of the model's {vocabulary}");
            return Err(ApiError::invalid_value("logit_bias", message));
        }
        Ok(())
    }

    /// Hands every choice to the engine: those of the first prompt come first.
    fn submit(&self, lease: Lease<Text>) -> Result<Vec<Running>, ApiError> {
        let longest = lease.engine().info().limits.longest();
        let (mut requests, mut choices) = (Vec::new(), Vec::new());
        for prompt in &self.prompts {
            let room = longest.saturating_sub(prompt.len() as u32).max(1);
            for sequence in 0..self.options.n {
                requests.push(Request {
                    prompt: prompt.clone(),
                    generated: 0,
                    max_tokens: self.options.max_tokens.unwrap_or(room),
                    sampling: Sampling {
                        sequence: u64::from(sequence),
                        ..self.options.sampling
                    },
                    stop_tokens: match self.options.ignore_eos {
                        true => Vec::new(),
                        false => lease.text().stop_tokens().to_vec(),
                    },
                    top_logprobs: self.logprobs,
                    bias: self.options.bias.clone(),
                    // One of several choices is what the conversation goes on from, and the first is as good.
                    session: self.options.session.clone().filter(|_| sequence == 0),
                    kept: None,
                });
                choices.push(self.choice(&lease)?);
            }
        }
        let streams = lease.submit(requests).map_err(|refused| self.refused(refused))?;
        let running = streams.into_iter().zip(choices).map(|(events, choice)| Running {
            events: Some(events),
            choice,
        });
        Ok(running.collect())
    }

    fn choice(&self, lease: &Lease<Text>) -> Result<Choice, ApiError> {
        let vocabulary = lease.text().vocabulary();
        let detokenizer = match self.form {
            Form::Chat => Detokenizer::new(vocabulary.clone()),
            Form::Completion => Detokenizer::continuing(vocabulary.clone()),
        };
        let stops = StopMatcher::new(&self.options.stop).map_err(|error| text_error(error, "stop"))?;
        let logprobs = self.logprobs.map(|_| Logprobs::new(vocabulary.clone()));
        Ok(Choice::new(detokenizer, stops, logprobs))
    }

    fn refused(&self, refused: Refused) -> ApiError {
        ApiError::refused(refused, self.param)
    }
}

/// A hold on the model of this name. Waits for it where it is being swapped.
async fn lease(state: &AppState, model: &str) -> Result<Lease<Text>, ApiError> {
    state.slots.enter(model).await.map_err(|error| {
        let message = error.to_string();
        let seconds = |after: Duration| after.as_secs().max(1) as u32;
        match error {
            LeaseError::UnknownModel { .. } => ApiError::model_not_found(model),
            LeaseError::NotReady { retry_after } => {
                ApiError::unavailable("model_not_ready", message, seconds(retry_after))
            }
            LeaseError::Full { retry_after } => {
                ApiError::unavailable("too_many_held", message, seconds(retry_after))
            }
        }
    })
}

/// Names what the answer's tokens depend on besides the request: the weights, the kind of device, and our version.
fn fingerprint(info: &EngineInfo) -> String {
    let mut hasher = DefaultHasher::new();
    (
        info.model.weights_identity.as_str(),
        info.device.kind.as_str(),
        env!("CARGO_PKG_VERSION"),
    )
        .hash(&mut hasher);
    format!("fp_{:016x}", hasher.finish())
}

/// Runs the work on `bytes` of text, elsewhere if it takes so long that streams would feel it.
async fn off_thread<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    if bytes <= INLINE_BYTES {
        return Ok(work());
    }
    let _permit = LONG_TEXTS.acquire().await.map_err(ApiError::internal)?;
    tokio::task::spawn_blocking(work)
        .await
        .map_err(ApiError::internal)
}

/// What a text is refused for; `param` is where it stands.
fn text_error(error: TextError, param: &str) -> ApiError {
    let message = error.to_string();
    match error {
        TextError::Request(_) => ApiError::invalid_value(param, message),
        // No repetition helps, so this is no status of those that client libraries retry.
        TextError::Template(_) => {
            ApiError::unsupported(param, message + "; /v1/completions needs no template")
        }
        TextError::NoThread(_) => ApiError::unavailable("no_thread", message, 1),
        TextError::Checkpoint(_) => ApiError::internal(error),
    }
}
