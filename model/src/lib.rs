//! A model over any operations: checkpoint formats, configurations, the forward pass, pools and the
//! teardown order.

pub mod arena;
pub mod checkpoint;
mod config;
pub mod convert;
mod flight;
#[doc(hidden)]
pub mod fuzz;
pub mod kv;
mod llama;
mod loaded;
pub mod pools;
mod rope;
mod step;
pub mod weights;

pub use checkpoint::{Checkpoint, Metadata, Tensor};
pub use config::{ARCHITECTURES, LlamaConfig};
pub use llama::Llama;
pub use loaded::LoadedModel;
pub use met_kernels::{Error, ErrorKind, Result};
