//! The smallest model of which a step makes every kind of driver call.

#[path = "../../../model/tests/it/support/tiny.rs"]
#[allow(dead_code, reason = "there are more shapes than this one")]
mod tiny;
#[path = "../../../model/tests/it/support/writer.rs"]
#[allow(dead_code, reason = "there are more values than these")]
mod writer;

pub use tiny::TempFile;

use met_kernels::TensorType;
use tiny::Tiny;
use writer::{Value, Writer};

/// Tokens of its vocabulary.
pub const VOCAB: u32 = 128;

/// A random Llama of one layer and one head.
pub fn one_layer() -> TempFile {
    let shape = Tiny {
        layers: 1,
        width: 64,
        ffn: 64,
        heads: 1,
        kv_heads: 1,
        vocab: VOCAB as usize,
        ..Tiny::of(TensorType::Q4_0)
    };
    shape.file()
}
