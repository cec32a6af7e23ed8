//! One choice of an answer: tokens in, text out.

use std::{collections::VecDeque, sync::Arc};

use super::openai::{Logprob, TokenLogprob};
use crate::{
    request::Token,
    text::{Detokenizer, StopMatcher, Vocabulary},
};

/// The text of one choice as its tokens arrive. Text that may turn out to begin a stop text, and bytes that begin
/// a character, are held back until that is settled.
pub struct Choice {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    logprobs: Option<Logprobs>,
    /// Tokens taken.
    pub tokens: u32,
    /// Tokens of its prompt that were not computed.
    pub cached: u32,
}

/// What became sure.
#[derive(Debug, Default, PartialEq)]
pub struct Delta {
    /// Text that follows what was given before.
    pub text: String,
    /// The tokens whose text begins before the end of what was given so far, where they were asked for.
    pub logprobs: Option<Vec<TokenLogprob>>,
    /// Whether a stop text came: nothing follows.
    pub stopped: bool,
}

/// Tokens that wait for their text to become sure.
pub struct Logprobs {
    vocabulary: Arc<Vocabulary>,
    waiting: VecDeque<Waiting>,
    /// Characters and bytes of the text of all tokens so far.
    characters: usize,
    decoded: usize,
    /// Bytes of it that were given.
    given: usize,
}

struct Waiting {
    entry: TokenLogprob,
    /// Where its text begins, in bytes.
    start: usize,
}

impl Choice {
    /// A choice that has no token yet. With `logprobs` its tokens are reported with their log-probabilities.
    pub fn new(detokenizer: Detokenizer, stops: StopMatcher, logprobs: Option<Logprobs>) -> Self {
        Self {
            detokenizer,
            stops,
            logprobs,
            tokens: 0,
            cached: 0,
        }
    }

    /// Takes the next token.
    pub fn push(&mut self, token: Token) -> Delta {
        self.tokens += 1;
        let piece = self.detokenizer.push(token.id);
        if let Some(logprobs) = &mut self.logprobs {
            logprobs.push(token, piece);
        }
        let released = self.stops.push(piece);
        let (text, stopped) = (released.text.to_owned(), released.stopped.is_some());
        self.delta(text, stopped)
    }

    /// Gives what was held back: no token follows.
    pub fn finish(&mut self) -> Delta {
        let released = self.stops.push(self.detokenizer.finish());
        let (mut text, stopped) = (released.text.to_owned(), released.stopped.is_some());
        if !stopped {
            text.push_str(self.stops.finish());
        }
        self.delta(text, stopped)
    }

    fn delta(&mut self, text: String, stopped: bool) -> Delta {
        let logprobs = self.logprobs.as_mut();
        Delta {
            logprobs: logprobs.map(|logprobs| logprobs.release(text.len(), stopped)),
            text,
            stopped,
        }
    }
}

impl Delta {
    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.logprobs.as_ref().is_none_or(Vec::is_empty)
    }
}

impl Logprobs {
    /// None yet, of tokens of this vocabulary.
    pub fn new(vocabulary: Arc<Vocabulary>) -> Self {
        Self {
            vocabulary,
            waiting: VecDeque::new(),
            characters: 0,
            decoded: 0,
            given: 0,
        }
    }

    /// Takes a token that added `piece` to the text.
    fn push(&mut self, token: Token, piece: &str) {
        let entry = |id, logprob| Logprob {
            bytes: self.vocabulary.token_bytes(id).to_vec(),
            logprob,
        };
        let top = token
            .top
            .iter()
            .map(|&(id, logprob)| entry(id, logprob))
            .collect();
        let entry = TokenLogprob {
            token: entry(token.id, token.logprob),
            top,
            offset: self.characters,
        };
        self.waiting.push_back(Waiting {
            entry,
            start: self.decoded,
        });
        self.characters += piece.chars().count();
        self.decoded += piece.len();
    }

    /// Gives the tokens whose text begins within the text given, which grew by `bytes`. Unless that was `cut` by a
    /// stop text, a token that adds no text after its end belongs to it too.
    fn release(&mut self, bytes: usize, cut: bool) -> Vec<TokenLogprob> {
        self.given += bytes;
        let is_given = |waiting: &Waiting| waiting.start < self.given || (!cut && self.given == self.decoded);
        let count = self
            .waiting
            .iter()
            .take_while(|waiting| is_given(waiting))
            .count();
        self.waiting.drain(..count).map(|waiting| waiting.entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::tests::text::text;

    /// A choice whose tokens are bytes.
    fn choice(stop: &[&str]) -> Choice {
        let vocabulary = text().vocabulary().clone();
        let stops = StopMatcher::new(stop).unwrap();
        Choice::new(
            Detokenizer::new(vocabulary.clone()),
            stops,
            Some(Logprobs::new(vocabulary)),
        )
    }

    fn push(choice: &mut Choice, byte: u8) -> (String, Vec<(Vec<u8>, usize)>, bool) {
        plain(choice.push(Token {
            id: u32::from(byte),
            ..Token::default()
        }))
    }

    /// Text, the bytes and offsets of its tokens, and whether it stopped.
    fn plain(delta: Delta) -> (String, Vec<(Vec<u8>, usize)>, bool) {
        let tokens = delta
            .logprobs
            .unwrap()
            .into_iter()
            .map(|entry| (entry.token.bytes, entry.offset));
        (delta.text, tokens.collect(), delta.stopped)
    }

    #[test]
    fn the_tokens_of_a_character_come_with_it_or_before() {
        let mut choice = choice(&[]);
        let [first, second] = [0xc3, 0xa9];
        assert_eq!(
            push(&mut choice, first),
            (String::new(), vec![(vec![first], 0)], false)
        );
        assert_eq!(
            push(&mut choice, second),
            ("é".into(), vec![(vec![second], 0)], false)
        );
        assert_eq!(
            push(&mut choice, b'a'),
            ("a".into(), vec![(vec![b'a'], 1)], false)
        );
        assert_eq!(push(&mut choice, first).0, "");
        assert_eq!(plain(choice.finish()), ("\u{fffd}".into(), vec![], false));
        assert_eq!(choice.tokens, 4);
    }

    #[test]
    fn tokens_wait_with_text_that_may_begin_a_stop_text() {
        let mut choice = choice(&["bcd"]);
        assert_eq!(
            push(&mut choice, b'a'),
            ("a".into(), vec![(vec![b'a'], 0)], false)
        );
        assert_eq!(push(&mut choice, b'b'), (String::new(), vec![], false));
        assert_eq!(
            push(&mut choice, b'b'),
            ("b".into(), vec![(vec![b'b'], 1)], false)
        );
        assert_eq!(push(&mut choice, b'c'), (String::new(), vec![], false));
        assert_eq!(push(&mut choice, b'd'), (String::new(), vec![], true));
    }

    #[test]
    fn what_waits_is_given_at_the_end() {
        let mut choice = choice(&["abc"]);
        assert_eq!(push(&mut choice, b'a').0, "");
        assert_eq!(push(&mut choice, b'b').0, "");
        assert_eq!(
            plain(choice.finish()),
            ("ab".into(), vec![(vec![b'a'], 0), (vec![b'b'], 1)], false)
        );
    }
}
