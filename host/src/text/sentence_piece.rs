//! SentencePiece-style byte-pair encoding: GGUF's tokenizer model `llama`.
//!
//! Own code: the `tokenizers` crate orders merges by a rank for each pair, while SentencePiece orders them by
//! the score of the result and then by position, so their tokens differ where two pairs give one token.

use super::{
    TextError,
    index::TokenIndex,
    merge::{Merge, Merger, Symbol},
    source::VocabSource,
    special::Fragment,
    tokenizer::Encoder,
    vocabulary::{TokenKind, Vocabulary},
};
use std::sync::Arc;

pub(super) struct SentencePiece {
    vocabulary: Arc<Vocabulary>,
    index: TokenIndex,
    /// Each token's place in the order of merging: a higher score comes first.
    priorities: Vec<u32>,
    /// The token of each single byte, for characters that have none.
    bytes: Vec<Option<u32>>,
    unknown: Option<u32>,
    space_prefix: bool,
}

/// How a space is written in the vocabulary.
const SPACE: char = '\u{2581}';

/// A token's bytes.
pub(super) fn token_bytes(written: &str, kind: TokenKind, out: &mut Vec<u8>) {
    match (kind, parse_byte(written)) {
        (TokenKind::Byte, Some(byte)) => out.push(byte),
        (TokenKind::Control | TokenKind::Unknown, _) => out.extend_from_slice(written.as_bytes()),
        _ => out.extend_from_slice(written.replace(SPACE, " ").as_bytes()),
    }
}

/// The byte of a byte token, which is written `<0x0A>`.
pub(super) fn parse_byte(written: &str) -> Option<u8> {
    let digits = written.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_byte = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    is_byte.then(|| u8::from_str_radix(digits, 16).ok())?
}

impl SentencePiece {
    pub fn new(source: &VocabSource<'_>, vocabulary: Arc<Vocabulary>) -> Self {
        let mut index = TokenIndex::default();
        let mut bytes = vec![None; 256];
        for ((id, kind), written) in vocabulary.kinds().zip(&source.tokens) {
            match kind {
                TokenKind::Byte => {
                    if let Some(byte) = parse_byte(written) {
                        bytes[usize::from(byte)] = Some(id);
                    }
                }
                TokenKind::Control | TokenKind::Unknown => (),
                // The text's spaces are written otherwise, so merging can't reach a token with a real one.
                _ if written.contains(' ') => (),
                _ => index.insert(&vocabulary, id),
            }
        }
        let score = |id: usize| source.scores.get(id).copied().unwrap_or(0.0);
        Self {
            index,
            priorities: (0..vocabulary.len()).map(|id| descending(score(id))).collect(),
            bytes,
            unknown: source.unknown,
            space_prefix: source.add_space_prefix.unwrap_or(true),
            vocabulary,
        }
    }

    fn encode_text(&self, text: &str, prefix: &str, merger: &mut Merger, out: &mut Vec<u32>) {
        let text = format!("{prefix}{text}").replace(SPACE, " ");
        merger.clear();
        let mut buffer = [0; 4];
        for c in text.chars() {
            let bytes = c.encode_utf8(&mut buffer).as_bytes();
            merger.push(self.index.get(&self.vocabulary, bytes), bytes.len());
        }
        let text = text.as_bytes();
        for symbol in merger.merge(|a, b| self.rule(text, a, b)) {
            match symbol.id {
                Some(id) => out.push(id),
                None => {
                    let byte = |b: &u8| self.bytes[usize::from(*b)];
                    let bytes: Option<Vec<u32>> = text[range(symbol)].iter().map(byte).collect();
                    out.extend(bytes.unwrap_or(self.unknown.into_iter().collect()));
                }
            }
        }
    }

    fn rule(&self, text: &[u8], left: &Symbol, right: &Symbol) -> Option<Merge> {
        let joined = text.get(range(left).start..range(right).end)?;
        let id = self.index.get(&self.vocabulary, joined)?;
        let priority = *self.priorities.get(id as usize)?;
        Some(Merge { priority, id })
    }
}

impl Encoder for SentencePiece {
    fn encode(&self, text: &str, fragments: &[Fragment], out: &mut Vec<u32>) -> Result<(), TextError> {
        let mut merger = Merger::default();
        let mut starts = true;
        for fragment in fragments {
            match fragment.token {
                Some(id) => out.push(id),
                None => {
                    let prefix = if starts && self.space_prefix { " " } else { "" };
                    self.encode_text(&text[fragment.range.clone()], prefix, &mut merger, out);
                }
            }
            starts = fragment.token.is_some();
        }
        Ok(())
    }
}

fn range(symbol: &Symbol) -> std::ops::Range<usize> {
    let start = symbol.start as usize;
    start..start + symbol.len as usize
}

/// Maps scores to numbers that are in the opposite order.
fn descending(score: f32) -> u32 {
    let bits = score.to_bits();
    let sign = 1 << 31;
    if bits & sign == 0 { !(bits | sign) } else { bits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_scores_come_first() {
        let scores = [f32::INFINITY, 2.5, 1.0, 0.0, -0.5, -1.0, -1e9, f32::NEG_INFINITY];
        assert!(scores.windows(2).all(|w| descending(w[0]) < descending(w[1])));
    }

    #[test]
    fn only_exact_byte_names_are_bytes() {
        assert_eq!(parse_byte("<0x0A>"), Some(10));
        assert_eq!(parse_byte("<0xff>"), Some(255));
        for other in ["<0x0>", "<0x0AB>", "0x0A", "<0xZZ>", "<0x+1>", "<0xé>", ""] {
            assert_eq!(parse_byte(other), None, "{other}");
        }
    }
}
