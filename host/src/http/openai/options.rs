//! What chat and plain completions have in common: how to choose tokens, when to stop, what to report.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, Hasher, RandomState},
};

use serde_json::value::RawValue;

use super::fields::Fields;
use crate::{
    http::error::ApiError,
    request::{Sampling, SessionId},
    text::{MAX_STOP_BYTES, MAX_STOPS},
};

/// Most choices of one request.
pub const MAX_CHOICES: u32 = 128;
const MAX_BIASES: usize = 1024;

/// How to answer a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Answers to each prompt; at least 1.
    pub n: u32,
    /// Most tokens of an answer; `None` is as many as the context takes.
    pub max_tokens: Option<u32>,
    /// How to choose tokens.
    pub sampling: Sampling,
    /// Values added to logits.
    pub bias: Vec<(u32, f32)>,
    /// Texts that end an answer and are not part of it.
    pub stop: Vec<String>,
    /// Whether the tokens by which the model ends its answer are tokens like any other.
    pub ignore_eos: bool,
    /// Whether to answer token by token.
    pub stream: bool,
    /// Whether a stream's last chunk states the usage.
    pub include_usage: bool,
    /// The session whose turn this is.
    pub session: Option<SessionId>,
}

impl Options {
    /// Takes the common parameters.
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let sampling = Sampling {
            seed: seed(fields)?,
            sequence: 0,
            temperature: fields.number("temperature", 0.0..=2.0, 1.0)? as f32,
            // 0 keeps the most probable token alone, as the smallest number above it does.
            top_p: (fields.number("top_p", 0.0..=1.0, 1.0)? as f32).max(f32::MIN_POSITIVE),
            min_p: fields.number("min_p", 0.0..=1.0, 0.0)? as f32,
            top_k: fields
                .integer("top_k", -1..=i64::from(i32::MAX))?
                .map_or(0, |k| k.max(0) as u32),
            repetition_penalty: fields.number("repetition_penalty", 0.01..=10.0, 1.0)? as f32,
            presence_penalty: fields.number("presence_penalty", -2.0..=2.0, 0.0)? as f32,
            frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0, 0.0)? as f32,
        };
        let stream = fields.flag("stream")?;
        Ok(Self {
            n: fields.integer("n", 1..=i64::from(MAX_CHOICES))?.unwrap_or(1) as u32,
            max_tokens: max_tokens(fields, "max_tokens")?,
            sampling,
            bias: bias(fields)?,
            stop: stop(fields)?,
            ignore_eos: fields.flag("ignore_eos")?,
            stream,
            include_usage: include_usage(fields, stream)?,
            session: session(fields)?,
        })
    }
}

/// Takes a limit on an answer's tokens.
pub fn max_tokens(fields: &mut Fields, name: &str) -> Result<Option<u32>, ApiError> {
    Ok(fields
        .integer(name, 1..=i64::from(i32::MAX))?
        .map(|count| count as u32))
}

/// Takes what names the caller or its purpose and changes no answer.
pub fn take_labels(fields: &mut Fields) -> Result<(), ApiError> {
    for name in ["user", "safety_identifier", "prompt_cache_key"] {
        fields.optional::<String>(name, "a string")?;
    }
    fields.optional::<BTreeMap<String, String>>("metadata", "an object of strings")?;
    fields.unsupported("store", &["false"])?;
    fields.unsupported("service_tier", &[r#""auto""#, r#""default""#])
}

/// A number that no one can guess from earlier ones: std keys each of these hashers from the system's randomness.
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Any 64-bit seed, signed or not; two requests without one differ.
fn seed(fields: &mut Fields) -> Result<u64, ApiError> {
    let Some(raw) = fields.raw("seed") else {
        return Ok(random());
    };
    let signed = || serde_json::from_str::<i64>(raw.get()).map(|seed| seed as u64);
    serde_json::from_str::<u64>(raw.get())
        .or_else(|_| signed())
        .map_err(|_| fields.wrong("seed", "a whole number of at most 64 bits"))
}

fn session(fields: &mut Fields) -> Result<Option<SessionId>, ApiError> {
    let expected = format!("a string of 1 to {} visible ASCII characters", SessionId::LONGEST);
    let Some(name) = fields.optional::<String>("session_id", &expected)? else {
        return Ok(None);
    };
    match SessionId::new(&name) {
        Some(session) => Ok(Some(session)),
        None => Err(fields.wrong("session_id", &expected)),
    }
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let expected =
        format!("a string of 1 to {MAX_STOP_BYTES} bytes, or a list of at most {MAX_STOPS} of them");
    let Some(raw) = fields.raw("stop") else {
        return Ok(Vec::new());
    };
    let stop = if is_list(raw) {
        serde_json::from_str::<Vec<String>>(raw.get())
    } else {
        serde_json::from_str(raw.get()).map(|one| vec![one])
    };
    match stop {
        Ok(stop)
            if stop.len() <= MAX_STOPS
                && stop.iter().all(|text| (1..=MAX_STOP_BYTES).contains(&text.len())) =>
        {
            Ok(stop)
        }
        _ => Err(fields.wrong("stop", &expected)),
    }
}

fn bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, ApiError> {
    let expected =
        format!("an object of at most {MAX_BIASES} token ids, each with a number from -100 to 100");
    let bias: BTreeMap<u32, f32> = fields.optional("logit_bias", &expected)?.unwrap_or_default();
    if bias.len() > MAX_BIASES || bias.values().any(|value| !(-100.0..=100.0).contains(value)) {
        return Err(fields.wrong("logit_bias", &expected));
    }
    Ok(bias.into_iter().collect())
}

fn include_usage(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(raw) = fields.raw("stream_options") else {
        return Ok(false);
    };
    if !stream {
        return Err(ApiError::invalid_value(
            "stream_options",
            "'stream_options' needs \"stream\": true",
        ));
    }
    let mut options = Fields::of_value(raw, "stream_options".into())?;
    let include_usage = options.flag("include_usage")?;
    options.unsupported("include_obfuscation", &["false"])?;
    options.finish()?;
    Ok(include_usage)
}

/// Whether a value is a list.
pub fn is_list(raw: &RawValue) -> bool {
    raw.get().starts_with('[')
}
