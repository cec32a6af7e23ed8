//! Log-probabilities in OpenAI's two shapes.

use std::{collections::BTreeMap, fmt::Write};

use serde::Serialize;

/// A generated token with its log-probability and those of the tokens that were most probable in its place.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token and its own.
    pub token: Logprob,
    /// The most probable ones, best first.
    pub top: Vec<Logprob>,
    /// Where its text begins in the answer, in characters.
    pub offset: usize,
}

/// A token's text and natural-log probability.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprob {
    /// The token's text; a token may be a part of a character.
    pub bytes: Vec<u8>,
    /// Its natural-log probability.
    pub logprob: f32,
}

/// Chat's shape: one entry a token, each with its bytes.
#[derive(Serialize)]
pub struct ChatLogprobs {
    content: Vec<ChatEntry>,
    refusal: Option<()>,
}

#[derive(Serialize)]
struct ChatEntry {
    #[serde(flatten)]
    token: ChatToken,
    top_logprobs: Vec<ChatToken>,
}

#[derive(Serialize)]
struct ChatToken {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl ChatLogprobs {
    /// The shape of these tokens.
    pub fn new(tokens: &[TokenLogprob]) -> Self {
        let token = |from: &Logprob| ChatToken {
            token: readable(&from.bytes, ""),
            logprob: finite(from.logprob),
            bytes: from.bytes.clone(),
        };
        let entry = |from: &TokenLogprob| ChatEntry {
            token: token(&from.token),
            top_logprobs: from.top.iter().map(token).collect(),
        };
        Self {
            content: tokens.iter().map(entry).collect(),
            refusal: None,
        }
    }
}

/// The shape of plain completions: parallel lists, where the token itself is always among the most probable ones.
#[derive(Serialize)]
pub struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<BTreeMap<String, f32>>,
    text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// The shape of these tokens.
    pub fn new(tokens: &[TokenLogprob]) -> Self {
        let text = |from: &Logprob| readable(&from.bytes, "bytes:");
        let top = |from: &TokenLogprob| {
            let all = from.top.iter().rev().chain([&from.token]);
            all.map(|token| (text(token), finite(token.logprob))).collect()
        };
        Self {
            tokens: tokens.iter().map(|t| text(&t.token)).collect(),
            token_logprobs: tokens.iter().map(|t| finite(t.token.logprob)).collect(),
            top_logprobs: tokens.iter().map(top).collect(),
            text_offset: tokens.iter().map(|t| t.offset).collect(),
        }
    }
}

/// The token's text, or its bytes as `\xNN` after `mark` where they are no whole text.
fn readable(bytes: &[u8], mark: &str) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold(mark.to_owned(), |mut text, byte| {
            // Writing to a string doesn't fail.
            let _ = write!(text, "\\x{byte:02x}");
            text
        }),
    }
}

/// JSON has no infinity: OpenAI's stand-in for a probability of zero.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}
