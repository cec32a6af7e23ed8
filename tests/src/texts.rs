//! Texts for models that have none.

use met_host::slot::ModelText;
use std::path::Path;

/// Tokens are the bytes of the text.
pub struct Bytes;

/// A checkpoint without a text.
pub struct NoText;

impl ModelText for Bytes {
    fn open(_: &Path) -> Result<Self, String> {
        Ok(Self)
    }
    fn fingerprint(&self) -> &str {
        "bytes"
    }
    fn tokens(&self, text: &str) -> Result<Vec<u32>, String> {
        Ok(text.bytes().map(u32::from).collect())
    }
    fn text(&self, tokens: &[u32]) -> String {
        tokens.iter().filter_map(|token| char::from_u32(*token)).collect()
    }
}

impl ModelText for NoText {
    fn open(_: &Path) -> Result<Self, String> {
        Err("no tokenizer".to_owned())
    }
    fn fingerprint(&self) -> &str {
        ""
    }
    fn tokens(&self, _: &str) -> Result<Vec<u32>, String> {
        Ok(Vec::new())
    }
    fn text(&self, _: &[u32]) -> String {
        String::new()
    }
}
