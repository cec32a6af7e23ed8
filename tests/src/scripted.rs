//! Model files for the scripted backend.

use anyhow::{Context, Result, ensure};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Where a GGUF header counts its metadata pairs, and where these begin.
const PAIR_COUNT: std::ops::Range<usize> = 16..24;

/// A model file in `folder` that the backend of `plugins/scripted` plays `script` for.
pub fn model(folder: &Path, script: &str) -> Result<PathBuf> {
    let mut bytes = fs::read(crate::fixture("vocab-spm.gguf"))?;
    let tensors = bytes.get(8..16).context("a GGUF header")?;
    ensure!(tensors == [0; 8], "a pair put in would move the tensors");
    let count = bytes.get_mut(PAIR_COUNT).context("a GGUF header")?;
    let pairs = u64::from_le_bytes(count.try_into()?) + 1;
    count.copy_from_slice(&pairs.to_le_bytes());
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let is_text = 8u32.to_le_bytes();
    let pair = [text("scripted.script"), is_text.to_vec(), text(script)].concat();
    bytes.splice(PAIR_COUNT.end..PAIR_COUNT.end, pair);
    let path = folder.join("scripted.gguf");
    fs::write(&path, bytes)?;
    Ok(path)
}
