//! The public HTTP front end: OpenAI's API, health and metrics.
//!
//! ```text
//! server (edge) ─▶ router ─▶ generate ─▶ openai (JSON in) ─▶ text (tokens) ─▶ engine
//!                               └─▶ answer (choices) ─▶ sse, or openai (JSON out)
//! ```
//!
//! - Only `openai` knows OpenAI's JSON.
//! - An answer holds its lease and its streams: dropping it, as hyper does when a client leaves, cancels them.
//! - Every size, count and time of a request is bounded, and no input makes a 500.

mod answer;
mod bearer;
mod body;
mod choice;
mod edge;
mod error;
mod gauges;
mod generate;
pub mod metrics;
pub mod openai;
mod router;
mod server;
mod sse;

pub(crate) use bearer::has_bearer;
pub use error::ApiError;
pub use router::{AppState, router};
pub use server::serve;

#[cfg(test)]
mod tests;
