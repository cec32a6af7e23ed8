//! Tells checkpoints apart without reading all of them.

use super::Checkpoint;
use crate::Result;
use met_kernels::ReadAt;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// Bytes read at each of a tensor's three places.
const SAMPLE: usize = 64;
/// Bytes of a header that are read at a time.
const PART: usize = 64 << 10;

pub(super) fn of(checkpoint: &Checkpoint) -> Result<String> {
    let mut hash = Sha256::new();
    if let Some(folder) = &checkpoint.folder {
        hash.update(serde_json::Value::from(folder.config.clone()).to_string());
    }
    let mut part = vec![0; PART];
    for (index, file) in checkpoint.parts.iter().enumerate() {
        let mut take = |start: usize, len: usize| {
            let part = &mut part[..len];
            file.source.read_at(start as u64, part)?;
            hash.update(part);
            Ok(())
        };
        for start in (0..file.header_bytes).step_by(PART) {
            take(start, PART.min(file.header_bytes - start))?;
        }
        for tensor in checkpoint.tensors().iter().filter(|tensor| tensor.file == index) {
            let last = tensor.range.len().saturating_sub(SAMPLE);
            for start in [0, last / 2, last] {
                take(tensor.range.start + start, SAMPLE.min(tensor.range.len() - start))?;
            }
        }
        hash.update(file.source.bytes().to_le_bytes());
    }
    let digest = hash.finalize();
    Ok(digest[..16].iter().fold(String::new(), |mut hex, byte| {
        // Writing to a String can't fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    }))
}
