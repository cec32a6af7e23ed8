//! A request in tokens, and the events that answer it: the words that HTTP, the slots, the engine and the
//! scheduler share.

use crate::kept::Kept;
use std::sync::Arc;

/// How the next token is chosen. Fields as in [`met_backend_api::Sampling`].
pub use met_backend_api::Sampling;

/// What a client asks for, in tokens. One request gives one sequence; a choice of `n` is a request of its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// The prompt; at least one token. What was generated before stands at its end.
    pub prompt: Vec<u32>,
    /// How many tokens at the end of `prompt` were generated, and given to the client, before: more than 0 in
    /// a request that goes on elsewhere.
    pub generated: u32,
    /// Most tokens to generate, those before included; more than `generated`. Prompt and output together fit
    /// the model's context.
    pub max_tokens: u32,
    /// How to choose tokens.
    pub sampling: Sampling,
    /// Tokens that end the output; the one that did is not emitted.
    pub stop_tokens: Vec<u32>,
    /// How many of the most probable tokens to report with each, at most 20; `None` reports no
    /// log-probability either.
    pub top_logprobs: Option<u32>,
    /// Values added to logits: (token, bias), each token once.
    pub bias: Vec<(u32, f32)>,
    /// The session whose turn this is: what was computed for it is kept for the next turn.
    pub session: Option<SessionId>,
    /// What another generation with the same kernels has computed of it: it need not be computed again.
    pub kept: Option<Kept>,
}

/// Names a conversation within a generation; given by the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionId(Arc<str>);

impl SessionId {
    /// Most characters.
    pub const LONGEST: usize = 128;

    /// A name of 1 to [`LONGEST`](Self::LONGEST) visible ASCII characters; `None` where it is something else.
    pub fn new(name: &str) -> Option<Self> {
        let fits =
            (1..=Self::LONGEST).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then(|| Self(name.into()))
    }
}

/// A generated token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Natural-log probability under the raw logits.
    pub logprob: f32,
    /// The most probable tokens with theirs, best first, as many as were asked for.
    pub top: Vec<(u32, f32)>,
}

/// Why an output ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token came.
    Stop,
    /// `max_tokens`, or the context, was reached.
    Length,
}

/// Why a request failed after it was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The client took the events too slowly, so its sequence was given up.
    SlowClient,
    /// The server stops or swaps, and the request can't go on elsewhere.
    Draining,
    /// The server stops or swaps, and the deadline for running requests has passed while it stood there.
    Cut(Stage),
    /// The backend failed; the message is for the operator's log, the client is told to try again.
    Backend(String),
    /// The request can't be computed whatever happens (the backend's word for why).
    Invalid(String),
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// In the line; nothing of it was computed.
    Waiting,
    /// Its prompt is being computed.
    Prefilling,
    /// It generates.
    Generating,
    /// It gave way to others; its blocks are kept in host memory.
    Swapped,
    /// It gave way to others; its blocks are to be computed again.
    Preempted,
}

impl Stage {
    /// What its client is told.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Waiting => "it waited in line and was not begun",
            Self::Prefilling => "its prompt was being read",
            Self::Generating => "it was being answered",
            Self::Swapped => "it waited for memory, with what it had set aside",
            Self::Preempted => "it waited for memory",
        }
    }
}

/// What a request's stream carries: `Started`, tokens, then one of the others.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The first step that gives a token is done; comes once, before anything else.
    Started {
        /// Tokens of the prompt that were found in the cache, and not computed.
        cached: u32,
    },
    /// The next token.
    Token(Token),
    /// The end.
    Finished(FinishReason),
    /// The end, without success.
    Failed(Failure),
    /// The end here: the request, with all that it has given, is to go on in another generation.
    Moved(Box<Request>),
}

/// Why a request was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It can never fit: the client must shorten it.
    #[error(
        "{prompt} prompt tokens and {max_tokens} to generate don't fit the {context} tokens that this model serves"
    )]
    TooLong {
        /// Tokens of the prompt.
        prompt: u32,
        /// Tokens asked for.
        max_tokens: u32,
        /// Tokens that one sequence may have.
        context: u32,
    },
    /// The waiting line is full: try again after this many seconds.
    #[error("too many requests are waiting; try again in {retry_after_s} s")]
    Full {
        /// Seconds.
        retry_after_s: u32,
    },
    /// The generation takes no new requests.
    #[error("the model is being stopped or swapped; try again shortly")]
    Draining,
    /// A value is outside of what the model has (a token id, say).
    #[error("{0}")]
    Invalid(String),
}
