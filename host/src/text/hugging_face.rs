//! `tokenizer.json`, by the `tokenizers` crate. Special tokens are cut out before it sees the text, because
//! which of them count depends on who wrote the text.

use super::{
    TextError, byte_level, sentence_piece,
    source::MAX_TOKENS,
    special::{Fragment, SpecialToken},
    tokenizer::Encoder,
    vocabulary::{TokenKind, Vocabulary},
};
use serde_json::Value;
use tokenizers::{
    Model, NormalizedString, Normalizer, OffsetType, PreTokenizedString, PreTokenizer, Token, Tokenizer,
    normalizer::Range,
};

pub(super) struct HuggingFace {
    tokenizer: Tokenizer,
    /// What the file puts before every text.
    first: Option<u32>,
}

impl HuggingFace {
    /// Reads the file's bytes: the encoder, its vocabulary and its special tokens.
    pub fn parse(bytes: &[u8]) -> Result<(Self, Vocabulary, Vec<SpecialToken>), TextError> {
        let wrong = |why: &dyn std::fmt::Display| TextError::Checkpoint(why.to_string());
        let json: Value = serde_json::from_slice(bytes).map_err(|e| wrong(&e))?;
        let decoding = Decoding::of(&json).map_err(|e| wrong(&e))?;
        let tokenizer = Tokenizer::from_bytes(bytes).map_err(|e| wrong(&e))?;
        let ids = tokenizer.get_vocab(true).into_values();
        let size = ids.max().map_or(0, |id| id as usize + 1);
        if size > MAX_TOKENS {
            return Err(wrong(&format!(
                "a token has the id {}; ids below {MAX_TOKENS} are allowed",
                size - 1
            )));
        }
        let (vocabulary, special) = decoding.vocabulary(&tokenizer, size);
        let first = first_token(&json["post_processor"]).filter(|&id| (id as usize) < size);
        Ok((Self { tokenizer, first }, vocabulary, special))
    }

    /// What a prompt begins with: `bos` where `add_bos` says so, else what the file itself puts first.
    pub fn bos(&self, bos: Option<&str>, add_bos: Option<bool>) -> Option<u32> {
        let named = bos.and_then(|text| self.tokenizer.token_to_id(text));
        match add_bos {
            Some(wanted) => named.filter(|_| wanted),
            None => self.first.filter(|_| named.is_none() || self.first == named),
        }
    }

    /// The crate's own pipeline, but for the special tokens and what comes after the model.
    fn run(&self, text: &str, fragments: &[Fragment]) -> tokenizers::Result<tokenizers::Encoding> {
        let mut pieces = PreTokenizedString::from(text);
        pieces.split(|_, whole| Ok(cut(&whole, fragments)))?;
        if let Some(normalizer) = self.tokenizer.get_normalizer() {
            pieces.normalize(|piece| normalizer.normalize(piece))?;
        }
        if let Some(pre_tokenizer) = self.tokenizer.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        pieces.tokenize(|piece| self.tokenizer.get_model().tokenize(piece.get()))?;
        pieces.into_encoding(None, 0, OffsetType::None)
    }
}

impl Encoder for HuggingFace {
    fn encode(&self, text: &str, fragments: &[Fragment], out: &mut Vec<u32>) -> Result<(), TextError> {
        let failed = |e| TextError::Checkpoint(format!("the tokenizer failed on a text: {e}"));
        let encoding = self.run(text, fragments).map_err(failed)?;
        out.extend_from_slice(encoding.get_ids());
        Ok(())
    }
}

/// The token that a post-processor puts first. The crate's own one panics where the parts of the file don't fit
/// each other.
fn first_token(processor: &Value) -> Option<u32> {
    let id = match processor["type"].as_str()? {
        "TemplateProcessing" => {
            let name = processor["single"][0]["SpecialToken"]["id"].as_str()?;
            &processor["special_tokens"][name]["ids"][0]
        }
        "BertProcessing" | "RobertaProcessing" => &processor["cls"][1],
        "Sequence" => return processor["processors"].as_array()?.iter().find_map(first_token),
        _ => return None,
    };
    u32::try_from(id.as_u64()?).ok()
}

fn cut(whole: &NormalizedString, fragments: &[Fragment]) -> Vec<(NormalizedString, Option<Vec<Token>>)> {
    let piece = |fragment: &Fragment| {
        let piece = whole.slice(Range::Original(fragment.range.clone()))?;
        let token = fragment
            .token
            .map(|id| Token::new(id, piece.get().to_owned(), (0, piece.len())));
        Some((piece, token.map(|t| vec![t])))
    };
    fragments.iter().filter_map(piece).collect()
}

/// How tokens are read back, from the file's decoder.
#[derive(Clone, Copy)]
enum Decoding {
    /// The byte alphabet.
    ByteLevel,
    /// SentencePiece's space and byte tokens.
    SentencePiece { leading_space: bool },
}

impl Decoding {
    fn of(json: &Value) -> Result<Self, String> {
        let decoder = &json["decoder"];
        let parts = match decoder["decoders"].as_array() {
            Some(parts) => parts.iter().collect(),
            None => vec![decoder],
        };
        let types: Vec<&str> = parts.iter().filter_map(|d| d["type"].as_str()).collect();
        let has = |name| types.contains(&name);
        let part = |name: &str| parts.iter().find(|d| d["type"] == name);
        if has("ByteLevel") {
            return Ok(Self::ByteLevel);
        }
        if has("Metaspace") || has("ByteFallback") {
            let metaspace = part("Metaspace").is_some_and(|d| d["prepend_scheme"] != "never");
            let strip = part("Strip").is_some_and(|d| d["start"].as_u64().unwrap_or(0) > 0);
            return Ok(Self::SentencePiece {
                leading_space: metaspace || strip,
            });
        }
        Err(format!(
            "the decoder is {types:?}; supported are ByteLevel, Metaspace and ByteFallback"
        ))
    }

    fn vocabulary(self, tokenizer: &Tokenizer, size: usize) -> (Vocabulary, Vec<SpecialToken>) {
        let added = tokenizer.get_added_tokens_decoder();
        let mut vocabulary = Vocabulary::with_capacity(size, 8 * size);
        let mut special = Vec::new();
        let mut bytes = Vec::new();
        for id in 0..size as u32 {
            bytes.clear();
            let written = tokenizer.id_to_token(id);
            let kind = match (added.get(&id), &written) {
                (Some(token), _) if token.special => TokenKind::Control,
                (Some(_), _) => TokenKind::UserDefined,
                (None, Some(text)) if self.is_byte(text) => TokenKind::Byte,
                (None, Some(_)) => TokenKind::Normal,
                (None, None) => TokenKind::Unused,
            };
            let written = written.as_deref().unwrap_or_default();
            match self {
                Self::ByteLevel => byte_level::token_bytes(written, kind, &mut bytes),
                Self::SentencePiece { .. } => sentence_piece::token_bytes(written, kind, &mut bytes),
            }
            vocabulary.push(&bytes, kind);
            special.extend(added.get(&id).map(|token| SpecialToken {
                id,
                text: token.content.clone(),
                user_defined: !token.special,
                strip_left: token.lstrip,
                strip_right: token.rstrip,
            }));
        }
        vocabulary.leading_space = matches!(self, Self::SentencePiece { leading_space: true });
        (vocabulary, special)
    }

    fn is_byte(self, written: &str) -> bool {
        matches!(self, Self::SentencePiece { .. }) && sentence_piece::parse_byte(written).is_some()
    }
}
