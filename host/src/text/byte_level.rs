//! The byte alphabet of byte-level vocabularies (GPT-2's): each byte is written as one printable character.

use super::vocabulary::TokenKind;

/// The byte that a character of the alphabet stands for.
///
/// Printable Latin-1 characters stand for themselves; the other 68 bytes, in order, are U+0100 and onwards.
pub(super) fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        n @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => u8::try_from(n).ok(),
        n @ 0x100..=0x120 => u8::try_from(n - 0x100).ok(),
        n @ 0x121..=0x142 => u8::try_from(n - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// Appends the bytes that a token's written form stands for. `None`, with `out` as it was, where a character
/// isn't of the alphabet.
pub(super) fn decode(written: &str, out: &mut Vec<u8>) -> Option<()> {
    let start = out.len();
    for c in written.chars() {
        match byte_of(c) {
            Some(byte) => out.push(byte),
            None => {
                out.truncate(start);
                return None;
            }
        }
    }
    Some(())
}

/// A token's bytes: those of special tokens, and of what isn't written in the alphabet, are their own text.
pub(super) fn token_bytes(written: &str, kind: TokenKind, out: &mut Vec<u8>) {
    let plain = matches!(kind, TokenKind::Normal | TokenKind::Byte | TokenKind::Unused);
    if !plain || decode(written, out).is_none() {
        out.extend_from_slice(written.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_covers_each_byte_once() {
        let mut bytes: Vec<u8> = (0..0x200)
            .filter_map(char::from_u32)
            .filter_map(byte_of)
            .collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn spaces_and_newlines_have_their_known_letters() {
        let mut out = Vec::new();
        assert!(decode("ĠaĊÃ©", &mut out).is_some());
        assert_eq!(out, " a\né".as_bytes());
        assert!(
            decode("a b", &mut out).is_none(),
            "a raw space is not of the alphabet"
        );
        assert_eq!(out, " a\né".as_bytes());
    }
}
