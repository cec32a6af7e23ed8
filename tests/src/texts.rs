//! Texts for models that have none.

use met_host::slot::ModelText;
use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

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

/// Panics where it is opened a second time.
pub struct PanicsTwice;

impl ModelText for PanicsTwice {
    fn open(_: &Path) -> Result<Self, String> {
        static OPENED: AtomicBool = AtomicBool::new(false);
        assert!(!OPENED.swap(true, Ordering::Relaxed), "on purpose");
        Ok(Self)
    }
    fn fingerprint(&self) -> &str {
        ""
    }
    fn tokens(&self, _: &str) -> Result<Vec<u32>, String> {
        Ok(vec![1])
    }
    fn text(&self, _: &[u32]) -> String {
        String::new()
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
