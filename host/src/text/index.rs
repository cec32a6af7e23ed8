//! Finds a token by its bytes. Ids alone are stored; the bytes stay in the vocabulary.

use super::vocabulary::Vocabulary;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

#[derive(Default)]
pub(super) struct TokenIndex {
    ids: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// Bytes of the longest token.
    longest: usize,
}

impl TokenIndex {
    /// Adds a token, unless one with the same bytes is there.
    pub fn insert(&mut self, vocabulary: &Vocabulary, id: u32) {
        let bytes = vocabulary.token_bytes(id);
        if bytes.is_empty() {
            return;
        }
        self.longest = self.longest.max(bytes.len());
        let hash = |id: &u32| self.hasher.hash_one(vocabulary.token_bytes(*id));
        let same = |other: &u32| vocabulary.token_bytes(*other) == bytes;
        self.ids.entry(hash(&id), same, hash).or_insert(id);
    }

    /// The token with these bytes.
    pub fn get(&self, vocabulary: &Vocabulary, bytes: &[u8]) -> Option<u32> {
        // Also what keeps a look-up's cost constant.
        if bytes.len() > self.longest {
            return None;
        }
        let same = |id: &u32| vocabulary.token_bytes(*id) == bytes;
        self.ids.find(self.hasher.hash_one(bytes), same).copied()
    }
}
