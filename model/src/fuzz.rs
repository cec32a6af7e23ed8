//! What a fuzzer calls: everything that is done with a file before a weight is loaded.

use crate::{Checkpoint, Decoder, ModelConfig, checkpoint::Value};

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
    whole(&checkpoint);
}

/// Reads `bytes` as a folder's files in every way there is: the length of `config.json` in two bytes, `config.json`,
/// `model.safetensors`. It must return, whatever they are.
pub fn folder(bytes: &[u8]) {
    let Some((len, rest)) = bytes.split_first_chunk() else {
        return;
    };
    let (config, weights) = rest.split_at(rest.len().min(u16::from_le_bytes(*len).into()));
    if let Ok(checkpoint) = Checkpoint::from_folder_bytes(config, weights.to_vec()) {
        whole(&checkpoint);
    }
}

fn whole(checkpoint: &Checkpoint) {
    let bytes = checkpoint.file_bytes() as usize;
    for tensor in checkpoint.tensors() {
        assert!(tensor.range.end <= bytes);
        assert_eq!(tensor.ty.bytes_of(tensor.elements()), Some(tensor.range.len()));
    }
    let _ = checkpoint.identity();
    let _ = checkpoint.quantization();
    let _ = checkpoint.parameters();
    if let Ok(config) = ModelConfig::from_checkpoint(checkpoint) {
        let _ = Decoder::bind(config, checkpoint);
    }
}

fn walk(value: Value<'_>) {
    if let Value::Array(array) = value {
        assert_eq!(array.iter().map(walk).count(), array.len());
    }
}
