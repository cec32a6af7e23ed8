//! A vocabulary as a GGUF file's metadata states it.

use super::{
    TextError, byte_level, sentence_piece,
    vocabulary::{TokenKind, Vocabulary},
};
use met_model::checkpoint::Metadata;

/// What a tokenizer is built from. Texts are borrowed from the checkpoint.
#[derive(Clone, Debug, Default)]
pub struct VocabSource<'a> {
    /// `tokenizer.ggml.model`: `gpt2` (byte-level) or `llama` (SentencePiece).
    pub model: &'a str,
    /// `tokenizer.ggml.pre`: the pre-tokenizer's name.
    pub pre: Option<&'a str>,
    /// The tokens in their written form, by id.
    pub tokens: Vec<&'a str>,
    /// Their kinds; empty where the file doesn't state them.
    pub kinds: Vec<TokenKind>,
    /// Their scores (SentencePiece).
    pub scores: Vec<f32>,
    /// `LEFT RIGHT`, the most important first (byte-level).
    pub merges: Vec<&'a str>,
    /// Begin of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// Other tokens that end an output: end of turn, end of message.
    pub ends: Vec<u32>,
    /// What stands for text that has no token.
    pub unknown: Option<u32>,
    /// Whether a prompt begins with `bos`.
    pub add_bos: Option<bool>,
    /// Whether a text gets a space before it (SentencePiece).
    pub add_space_prefix: Option<bool>,
}

/// Most tokens that a vocabulary may have.
pub(super) const MAX_TOKENS: usize = 1 << 24;

impl<'a> VocabSource<'a> {
    /// Reads the metadata's `tokenizer.ggml.*` keys.
    ///
    /// # Errors
    /// [`TextError::Checkpoint`], which names the key, where one is missing or wrong.
    pub fn from_metadata(metadata: &'a Metadata) -> Result<Self, TextError> {
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let id = |name: &str| metadata.get::<u32>(&key(&format!("{name}_token_id")));
        let flag = |name: &str| metadata.get::<bool>(&key(name));
        let kinds: Option<Vec<i64>> = metadata.get(&key("token_type"))?;
        let ends = [id("eot")?, id("eom")?];
        let mut source = Self {
            model: metadata.require(&key("model"))?,
            pre: metadata.get(&key("pre"))?,
            tokens: metadata.require(&key("tokens"))?,
            kinds: kinds
                .unwrap_or_default()
                .into_iter()
                .map(kind)
                .collect::<Result<_, _>>()?,
            scores: metadata.get(&key("scores"))?.unwrap_or_default(),
            merges: metadata.get(&key("merges"))?.unwrap_or_default(),
            bos: id("bos")?,
            eos: id("eos")?,
            ends: ends.into_iter().flatten().collect(),
            unknown: id("unknown")?,
            add_bos: flag("add_bos_token")?,
            add_space_prefix: flag("add_space_prefix")?,
        };
        source.check()?;
        let find = |text: &str| {
            (0..)
                .zip(&source.tokens)
                .find(|(_, t)| **t == text)
                .map(|(id, _)| id)
        };
        let known = known_ends(find);
        source.ends.extend(known);
        Ok(source)
    }

    /// The vocabulary as a table of bytes.
    pub(super) fn vocabulary(&self) -> Vocabulary {
        let size = self.tokens.iter().map(|t| t.len()).sum();
        let mut vocabulary = Vocabulary::with_capacity(self.tokens.len(), size);
        let mut bytes = Vec::new();
        for (id, written) in (0..).zip(&self.tokens) {
            let kind = self.kind(id, written);
            bytes.clear();
            match self.is_sentence_piece() {
                true => sentence_piece::token_bytes(written, kind, &mut bytes),
                false => byte_level::token_bytes(written, kind, &mut bytes),
            }
            vocabulary.push(&bytes, kind);
        }
        vocabulary.leading_space = self.is_sentence_piece() && self.add_space_prefix.unwrap_or(true);
        vocabulary
    }

    pub(super) fn is_sentence_piece(&self) -> bool {
        self.model == "llama"
    }

    fn kind(&self, id: u32, written: &str) -> TokenKind {
        // Files exist that call their end of turn normal text.
        let ends = [self.bos, self.eos]
            .into_iter()
            .flatten()
            .chain(self.ends.iter().copied());
        if ends.into_iter().any(|end| end == id) && written.chars().count() > 1 {
            return TokenKind::Control;
        }
        match self.kinds.get(id as usize) {
            Some(&kind) => kind,
            None if self.unknown == Some(id) => TokenKind::Unknown,
            None if self.is_sentence_piece() && sentence_piece::parse_byte(written).is_some() => {
                TokenKind::Byte
            }
            None => TokenKind::Normal,
        }
    }

    /// Checks that the lists fit each other and that ids are in range.
    fn check(&self) -> Result<(), TextError> {
        let count = self.tokens.len();
        let wrong = |what: String| Err(TextError::Checkpoint(what));
        if count == 0 || count > MAX_TOKENS {
            return wrong(format!(
                "`tokenizer.ggml.tokens` has {count} tokens; 1 to {MAX_TOKENS} are allowed"
            ));
        }
        let lists = [("token_type", self.kinds.len()), ("scores", self.scores.len())];
        for (name, len) in lists {
            if len != 0 && len != count {
                return wrong(format!(
                    "`tokenizer.ggml.{name}` has {len} elements for {count} tokens"
                ));
            }
        }
        let ids = [("bos", self.bos), ("eos", self.eos), ("unknown", self.unknown)];
        let ends = self.ends.iter().map(|&id| ("eot or eom", Some(id)));
        for (name, id) in ids.into_iter().chain(ends) {
            if let Some(id) = id.filter(|&id| id as usize >= count) {
                return wrong(format!(
                    "`tokenizer.ggml.{name}_token_id` is {id}, but the vocabulary has {count} tokens"
                ));
            }
        }
        Ok(())
    }
}

/// Tokens that end a turn by convention, whatever the metadata says.
const END_TEXTS: [&str; 10] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<|return|>",
    "<|call|>",
];

/// Those that a vocabulary has; `find` gives the id of a special token.
pub(super) fn known_ends(find: impl Fn(&str) -> Option<u32>) -> Vec<u32> {
    let mut ends: Vec<u32> = END_TEXTS.into_iter().filter_map(&find).collect();
    // Where there is `<|return|>`, `<|end|>` ends a message inside of a turn.
    if find("<|return|>").is_none() {
        ends.extend(find("<|end|>"));
    }
    ends
}

/// A token's kind by its number in `tokenizer.ggml.token_type`.
fn kind(number: i64) -> Result<TokenKind, TextError> {
    Ok(match number {
        0 | 1 => TokenKind::Normal,
        2 => TokenKind::Unknown,
        3 => TokenKind::Control,
        4 => TokenKind::UserDefined,
        5 => TokenKind::Unused,
        6 => TokenKind::Byte,
        other => {
            return Err(TextError::Checkpoint(format!(
                "`tokenizer.ggml.token_type` has the value {other}; 0 to 6 are known"
            )));
        }
    })
}
