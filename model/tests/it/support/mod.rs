//! What the tests share: a GGUF writer, tiny random models, a host, and steps in few words.

mod folder;
mod host;
mod steps;
mod tiny;
mod writer;

pub use folder::{TempFolder, safetensors, small, with_header};
pub use host::TestHost;
pub use steps::{Sequence, all_logits, load, sample, spec, step_of_ones};
pub use tiny::{Rng, TempFile, Tiny};
pub use writer::{Value, Writer};
