//! OpenAI's JSON, and nothing but it: bodies in, answers and chunks out. No other module knows its words.

mod chat;
mod completion;
mod fields;
mod logprob;
mod models;
mod options;
mod reply;

pub use chat::ChatRequest;
pub use completion::{CompletionRequest, Prompt};
pub use logprob::{Logprob, TokenLogprob};
pub use models::{ModelCard, ModelList};
pub use options::{MAX_CHOICES, Options, random};
pub use reply::{Form, Head, PromptDetails, Usage, WholeChoice, write_event};

#[cfg(test)]
mod tests;
