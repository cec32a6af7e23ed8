//! What a fuzzer calls: everything that is done with a file before a weight is loaded.

use crate::{Checkpoint, Llama, LlamaConfig, checkpoint::Value};

/// Reads `bytes` as a checkpoint in every way there is. It must return, whatever they are.
pub fn checkpoint(bytes: &[u8]) {
    let Ok(checkpoint) = Checkpoint::from_bytes(bytes.to_vec()) else {
        return;
    };
    let metadata = checkpoint.metadata();
    for key in metadata.keys() {
        if let Some(value) = metadata.value(key) {
            walk(value);
        }
    }
    for tensor in checkpoint.tensors() {
        let weight = checkpoint.weight(&tensor.name);
        assert!(
            weight
                .is_some_and(|w| w.data.len() == tensor.range.len() && w.rows * w.cols == tensor.elements())
        );
    }
    let _ = checkpoint.identity();
    let _ = checkpoint.quantization();
    let _ = checkpoint.parameters();
    if let Ok(config) = LlamaConfig::from_checkpoint(&checkpoint) {
        let _ = Llama::bind(config, &checkpoint);
    }
}

fn walk(value: Value<'_>) {
    if let Value::Array(array) = value {
        assert_eq!(array.iter().map(walk).count(), array.len());
    }
}
