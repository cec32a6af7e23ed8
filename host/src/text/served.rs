//! What a slot needs of a model's text.

use super::{Detokenizer, Special, Text};
use crate::slot::ModelText;
use std::{path::Path, sync::Arc};

impl ModelText for Text {
    fn open(checkpoint: &Path) -> Result<Self, String> {
        Self::from_checkpoint(checkpoint).map_err(|error| error.to_string())
    }

    fn again(checkpoint: &Path, earlier: &Arc<Self>) -> Result<Arc<Self>, String> {
        Self::again(checkpoint, earlier).map_err(|error| error.to_string())
    }

    fn fingerprint(&self) -> &str {
        Self::fingerprint(self)
    }

    fn tokens(&self, text: &str) -> Result<Vec<u32>, String> {
        self.encode(text, Special::Text, true)
            .map_err(|error| error.to_string())
    }

    fn text(&self, tokens: &[u32]) -> String {
        let mut detokenizer = Detokenizer::continuing(self.vocabulary().clone());
        let mut text = String::new();
        for token in tokens {
            text.push_str(detokenizer.push(*token));
        }
        text.push_str(detokenizer.finish());
        text
    }
}
