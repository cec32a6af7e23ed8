//! Special tokens: those that are matched as whole texts, before anything else is split.
//!
//! Only a template may name control tokens. What a client writes goes through [`Guard`] first, which breaks
//! every control token's text that it could form, so that it is tokenised as the ordinary text it is.

use super::{
    TextError,
    vocabulary::{TokenKind, Vocabulary},
};
use aho_corasick::{AhoCorasick, MatchKind};
use std::{borrow::Cow, collections::HashSet, ops::Range};

/// Whether a text may name control tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// No: their text is ordinary text.
    Text,
    /// Yes.
    Parse,
}

/// A special token.
#[derive(Clone, Debug)]
pub(super) struct SpecialToken {
    pub id: u32,
    pub text: String,
    /// Matched in every text, not only where control tokens are parsed.
    pub user_defined: bool,
    /// White space before it belongs to it.
    pub strip_left: bool,
    /// White space after it belongs to it.
    pub strip_right: bool,
}

/// A part of a text: a special token, or text to tokenise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fragment {
    pub range: Range<usize>,
    pub token: Option<u32>,
}

/// A vocabulary's special tokens.
pub(super) struct SpecialTokens {
    parse: Matcher,
    text: Matcher,
    /// Finds every occurrence of a control token, overlapping ones too.
    control: AhoCorasick,
    beginnings: Beginnings,
    /// Those of the control tokens read backwards.
    ends: Beginnings,
}

struct Matcher {
    automaton: AhoCorasick,
    tokens: Vec<SpecialToken>,
}

/// Texts that are searched by what they begin with.
struct Beginnings {
    sorted: Vec<Vec<u8>>,
    longest: usize,
}

/// Longest control token, and most bytes of all special tokens together.
const MAX_CONTROL_BYTES: usize = 1024;
const MAX_SPECIAL_BYTES: usize = 4 << 20;

impl SpecialTokens {
    /// The special tokens of a vocabulary in which they strip no white space.
    pub fn from_vocabulary(vocabulary: &Vocabulary) -> Result<Self, TextError> {
        let special = vocabulary.kinds().filter_map(|(id, kind)| {
            let user_defined = match kind {
                TokenKind::UserDefined => true,
                TokenKind::Control | TokenKind::Unknown => false,
                _ => return None,
            };
            Some(SpecialToken {
                id,
                text: String::from_utf8(vocabulary.token_bytes(id).to_vec()).ok()?,
                user_defined,
                strip_left: false,
                strip_right: false,
            })
        });
        Self::new(special.collect())
    }

    pub fn new(mut tokens: Vec<SpecialToken>) -> Result<Self, TextError> {
        // A control token of one character couldn't be told from that character in a client's text.
        tokens.retain(|t| t.text.chars().count() > if t.user_defined { 0 } else { 1 });
        let total: usize = tokens.iter().map(|t| t.text.len()).sum();
        let control = || {
            tokens
                .iter()
                .filter(|t| !t.user_defined)
                .map(|t| t.text.as_bytes())
        };
        if total > MAX_SPECIAL_BYTES || control().any(|text| text.len() > MAX_CONTROL_BYTES) {
            return Err(TextError::Checkpoint(format!(
                "the vocabulary's special tokens have {total} bytes; {MAX_SPECIAL_BYTES} are allowed, and \
                 {MAX_CONTROL_BYTES} for a control token"
            )));
        }
        Ok(Self {
            text: Matcher::new(tokens.iter().filter(|t| t.user_defined).cloned().collect())?,
            control: automaton(MatchKind::Standard, control())?,
            beginnings: Beginnings::new(control().map(<[u8]>::to_vec)),
            ends: Beginnings::new(control().map(|text| text.iter().rev().copied().collect())),
            parse: Matcher::new(tokens)?,
        })
    }

    /// Splits a text at its special tokens. Fragments are in order, cover the text, and are not empty.
    pub fn partition(&self, text: &str, special: Special) -> Vec<Fragment> {
        let matcher = match special {
            Special::Text => &self.text,
            Special::Parse => &self.parse,
        };
        matcher.partition(text)
    }

    /// Like [`partition`](Self::partition) with [`Special::Parse`], for a text in which a [`Guard`] set marks:
    /// the text without its marks, and its fragments.
    pub fn partition_guarded(&self, text: &str, mark: char) -> (String, Vec<Fragment>) {
        let mut fragments = self.parse.partition(text);
        let mut clean = String::with_capacity(text.len());
        for fragment in &mut fragments {
            let start = clean.len();
            clean.extend(text[fragment.range.clone()].chars().filter(|&c| c != mark));
            fragment.range = start..clean.len();
        }
        fragments.retain(|f| !f.range.is_empty());
        (clean, fragments)
    }
}

impl Beginnings {
    fn new(texts: impl Iterator<Item = Vec<u8>>) -> Self {
        let mut sorted: Vec<_> = texts.collect();
        sorted.sort_unstable();
        let longest = sorted.iter().map(Vec::len).max().unwrap_or(0);
        Self { sorted, longest }
    }

    /// Whether one of the texts begins with `part`.
    fn have(&self, part: &[u8]) -> bool {
        let first = self.sorted.partition_point(|text| text.as_slice() < part);
        self.sorted.get(first).is_some_and(|text| text.starts_with(part))
    }
}

impl Matcher {
    fn new(tokens: Vec<SpecialToken>) -> Result<Self, TextError> {
        Ok(Self {
            automaton: automaton(MatchKind::LeftmostLongest, tokens.iter().map(|t| &t.text))?,
            tokens,
        })
    }

    fn partition(&self, text: &str) -> Vec<Fragment> {
        let mut fragments = Vec::new();
        let mut done = 0;
        let mut push = |range: Range<usize>, token| {
            if !range.is_empty() {
                fragments.push(Fragment { range, token });
            }
        };
        for found in self.automaton.find_iter(text) {
            let (Some(token), true) = (self.tokens.get(found.pattern().as_usize()), found.start() >= done)
            else {
                continue;
            };
            let mut range = found.range();
            if token.strip_left {
                range.start = done + text[done..range.start].trim_end().len();
            }
            if token.strip_right {
                range.end = text.len() - text[range.end..].trim_start().len();
            }
            push(done..range.start, None);
            done = range.end;
            push(range, Some(token.id));
        }
        push(done..text.len(), None);
        fragments
    }
}

fn automaton(
    kind: MatchKind,
    texts: impl IntoIterator<Item = impl AsRef<[u8]>>,
) -> Result<AhoCorasick, TextError> {
    let automaton = AhoCorasick::builder().match_kind(kind).build(texts);
    automaton
        .map_err(|e| TextError::Checkpoint(format!("the vocabulary's special tokens can't be indexed: {e}")))
}

/// Keeps a client's text from becoming control tokens once a template has put it into a prompt.
///
/// It sets a mark, a character that occurs nowhere in the request, into every control token's text and beside
/// what could complete one across a border. The template's filters (trim, split and the like) see the text
/// otherwise unchanged; after rendering, special tokens are looked for, and only then are the marks taken out.
pub(super) struct Guard<'a> {
    tokens: &'a SpecialTokens,
    mark: char,
}

impl<'a> Guard<'a> {
    /// A guard for a request in which none of `texts` contains its mark. `None` where a request uses up every
    /// candidate, which takes more than 65,000 different private characters.
    pub fn new<'t>(tokens: &'a SpecialTokens, texts: impl IntoIterator<Item = &'t str>) -> Option<Self> {
        // Noncharacters, then private use: neither is white space, a letter, or changed by any filter.
        let candidates = || ('\u{fdd0}'..='\u{fdef}').chain('\u{f0000}'..='\u{ffffd}');
        let chars = texts.into_iter().flat_map(str::chars);
        let used: HashSet<char> = chars.filter(|c| *c >= '\u{fdd0}').collect();
        let mark = candidates().find(|c| !used.contains(c))?;
        Some(Self { tokens, mark })
    }

    /// The mark.
    pub fn mark(&self) -> char {
        self.mark
    }

    /// The text with marks where it has, begins or completes a control token.
    pub fn protect<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut at: Vec<usize> = self.inside(text).chain(self.borders(text)).collect();
        if at.is_empty() {
            return Cow::Borrowed(text);
        }
        at.sort_unstable();
        at.dedup();
        let mut marked = String::with_capacity(text.len() + 4 * at.len());
        let mut done = 0;
        for i in at {
            marked.push_str(&text[done..i]);
            marked.push(self.mark);
            done = i;
        }
        marked.push_str(&text[done..]);
        Cow::Owned(marked)
    }

    /// After the first character of each control token.
    fn inside<'t>(&self, text: &'t str) -> impl Iterator<Item = usize> + use<'t, '_> {
        self.tokens.control.find_overlapping_iter(text).map(|found| {
            let first = text[found.start()..].chars().next();
            found.start() + first.map_or(0, char::len_utf8)
        })
    }

    /// Before an end of a control token that the text begins with, and after a beginning that it ends with;
    /// white space at the borders aside, which templates trim.
    fn borders(&self, text: &str) -> impl Iterator<Item = usize> + use<> {
        let SpecialTokens { beginnings, ends, .. } = self.tokens;
        let body = text.trim().as_bytes();
        let start = text.len() - text.trim_start().len();
        let end = start + body.len();
        let near = body.len().min(beginnings.longest);
        let mut head = body[..near].to_vec();
        head.reverse();
        let completes = (0..near).any(|i| ends.have(&head[i..]));
        let begins = (1..=near).any(|n| beginnings.have(&body[body.len() - n..]));
        completes
            .then_some(start)
            .into_iter()
            .chain(begins.then_some(end))
    }
}
