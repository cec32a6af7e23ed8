//! A model over any operations: checkpoint formats, configurations, the forward pass, pools and the
//! teardown order.

pub mod checkpoint;

pub use checkpoint::{Checkpoint, Metadata, Tensor};
pub use met_kernels::{Error, ErrorKind, Result};
