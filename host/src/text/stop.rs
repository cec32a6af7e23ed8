//! Stop strings: the output ends before the first of them.

use super::TextError;

/// Most stop strings of a request.
pub const MAX_STOPS: usize = 16;
/// Longest stop string, in bytes.
pub const MAX_STOP_BYTES: usize = 1024;

/// Looks for stop strings in a text that comes in pieces. The match that ends first wins, and of those that end
/// together the longest, so the result doesn't depend on how the text was cut. Text that may turn out to
/// belong to a stop string is held back until it can't.
///
/// Runs one Knuth-Morris-Pratt automaton for each string: a few steps a byte, whatever the text.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    /// The end of the text so far that is held back.
    held: String,
    out: String,
    stopped: Option<usize>,
}

/// What a piece of text released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released<'a> {
    /// The text to pass on.
    pub text: &'a str,
    /// The index of the stop string that was found; from then on no text is passed on.
    pub stopped: Option<usize>,
}

#[derive(Clone, Debug)]
struct Pattern {
    bytes: Vec<u8>,
    /// For each beginning of the pattern, the length of the longest shorter one that it ends with.
    fallback: Vec<usize>,
    /// Length of the longest beginning that the text ends with.
    matched: usize,
}

impl StopMatcher {
    /// A matcher for these strings; none are fine.
    ///
    /// # Errors
    /// [`TextError::Request`] for an empty string, and for more or longer ones than allowed.
    pub fn new<S: AsRef<str>>(stops: impl IntoIterator<Item = S>) -> Result<Self, TextError> {
        let mut patterns = Vec::new();
        for stop in stops {
            let stop = stop.as_ref();
            if stop.is_empty() || stop.len() > MAX_STOP_BYTES || patterns.len() == MAX_STOPS {
                return Err(TextError::Request(format!(
                    "at most {MAX_STOPS} stop strings of 1 to {MAX_STOP_BYTES} bytes are allowed"
                )));
            }
            patterns.push(Pattern::new(stop));
        }
        Ok(Self {
            patterns,
            held: String::new(),
            out: String::new(),
            stopped: None,
        })
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str) -> Released<'_> {
        self.out.clear();
        if self.stopped.is_none() {
            self.advance(text);
        }
        Released {
            text: &self.out,
            stopped: self.stopped,
        }
    }

    /// The end of the text: gives what was held back.
    pub fn finish(&mut self) -> &str {
        self.out.clear();
        std::mem::swap(&mut self.out, &mut self.held);
        &self.out
    }

    fn advance(&mut self, text: &str) {
        let before = self.held.len();
        self.held.push_str(text);
        for (i, byte) in text.bytes().enumerate() {
            self.patterns.iter_mut().for_each(|p| p.advance(byte));
            let complete = self.patterns.iter().enumerate().filter(|(_, p)| p.is_complete());
            // The longest begins first. `max_by_key` takes the last of equals, hence `rev`: the first one named.
            if let Some((stop, pattern)) = complete.rev().max_by_key(|(_, p)| p.bytes.len()) {
                let start = before + i + 1 - pattern.bytes.len();
                self.out.push_str(&self.held[..start]);
                self.held.clear();
                self.stopped = Some(stop);
                return;
            }
        }
        let keep = self.patterns.iter().map(|p| p.matched).max().unwrap_or(0);
        // A stop string begins with a whole character, so this cuts between characters.
        self.out.extend(self.held.drain(..self.held.len() - keep));
    }
}

impl Pattern {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut pattern = Self {
            fallback: vec![0; bytes.len()],
            bytes,
            matched: 0,
        };
        for i in 1..pattern.bytes.len() {
            pattern.advance(pattern.bytes[i]);
            pattern.fallback[i] = pattern.matched;
        }
        pattern.matched = 0;
        pattern
    }

    fn advance(&mut self, byte: u8) {
        loop {
            if self.bytes.get(self.matched) == Some(&byte) {
                self.matched += 1;
                return;
            }
            match self.matched.checked_sub(1) {
                Some(last) => self.matched = self.fallback[last],
                None => return,
            }
        }
    }

    fn is_complete(&self) -> bool {
        self.matched == self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, on the whole text.
    fn naive<'t>(stops: &[String], text: &'t str) -> (&'t str, Option<usize>) {
        let ends = stops.iter().enumerate().filter_map(|(i, stop)| {
            let start = text.find(stop.as_str())?;
            Some((start + stop.len(), start, i))
        });
        match ends.min() {
            Some((_, start, i)) => (&text[..start], Some(i)),
            None => (text, None),
        }
    }

    fn run(stops: &[String], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops).unwrap();
        let mut out = String::new();
        let mut stopped = None;
        for piece in pieces {
            let released = matcher.push(piece);
            out.push_str(released.text);
            stopped = released.stopped;
        }
        out.push_str(matcher.finish());
        (out, stopped)
    }

    #[test]
    fn text_is_held_only_while_it_may_belong_to_a_stop_string() {
        let mut matcher = StopMatcher::new(["</end>"]).unwrap();
        let mut push = |text: &str| matcher.push(text).text.to_owned();
        assert_eq!(push("a </e"), "a ");
        assert_eq!(push("n"), "");
        assert_eq!(push("</"), "</en");
        assert_eq!(push("end"), "");
        let last = matcher.push("> more");
        assert_eq!((last.text, last.stopped), ("", Some(0)));
        assert_eq!(matcher.push("x").text, "");
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn what_is_held_at_the_end_is_given_out() {
        let stops = ["\u{e9}\u{e9}".to_owned()];
        assert_eq!(run(&stops, &["a\u{e9}"]), ("a\u{e9}".to_owned(), None));
    }

    #[test]
    fn empty_long_and_many_strings_are_refused() {
        assert!(StopMatcher::new([""]).is_err());
        assert!(StopMatcher::new(["x".repeat(MAX_STOP_BYTES + 1)]).is_err());
        assert!(StopMatcher::new(["x"; MAX_STOPS + 1]).is_err());
        assert!(StopMatcher::new(["x"; MAX_STOPS]).is_ok());
    }

    proptest! {
        #[test]
        fn any_cut_gives_what_a_search_in_the_whole_text_gives(
            stops in proptest::collection::vec("[ab\u{e9}]{1,5}", 0..5),
            pieces in proptest::collection::vec("[ab\u{e9}]{0,4}", 0..20),
        ) {
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let text = pieces.concat();
            let (expected, stopped) = naive(&stops, &text);
            prop_assert_eq!(run(&stops, &pieces), (expected.to_owned(), stopped));
        }
    }
}
