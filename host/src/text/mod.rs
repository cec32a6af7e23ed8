//! Text: tokenizers, chat templates, and tokens back to text.
//!
//! [`Text`] is what a generation has of it: immutable, shared by its requests. Formats stay at the edges:
//! `source` reads GGUF's metadata, `hugging_face` reads `tokenizer.json` and its neighbours; behind them
//! is one [`Vocabulary`] and one [`Tokenizer`].

mod byte_level;
mod byte_pair;
mod chat;
mod detokenizer;
mod folder;
#[doc(hidden)]
pub mod fuzz;
mod hugging_face;
mod index;
mod merge;
mod open;
mod pretokenizer;
mod sentence_piece;
mod served;
mod source;
mod special;
mod stop;
mod template;
mod tokenizer;
mod vocabulary;

pub use chat::{Chat, Message, Role};
pub use detokenizer::Detokenizer;
pub use source::VocabSource;
pub use special::Special;
pub use stop::{MAX_STOP_BYTES, MAX_STOPS, Released, StopMatcher};
pub use tokenizer::{MAX_TEXT_BYTES, Tokenizer};
pub use vocabulary::{TokenKind, Vocabulary};

use chat::{ChatFormat, TokenNames};
use std::sync::Arc;

/// The text side of a model.
pub struct Text {
    tokenizer: Tokenizer,
    stop_tokens: Vec<u32>,
    /// How chats are written; the error is the operator's, and only chats meet it.
    format: Result<ChatFormat, TextError>,
    /// The same for chats with tools, where the model has a template of its own for them.
    tool_format: Option<Result<ChatFormat, TextError>>,
    fingerprint: String,
    /// A hash of all that it was made from.
    origin: [u8; 32],
}

impl Text {
    /// The vocabulary.
    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        self.tokenizer.vocabulary()
    }

    /// The tokens that end an output: end of sequence, of turn, of message.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.stop_tokens
    }

    /// A hash of the vocabulary: a request's tokens mean the same in two models in which it is equal.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The tokens of a text; see [`Tokenizer::encode`].
    ///
    /// # Errors
    /// [`TextError::Request`] where the text is too long.
    pub fn encode(&self, text: &str, special: Special, add_bos: bool) -> Result<Vec<u32>, TextError> {
        self.tokenizer.encode(text, special, add_bos)
    }

    /// The tokens of the prompt that asks for a conversation's next message. Text in it that names control
    /// tokens stays ordinary text.
    ///
    /// # Errors
    /// [`TextError::Request`] where the template refuses the conversation (with the template's words) or can't
    /// be applied to it; [`TextError::Template`] where the model has none that works.
    pub fn prompt(&self, chat: &Chat) -> Result<Vec<u32>, TextError> {
        let tool_format = self.tool_format.as_ref().filter(|_| !chat.tools.is_empty());
        let format = tool_format.unwrap_or(&self.format).as_ref();
        format.map_err(TextError::clone)?.prompt(chat, &self.tokenizer)
    }

    /// Whether chats can be rendered, and if not, what the operator should know.
    ///
    /// # Errors
    /// [`TextError::Template`].
    pub fn chat_support(&self) -> Result<(), &TextError> {
        self.format.as_ref().map(|_| ())
    }
}

/// Why text can't be handled, by who must act.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The client: the request's text can't be used.
    #[error("{0}")]
    Request(String),
    /// The operator: the model's chat template is at fault.
    #[error("the model's chat template doesn't work: {0}")]
    Template(String),
    /// The operator: the system gives no thread to render the template on, which passes.
    #[error("the system gives no thread for the chat template: {0}; allow this user more (ulimit -u)")]
    NoThread(String),
    /// The operator: the model's file, or its tokenizer, can't be read.
    #[error("the model can't be used: {0}")]
    Checkpoint(String),
}

impl From<met_model::Error> for TextError {
    fn from(error: met_model::Error) -> Self {
        Self::Checkpoint(error.to_string())
    }
}

#[cfg(test)]
mod tests;
