//! Tokens back to text, one at a time.

use super::vocabulary::Vocabulary;
use std::sync::Arc;

/// Turns a stream of tokens into text. What it gives out, put together, is what decoding all tokens at once
/// gives: bytes that are no UTF-8 become U+FFFD, and half a character is held until its rest is there.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    vocabulary: Arc<Vocabulary>,
    /// Bytes that may still become a character; at most 3.
    held: Vec<u8>,
    text: String,
    /// The next byte is the first, and a space there was put in by encoding.
    drops_space: bool,
}

impl Detokenizer {
    /// For a text of its own, such as a chat message.
    pub fn new(vocabulary: Arc<Vocabulary>) -> Self {
        Self {
            drops_space: vocabulary.leading_space,
            held: Vec::new(),
            text: String::new(),
            vocabulary,
        }
    }

    /// For a text that goes on after other text, such as a completion of a prompt: keeps a leading space.
    pub fn continuing(vocabulary: Arc<Vocabulary>) -> Self {
        Self {
            drops_space: false,
            ..Self::new(vocabulary)
        }
    }

    /// The text that a token adds. Tokens that are no text add none. Takes time in proportion to the token's
    /// own length.
    pub fn push(&mut self, token: u32) -> &str {
        self.text.clear();
        if self.vocabulary.kind(token).is_visible() {
            let mut bytes = self.vocabulary.token_bytes(token);
            if self.drops_space && !bytes.is_empty() {
                self.drops_space = false;
                bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            }
            self.held.extend_from_slice(bytes);
            self.release();
        }
        &self.text
    }

    /// The end: U+FFFD where a character was begun, else nothing.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.held.is_empty() {
            self.held.clear();
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
        &self.text
    }

    /// Moves whole characters from `held` to `text`.
    fn release(&mut self) {
        let mut rest = self.held.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    self.text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    self.text.push_str(&String::from_utf8_lossy(valid));
                    rest = after;
                    let Some(invalid) = error.error_len() else { break };
                    self.text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[invalid..];
                }
            }
        }
        self.held.drain(..self.held.len() - rest.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::vocabulary::TokenKind;
    use proptest::prelude::*;

    fn vocabulary(tokens: &[&[u8]], leading_space: bool) -> Arc<Vocabulary> {
        let mut vocabulary = Vocabulary::default();
        vocabulary.push(b"<|end|>", TokenKind::Control);
        tokens.iter().for_each(|t| vocabulary.push(t, TokenKind::Normal));
        vocabulary.leading_space = leading_space;
        Arc::new(vocabulary)
    }

    fn pieces(vocabulary: &Arc<Vocabulary>, tokens: &[u32]) -> Vec<String> {
        let mut detokenizer = Detokenizer::new(vocabulary.clone());
        let mut pieces: Vec<String> = tokens.iter().map(|&t| detokenizer.push(t).to_owned()).collect();
        pieces.push(detokenizer.finish().to_owned());
        pieces
    }

    #[test]
    fn half_a_character_waits_for_its_rest() {
        let v = vocabulary(&[b"a\xf0\x9f", b"\x98", b"\x80!"], false);
        assert_eq!(pieces(&v, &[1, 2, 3]), ["a", "", "\u{1f600}!", ""]);
        assert_eq!(
            pieces(&v, &[1, 0, 2]),
            ["a", "", "", "\u{fffd}"],
            "a control token is no text"
        );
        assert_eq!(pieces(&v, &[1, 1, 99]), ["a", "\u{fffd}a", "", "\u{fffd}"]);
    }

    #[test]
    fn the_space_that_encoding_put_in_is_taken_away_once() {
        let v = vocabulary(&[b" ", b" a"], true);
        assert_eq!(pieces(&v, &[0, 2, 2]).concat(), "a a");
        assert_eq!(pieces(&v, &[1, 2]).concat(), " a");
        let mut continuing = Detokenizer::continuing(v);
        assert_eq!(continuing.push(2), " a");
    }

    proptest! {
        #[test]
        fn pieces_are_the_whole_decode(
            tokens in proptest::collection::vec(proptest::collection::vec(
                prop_oneof![any::<u8>(), Just(0xf0), Just(0x9f), Just(0x98), Just(0xe2), Just(0x80), Just(b' ')], 0..5), 1..20),
            ids in proptest::collection::vec(0u32..24, 0..60),
            leading_space: bool,
        ) {
            let slices: Vec<&[u8]> = tokens.iter().map(Vec::as_slice).collect();
            let v = vocabulary(&slices, leading_space);
            let bytes: Vec<u8> = ids.iter().filter(|&&id| id != 0).flat_map(|&id| v.token_bytes(id).to_vec()).collect();
            let cut = usize::from(leading_space && bytes.first() == Some(&b' '));
            prop_assert_eq!(pieces(&v, &ids).concat(), String::from_utf8_lossy(&bytes[cut..]));
        }
    }
}
