//! Byte-level byte-pair encoding: GGUF's tokenizer model `gpt2`.
//!
//! Own code rather than the `tokenizers` crate's: it builds from the borrowed metadata in a few milliseconds,
//! keeps the vocabulary once, and its pre-tokenizers take linear time on any text.

use super::{
    TextError, byte_level,
    index::TokenIndex,
    merge::{Merge, Merger, Symbol},
    pretokenizer::PreTokenizer,
    source::VocabSource,
    special::Fragment,
    tokenizer::Encoder,
    vocabulary::{TokenKind, Vocabulary},
};
use hashbrown::HashMap;
use std::sync::Arc;

pub(super) struct BytePair {
    vocabulary: Arc<Vocabulary>,
    index: TokenIndex,
    /// The token of each single byte.
    bytes: Vec<Option<u32>>,
    /// (left, right) → (rank, joined token).
    merges: HashMap<(u32, u32), (u32, u32)>,
    pre_tokenizer: PreTokenizer,
}

impl BytePair {
    pub fn new(source: &VocabSource<'_>, vocabulary: Arc<Vocabulary>, pre_tokenizer: PreTokenizer) -> Self {
        let mut index = TokenIndex::default();
        // A written form outside of the alphabet isn't reachable by merging, and control tokens must not be.
        // Normal tokens come first: where a user-defined token has the same bytes, it is matched elsewhere.
        for wanted in [TokenKind::Normal, TokenKind::UserDefined] {
            for ((id, kind), written) in vocabulary.kinds().zip(&source.tokens) {
                if kind == wanted && written.chars().all(|c| byte_level::byte_of(c).is_some()) {
                    index.insert(&vocabulary, id);
                }
            }
        }
        let find = |bytes: &[u8]| index.get(&vocabulary, bytes);
        let bytes = (0..=255u8).map(|byte| find(&[byte])).collect();

        let mut merges = HashMap::with_capacity(source.merges.len());
        let mut joined = Vec::new();
        for (rank, merge) in (0..).zip(&source.merges) {
            joined.clear();
            // A merge with a part or a result that is no token can never happen.
            let ids = merge.split_once(' ').and_then(|(left, right)| {
                byte_level::decode(left, &mut joined)?;
                let middle = joined.len();
                byte_level::decode(right, &mut joined)?;
                let pair = (find(&joined[..middle])?, find(&joined[middle..])?);
                Some((pair, find(&joined)?))
            });
            if let Some((pair, id)) = ids {
                merges.entry(pair).or_insert((rank, id));
            }
        }
        Self {
            vocabulary,
            index,
            bytes,
            merges,
            pre_tokenizer,
        }
    }

    fn encode_text(&self, text: &str, merger: &mut Merger, out: &mut Vec<u32>) {
        self.pre_tokenizer.split(text, &mut |word| {
            if self.pre_tokenizer.whole_words
                && let Some(id) = self.index.get(&self.vocabulary, word.as_bytes())
            {
                return out.push(id);
            }
            merger.clear();
            for byte in word.bytes() {
                merger.push(self.bytes[usize::from(byte)], 1);
            }
            // A byte that the vocabulary lacks has no token.
            out.extend(merger.merge(|a, b| self.rule(a, b)).filter_map(|s| s.id));
        });
    }

    fn rule(&self, left: &Symbol, right: &Symbol) -> Option<Merge> {
        let &(priority, id) = self.merges.get(&(left.id?, right.id?))?;
        Some(Merge { priority, id })
    }
}

impl Encoder for BytePair {
    fn encode(&self, text: &str, fragments: &[Fragment], out: &mut Vec<u32>) -> Result<(), TextError> {
        let mut merger = Merger::default();
        for fragment in fragments {
            match fragment.token {
                Some(id) => out.push(id),
                None => self.encode_text(&text[fragment.range.clone()], &mut merger, out),
            }
        }
        Ok(())
    }
}
