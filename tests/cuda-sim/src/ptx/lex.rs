//! Splits PTX text into words and punctuation.

use super::{Refusal, refuse};

/// A token: a word (name, opcode, directive or number), a quoted text, or one punctuation character.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Token<'a> {
    Word(&'a str),
    Text(&'a str),
    Mark(u8),
}

/// All tokens of `source`, each with its line (from 1); comments are skipped.
pub(super) fn lex(source: &str) -> Result<Vec<(Token<'_>, u32)>, Refusal> {
    let bytes = source.as_bytes();
    let mut tokens = Vec::with_capacity(source.len() / 4);
    let (mut at, mut line) = (0, 1);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\n' => {
                line += 1;
                at += 1;
            }
            _ if byte.is_ascii_whitespace() => at += 1,
            b'/' if bytes.get(at + 1) == Some(&b'/') => at += until(&bytes[at..], |rest| rest[0] == b'\n'),
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let length = 2 + until(&bytes[at + 2..], |rest| rest.starts_with(b"*/"));
                line += bytes[at..at + length].iter().filter(|b| **b == b'\n').count() as u32;
                at = (at + length + 2).min(bytes.len());
            }
            b'"' => {
                let length = until(&bytes[at + 1..], |rest| rest[0] == b'"');
                if at + 1 + length >= bytes.len() {
                    return refuse(line, "a quoted text does not end");
                }
                tokens.push((Token::Text(&source[at + 1..at + 1 + length]), line));
                at += length + 2;
            }
            _ if in_word(byte) => {
                let length = word_length(&bytes[at..]);
                tokens.push((Token::Word(&source[at..at + length]), line));
                at += length;
            }
            _ if byte.is_ascii() => {
                tokens.push((Token::Mark(byte), line));
                at += 1;
            }
            _ => return refuse(line, "a character outside ASCII"),
        }
    }
    Ok(tokens)
}

fn in_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

/// The length of the word that `bytes` begin with. `a::b` is one word: cache hints such as
/// `.L2::128B` are written so.
fn word_length(bytes: &[u8]) -> usize {
    let mut length = 0;
    while length < bytes.len() {
        if in_word(bytes[length]) {
            length += 1;
        } else if bytes[length..].starts_with(b"::") {
            length += 2;
        } else {
            break;
        }
    }
    length
}

/// How many bytes come before the first position at which `stop` holds, or all.
fn until(bytes: &[u8], stop: impl Fn(&[u8]) -> bool) -> usize {
    (0..bytes.len())
        .find(|at| stop(&bytes[*at..]))
        .unwrap_or(bytes.len())
}
