//! A tokenizer: text to tokens, whatever the vocabulary was read from.

use super::{
    TextError,
    byte_pair::BytePair,
    hugging_face::HuggingFace,
    pretokenizer::PreTokenizer,
    sentence_piece::SentencePiece,
    source::VocabSource,
    special::{Fragment, Guard, Special, SpecialTokens},
    vocabulary::Vocabulary,
};
use std::sync::Arc;

/// Text to tokens.
pub struct Tokenizer {
    vocabulary: Arc<Vocabulary>,
    special: SpecialTokens,
    encoder: Box<dyn Encoder>,
    /// What a prompt begins with: the begin-of-sequence token, where the model wants one.
    bos: Option<u32>,
}

/// An algorithm for the text between special tokens.
pub(super) trait Encoder: Send + Sync {
    /// Appends the tokens of a text that was cut into fragments.
    fn encode(&self, text: &str, fragments: &[Fragment], out: &mut Vec<u32>) -> Result<(), TextError>;
}

/// Longest text that is tokenised, in bytes.
pub const MAX_TEXT_BYTES: usize = 8 << 20;

impl Tokenizer {
    /// From a GGUF file's metadata.
    ///
    /// # Errors
    /// [`TextError::Checkpoint`] where the tokenizer is of a kind that isn't supported.
    pub fn from_source(source: &VocabSource<'_>) -> Result<Self, TextError> {
        let vocabulary = Arc::new(source.vocabulary());
        let (encoder, adds_bos): (Box<dyn Encoder>, bool) = match source.model {
            "gpt2" => {
                let pre_tokenizer = PreTokenizer::named(source.pre.unwrap_or_else(|| {
                    tracing::warn!(
                        "the model names no pre-tokenizer; without the right one its answers are worse"
                    );
                    "default"
                }))?;
                let adds_bos = pre_tokenizer.adds_bos;
                let encoder = BytePair::new(source, vocabulary.clone(), pre_tokenizer);
                (Box::new(encoder), adds_bos)
            }
            "llama" => (Box::new(SentencePiece::new(source, vocabulary.clone())), true),
            other => {
                return Err(TextError::Checkpoint(format!(
                    "`tokenizer.ggml.model` is `{other}`; supported are `gpt2` (byte-level BPE) and `llama` (SentencePiece)"
                )));
            }
        };
        Ok(Self {
            special: SpecialTokens::from_vocabulary(&vocabulary)?,
            vocabulary,
            encoder,
            bos: source.bos.filter(|_| source.add_bos.unwrap_or(adds_bos)),
        })
    }

    /// From the bytes of a `tokenizer.json`. `add_bos` overrules what they say themselves.
    ///
    /// # Errors
    /// [`TextError::Checkpoint`] where they can't be read or decode in a way that isn't supported.
    pub fn from_tokenizer_json(
        bytes: &[u8],
        bos: Option<&str>,
        add_bos: Option<bool>,
    ) -> Result<Self, TextError> {
        let (encoder, vocabulary, special) = HuggingFace::parse(bytes)?;
        let bos = encoder.bos(bos, add_bos);
        Ok(Self {
            vocabulary: Arc::new(vocabulary),
            special: SpecialTokens::new(special)?,
            encoder: Box::new(encoder),
            bos,
        })
    }

    /// The vocabulary.
    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }

    /// The tokens of a text. `add_bos` puts the begin-of-sequence token first, where the model wants one.
    /// Takes O(n log n) steps for n bytes; a megabyte takes a noticeable part of a second.
    ///
    /// # Errors
    /// [`TextError::Request`] for a text longer than [`MAX_TEXT_BYTES`].
    pub fn encode(&self, text: &str, special: Special, add_bos: bool) -> Result<Vec<u32>, TextError> {
        check_length(text)?;
        self.encode_fragments(text, &self.special.partition(text, special), add_bos)
    }

    /// The tokens of a rendered template in which a guard set marks.
    pub(super) fn encode_guarded(&self, text: &str, mark: char) -> Result<Vec<u32>, TextError> {
        check_length(text)?;
        let (text, fragments) = self.special.partition_guarded(text, mark);
        let first = fragments.first().and_then(|f| f.token);
        self.encode_fragments(&text, &fragments, first.is_none() || first != self.bos)
    }

    /// A guard for a request with these texts.
    pub(super) fn guard<'t>(&self, texts: impl IntoIterator<Item = &'t str>) -> Option<Guard<'_>> {
        Guard::new(&self.special, texts)
    }

    fn encode_fragments(
        &self,
        text: &str,
        fragments: &[Fragment],
        add_bos: bool,
    ) -> Result<Vec<u32>, TextError> {
        let mut out = Vec::with_capacity(text.len() / 4 + 8);
        out.extend(self.bos.filter(|_| add_bos));
        self.encoder.encode(text, fragments, &mut out)?;
        Ok(out)
    }
}

fn check_length(text: &str) -> Result<(), TextError> {
    match text.len() {
        0..=MAX_TEXT_BYTES => Ok(()),
        n => Err(TextError::Request(format!(
            "the text has {n} bytes; at most {MAX_TEXT_BYTES} are tokenised"
        ))),
    }
}
