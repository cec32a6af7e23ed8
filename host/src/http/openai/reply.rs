//! The JSON of answers: whole ones, and the chunks of a stream.

use std::time::SystemTime;

use bytes::{BufMut, BytesMut};
use serde::Serialize;

use super::{
    logprob::{ChatLogprobs, CompletionLogprobs, TokenLogprob},
    models::unix_seconds,
    options::random,
};
use crate::request::FinishReason;

/// Which of the two APIs is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completion,
}

/// What every object of one answer repeats.
#[derive(Clone, Debug)]
pub struct Head {
    form: Form,
    id: String,
    created: u64,
    model: String,
    fingerprint: String,
    include_usage: bool,
}

/// Tokens read and written for one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Of the prompts, each counted once whatever `n` is.
    pub prompt_tokens: u32,
    /// Generated for all choices, also those of a stop text or after it.
    pub completion_tokens: u32,
    /// The sum.
    pub total_tokens: u32,
    /// More about the prompts.
    pub prompt_tokens_details: PromptDetails,
}

/// More about the tokens of prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PromptDetails {
    /// Those that were found in the cache, and not computed.
    pub cached_tokens: u32,
}

/// One complete choice.
#[derive(Clone, Debug, PartialEq)]
pub struct WholeChoice {
    /// Its text.
    pub text: String,
    /// One entry a token, where they were asked for.
    pub logprobs: Option<Vec<TokenLogprob>>,
    /// Why it ended.
    pub finish: FinishReason,
}

impl Head {
    /// The head of a new answer. With `include_usage` each chunk of a stream has a `usage`, all but the last `null`.
    pub fn new(form: Form, model: String, fingerprint: String, include_usage: bool) -> Self {
        let prefix = match form {
            Form::Chat => "chatcmpl",
            Form::Completion => "cmpl",
        };
        Self {
            form,
            id: format!("{prefix}-{:016x}{:016x}", random(), random()),
            created: unix_seconds(SystemTime::now()),
            model,
            fingerprint,
            include_usage,
        }
    }

    /// The JSON of a whole answer.
    pub fn whole(&self, choices: &[WholeChoice], usage: Usage) -> serde_json::Result<Vec<u8>> {
        let object = match self.form {
            Form::Chat => "chat.completion",
            Form::Completion => "text_completion",
        };
        let choices: Vec<_> = choices
            .iter()
            .zip(0..)
            .map(|(choice, index)| match self.form {
                Form::Chat => Choice {
                    index,
                    message: Some(ChatText {
                        role: Some("assistant"),
                        content: Some(&choice.text),
                        refusal: Some(()),
                    }),
                    ..Choice::new(self.form, choice.logprobs.as_deref(), Some(choice.finish))
                },
                Form::Completion => Choice {
                    index,
                    text: Some(&choice.text),
                    ..Choice::new(self.form, choice.logprobs.as_deref(), Some(choice.finish))
                },
            })
            .collect();
        serde_json::to_vec(&self.reply(object, &choices, Some(Some(usage))))
    }

    /// Writes the event that opens a choice; plain completions have none.
    pub fn write_opening(&self, out: &mut BytesMut, index: u32) {
        if self.form == Form::Chat {
            let delta = ChatText {
                role: Some("assistant"),
                content: Some(""),
                refusal: Some(()),
            };
            self.write_choice(
                out,
                Choice {
                    index,
                    delta: Some(delta),
                    ..Choice::new(self.form, None, None)
                },
            );
        }
    }

    /// Writes the event of further text.
    pub fn write_text(&self, out: &mut BytesMut, index: u32, text: &str, logprobs: Option<&[TokenLogprob]>) {
        let choice = Choice {
            index,
            ..Choice::new(self.form, logprobs, None)
        };
        self.write_choice(
            out,
            match self.form {
                Form::Chat => Choice {
                    delta: Some(ChatText {
                        content: Some(text),
                        ..ChatText::default()
                    }),
                    ..choice
                },
                Form::Completion => Choice {
                    text: Some(text),
                    ..choice
                },
            },
        );
    }

    /// Writes the event that ends a choice.
    pub fn write_finish(&self, out: &mut BytesMut, index: u32, finish: FinishReason) {
        let choice = Choice {
            index,
            ..Choice::new(self.form, None, Some(finish))
        };
        self.write_choice(
            out,
            match self.form {
                Form::Chat => Choice {
                    delta: Some(ChatText::default()),
                    ..choice
                },
                Form::Completion => Choice {
                    text: Some(""),
                    ..choice
                },
            },
        );
    }

    /// Writes the event with the usage, where it was asked for.
    pub fn write_usage(&self, out: &mut BytesMut, usage: Usage) {
        if self.include_usage {
            write_event(out, &self.reply(self.chunk_object(), &[], Some(Some(usage))));
        }
    }

    fn write_choice(&self, out: &mut BytesMut, choice: Choice) {
        let usage = self.include_usage.then_some(None);
        write_event(out, &self.reply(self.chunk_object(), &[choice], usage));
    }

    fn chunk_object(&self) -> &'static str {
        match self.form {
            Form::Chat => "chat.completion.chunk",
            Form::Completion => "text_completion",
        }
    }

    fn reply<'a>(
        &'a self,
        object: &'a str,
        choices: &'a [Choice<'a>],
        usage: Option<Option<Usage>>,
    ) -> Reply<'a> {
        Reply {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            system_fingerprint: &self.fingerprint,
            choices,
            usage,
        }
    }
}

/// Writes one server-sent event.
pub fn write_event(out: &mut BytesMut, data: &impl Serialize) {
    out.extend_from_slice(b"data: ");
    // Writing to memory doesn't fail, and no type here has a value that JSON has not.
    let _ = serde_json::to_writer(out.writer(), data);
    out.extend_from_slice(b"\n\n");
}

#[derive(Serialize)]
struct Reply<'a> {
    id: &'a str,
    object: &'a str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    choices: &'a [Choice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

/// A choice of any of the four objects: each has one of `message`, `delta` and `text`.
#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<ChatText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<ChatText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
struct ChatText<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    /// `null` where it is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<()>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Logprobs {
    Chat(ChatLogprobs),
    Completion(CompletionLogprobs),
}

impl Choice<'_> {
    fn new(form: Form, logprobs: Option<&[TokenLogprob]>, finish: Option<FinishReason>) -> Self {
        Self {
            index: 0,
            message: None,
            delta: None,
            text: None,
            logprobs: logprobs.map(|tokens| match form {
                Form::Chat => Logprobs::Chat(ChatLogprobs::new(tokens)),
                Form::Completion => Logprobs::Completion(CompletionLogprobs::new(tokens)),
            }),
            finish_reason: finish.map(|reason| match reason {
                FinishReason::Stop => "stop",
                FinishReason::Length => "length",
            }),
        }
    }
}
