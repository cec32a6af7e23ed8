//! What the tests share: a GGUF writer, tiny random models, a host, and steps in few words.

mod host;
mod steps;
mod tiny;
mod writer;

pub use host::TestHost;
pub use steps::{Sequence, all_logits, load, spec};
pub use tiny::Tiny;
pub use writer::{Value, Writer, type_id};
