//! A model over any operations: checkpoint formats, configurations, the forward pass, pools and the
//! teardown order.

pub mod arena;
pub mod checkpoint;
pub mod config;
pub mod convert;
mod flight;
mod forward;
#[doc(hidden)]
pub mod fuzz;
mod info;
pub mod kv;
mod loaded;
pub mod pools;
mod quantize;
mod rope;
mod slots;
pub mod states;
mod step;
pub mod weights;

pub use checkpoint::{Checkpoint, Metadata, Tensor};
pub use config::{ARCHITECTURES, ModelConfig};
pub use forward::Decoder;
pub use loaded::{LoadedModel, weights_identity};
pub use met_kernels::{Error, ErrorKind, Result};
