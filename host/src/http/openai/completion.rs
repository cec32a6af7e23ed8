//! The body of `POST /v1/completions`.

use serde_json::value::RawValue;

use super::{
    fields::Fields,
    options::{self, MAX_CHOICES, Options, is_list},
};
use crate::{http::error::ApiError, scheduler::MAX_TOP_LOGPROBS};

/// Texts to continue.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionRequest {
    /// The slot that is asked.
    pub model: String,
    /// At least one; with `n` answers each, at most [`MAX_CHOICES`] choices in all.
    pub prompts: Vec<Prompt>,
    /// How many of the most probable tokens to report with each; `None` reports no log-probability.
    pub logprobs: Option<u32>,
    /// How to answer.
    pub options: Options,
}

/// What an answer continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A text.
    Text(String),
    /// A text that the client tokenised.
    Tokens(Vec<u32>),
}

impl CompletionRequest {
    /// Reads and checks a body.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?;
        let model = fields.required("model", "a string")?;
        let prompts = prompts(&mut fields)?;
        let logprobs = fields
            .integer("logprobs", 0..=i64::from(MAX_TOP_LOGPROBS))?
            .map(|top| top as u32);
        let options = Options::take(&mut fields)?;
        if prompts.len() * options.n as usize > MAX_CHOICES as usize {
            return Err(fields.wrong(
                "n",
                &format!("such that there are at most {MAX_CHOICES} choices in all"),
            ));
        }
        options::take_labels(&mut fields)?;
        // Nothing is dropped from as many candidates as there are answers.
        fields.unsupported("best_of", &[&options.n.to_string()])?;
        fields.unsupported("echo", &["false"])?;
        fields.unsupported("suffix", &[])?;
        fields.finish()?;
        Ok(Self {
            model,
            prompts,
            logprobs,
            options,
        })
    }
}

fn prompts(fields: &mut Fields) -> Result<Vec<Prompt>, ApiError> {
    let expected = "a text, a list of tokens, or a list of either";
    let raw: &RawValue = fields.required("prompt", expected)?;
    match parse_prompts(raw) {
        Ok(prompts) if !prompts.is_empty() && !prompts.contains(&Prompt::Tokens(Vec::new())) => Ok(prompts),
        _ => Err(fields.wrong("prompt", expected)),
    }
}

/// The first characters tell the form, so that a long list of tokens is parsed once and straight into numbers.
fn parse_prompts(raw: &RawValue) -> serde_json::Result<Vec<Prompt>> {
    let text = raw.get();
    if !is_list(raw) {
        return Ok(vec![Prompt::Text(serde_json::from_str(text)?)]);
    }
    match text[1..].trim_start().as_bytes().first() {
        Some(b'"') => Ok(serde_json::from_str::<Vec<String>>(text)?
            .into_iter()
            .map(Prompt::Text)
            .collect()),
        Some(b'[') => Ok(serde_json::from_str::<Vec<Vec<u32>>>(text)?
            .into_iter()
            .map(Prompt::Tokens)
            .collect()),
        _ => Ok(vec![Prompt::Tokens(serde_json::from_str(text)?)]),
    }
}
