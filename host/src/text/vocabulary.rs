//! The vocabulary: what each token id means. One table whatever the tokenizer, so that reading tokens back
//! depends on nothing else.

use sha2::{Digest, Sha256};

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// A piece of text.
    Normal,
    /// Stands for "not in the vocabulary".
    Unknown,
    /// Steers the model (end of turn, say): matched in templates only, never shown.
    Control,
    /// A piece of text that is always matched as a whole, before any other splitting.
    UserDefined,
    /// A hole in the vocabulary: never shown.
    Unused,
    /// A single byte, for what no other token covers.
    Byte,
}

impl TokenKind {
    /// Whether the token is part of the text that a client sees.
    pub fn is_visible(self) -> bool {
        matches!(self, Self::Normal | Self::UserDefined | Self::Byte)
    }

    /// Whether the token is matched as a whole text.
    pub fn is_special(self) -> bool {
        matches!(self, Self::Control | Self::Unknown | Self::UserDefined)
    }
}

/// Every token's bytes and kind, by id.
#[derive(Debug, Default)]
pub struct Vocabulary {
    bytes: Vec<u8>,
    /// Where each token's bytes end.
    ends: Vec<usize>,
    kinds: Vec<TokenKind>,
    /// Encoding puts a space before the text, so decoding from the start takes one away.
    pub(super) leading_space: bool,
}

impl Vocabulary {
    pub(super) fn with_capacity(tokens: usize, bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(bytes),
            ends: Vec::with_capacity(tokens),
            kinds: Vec::with_capacity(tokens),
            leading_space: false,
        }
    }

    /// Appends the token with the next id.
    pub(super) fn push(&mut self, bytes: &[u8], kind: TokenKind) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
        self.kinds.push(kind);
    }

    /// Number of tokens. A model may compute logits for a few more ids, which mean nothing.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// A token's bytes, which need not be whole characters; for control tokens their name. Empty for an id
    /// outside of the vocabulary.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        let i = id as usize;
        let start = match i.checked_sub(1) {
            Some(before) => self.ends.get(before).copied(),
            None => Some(0),
        };
        match (start, self.ends.get(i)) {
            (Some(start), Some(&end)) => &self.bytes[start..end],
            _ => &[],
        }
    }

    /// A token's kind; `Unused` for an id outside of the vocabulary.
    pub fn kind(&self, id: u32) -> TokenKind {
        let kind = self.kinds.get(id as usize).copied();
        kind.unwrap_or(TokenKind::Unused)
    }

    /// Every id with its kind.
    pub fn kinds(&self) -> impl Iterator<Item = (u32, TokenKind)> + '_ {
        (0..).zip(self.kinds.iter().copied())
    }

    /// A hash of what the ids mean, in hexadecimal: token sequences can move between models in which it is equal.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        for (id, kind) in self.kinds() {
            let bytes = self.token_bytes(id);
            hash.update((bytes.len() as u32).to_le_bytes());
            hash.update([kind.is_visible().into()]);
            hash.update(bytes);
        }
        hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
    }
}
