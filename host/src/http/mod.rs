//! The public HTTP front end: OpenAI's API, health and metrics.

mod error;
pub mod openai;
mod server;

pub use error::ApiError;
pub use server::serve;
