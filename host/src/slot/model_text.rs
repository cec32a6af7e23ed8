//! What a generation has besides its engine.

use std::{path::Path, sync::Arc};

/// The text side of a model, as far as slots need it.
pub trait ModelText: Send + Sync + Sized + 'static {
    /// Reads it from a checkpoint; the error is the operator's.
    fn open(checkpoint: &Path) -> Result<Self, String>;
    /// The same; may give `earlier` back where that was read from the same.
    fn again(checkpoint: &Path, _earlier: &Arc<Self>) -> Result<Arc<Self>, String> {
        Self::open(checkpoint).map(Arc::new)
    }
    /// Tokens mean the same in two models in which this is equal.
    fn fingerprint(&self) -> &str;
    /// The tokens of a plain text.
    fn tokens(&self, text: &str) -> Result<Vec<u32>, String>;
    /// The text of tokens that follow one another.
    fn text(&self, tokens: &[u32]) -> String;
}

/// Of a model whose tokens are the bytes of its text: for tests that need none.
#[cfg(test)]
impl ModelText for () {
    fn open(_: &Path) -> Result<Self, String> {
        Ok(())
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
