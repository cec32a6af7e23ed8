//! The body of `POST /v1/chat/completions`.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    fields::Fields,
    options::{self, Options, is_list},
};
use crate::{
    http::error::ApiError,
    scheduler::MAX_TOP_LOGPROBS,
    text::{Message, Role},
};

/// A chat to continue.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatRequest {
    /// The slot that is asked.
    pub model: String,
    /// The conversation; at least one message.
    pub messages: Vec<Message>,
    /// How many of the most probable tokens to report with each; `None` reports no log-probability.
    pub logprobs: Option<u32>,
    /// How to answer.
    pub options: Options,
}

impl ChatRequest {
    /// Reads and checks a body.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?;
        let model = fields.required("model", "a string")?;
        let messages = messages(&mut fields)?;
        let logprobs = logprobs(&mut fields)?;
        let mut options = Options::take(&mut fields)?;
        if let Some(limit) = options::max_tokens(&mut fields, "max_completion_tokens")? {
            if options.max_tokens.is_some_and(|other| other != limit) {
                let message = "'max_tokens' and 'max_completion_tokens' mean the same; give one of them";
                return Err(ApiError::invalid_value("max_tokens", message));
            }
            options.max_tokens = Some(limit);
        }
        options::take_labels(&mut fields)?;
        for (name, neutral) in UNSUPPORTED {
            fields.unsupported(name, neutral)?;
        }
        fields.finish()?;
        Ok(Self {
            model,
            messages,
            logprobs,
            options,
        })
    }
}

/// What OpenAI has and we have not (yet), with the values that ask for nothing.
const UNSUPPORTED: &[(&str, &[&str])] = &[
    ("tools", &["[]"]),
    ("tool_choice", &[r#""none""#, r#""auto""#]),
    ("parallel_tool_calls", &["true", "false"]),
    ("functions", &["[]"]),
    ("function_call", &[r#""none""#, r#""auto""#]),
    ("response_format", &[r#"{"type":"text"}"#]),
    ("modalities", &[r#"["text"]"#]),
    ("reasoning_effort", &[r#""none""#]),
    ("verbosity", &[r#""medium""#]),
    ("audio", &[]),
    ("prediction", &[]),
    ("web_search_options", &[]),
];

fn messages(fields: &mut Fields) -> Result<Vec<Message>, ApiError> {
    let expected = "a list of at least one message";
    let list: Vec<&RawValue> = fields.required("messages", expected)?;
    if list.is_empty() {
        return Err(fields.wrong("messages", expected));
    }
    list.into_iter()
        .enumerate()
        .map(|(index, raw)| message(raw, format!("messages[{index}]")))
        .collect()
}

fn message(raw: &RawValue, path: String) -> Result<Message, ApiError> {
    let mut fields = Fields::of_value(raw, path)?;
    let expected = "one of 'system', 'developer', 'user', 'assistant' and 'tool'";
    let role: String = fields.required("role", expected)?;
    let role = match role.as_str() {
        // Newer models call the system's messages so; templates know the older word.
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        _ => return Err(fields.wrong("role", expected)),
    };
    let mut message = Message::new(role, content(&mut fields)?);
    if role == Role::Assistant {
        // Clients send back an answer as they got it.
        for name in ["refusal", "audio", "function_call"] {
            fields.unsupported(name, &[])?;
        }
        for name in ["tool_calls", "annotations"] {
            fields.unsupported(name, &["[]"])?;
        }
    }
    if role == Role::Tool {
        let id: String = fields.required("tool_call_id", "a string")?;
        message.fields.insert("tool_call_id".into(), id.into());
    }
    if let Some(name) = fields.optional::<String>("name", "a string")? {
        message.fields.insert("name".into(), name.into());
    }
    fields.finish()?;
    Ok(message)
}

/// A text, or a list of text parts, which are joined as they stand.
fn content(fields: &mut Fields) -> Result<String, ApiError> {
    let expected = "a string or a list of parts of type 'text'";
    let raw: &RawValue = fields.required("content", expected)?;
    if !is_list(raw) {
        return serde_json::from_str(raw.get()).map_err(|_| fields.wrong("content", expected));
    }
    let parts: Vec<&RawValue> =
        serde_json::from_str(raw.get()).map_err(|_| fields.wrong("content", expected))?;
    let mut content = String::new();
    for (index, part) in parts.into_iter().enumerate() {
        let mut part = Fields::of_value(part, fields.param(&format!("content[{index}]")))?;
        let kind: String = part.required("type", "'text'")?;
        if kind != "text" {
            let param = part.param("type");
            let message = format!("'{param}' is not 'text', and this model reads nothing else");
            return Err(ApiError::unsupported(param, message));
        }
        let Text(text) = part.required("text", "a string")?;
        content.push_str(&text);
        part.finish()?;
    }
    Ok(content)
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] std::borrow::Cow<'a, str>);

fn logprobs(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let wanted = fields.flag("logprobs")?;
    match fields.integer("top_logprobs", 0..=i64::from(MAX_TOP_LOGPROBS))? {
        Some(1..) if !wanted => Err(ApiError::invalid_value(
            "top_logprobs",
            "'top_logprobs' needs \"logprobs\": true",
        )),
        top => Ok(wanted.then(|| top.unwrap_or(0) as u32)),
    }
}
