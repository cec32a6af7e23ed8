//! What fuzzers call: a model's text side made of bytes from anywhere, and then used. Nothing here may panic or run
//! away, and no text gets a token that the vocabulary lacks.

use super::{
    Chat, Detokenizer, Message, Role, Special, Text, TextError, TokenNames, Tokenizer, open::Templates,
};
use met_model::Checkpoint;

pub use super::template::fuzz as template;

/// Texts that take every path: words, spaces, digits, other scripts, joined emoji, half of a special token.
const TEXTS: [&str; 6] = [
    "",
    "Hello, world!\n\n  1234567 x",
    "<|im_start|>user\n<s>[INST]</s>",
    "naïve 漢字 👩‍👩‍👧 ａ\u{301}",
    " \t\u{a0}\0\u{fffd}\u{10ffff}",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];

/// Reads `bytes` as a GGUF file.
pub fn metadata(bytes: &[u8]) {
    if let Ok(checkpoint) = Checkpoint::from_bytes(bytes.to_vec()) {
        exercise(Text::from_metadata(checkpoint.metadata()));
    }
}

/// Reads `bytes` as a `tokenizer.json`.
pub fn tokenizer_json(bytes: &[u8]) {
    let tokenizer = Tokenizer::from_tokenizer_json(bytes, Some("<s>"), None);
    let text = |tokenizer| {
        let (names, templates) = (TokenNames::default(), Templates::default());
        Text::new(tokenizer, names, Vec::new(), templates, [0; 32])
    };
    exercise(tokenizer.and_then(text));
}

fn exercise(text: Result<Text, TextError>) {
    let Ok(text) = text else { return };
    let check = |tokens: Vec<u32>| {
        let mut detokenizer = Detokenizer::new(text.vocabulary().clone());
        for token in tokens {
            assert!(
                (token as usize) < text.vocabulary().len(),
                "there is no token {token}"
            );
            detokenizer.push(token);
        }
        detokenizer.finish();
    };
    for sample in TEXTS {
        for special in [Special::Text, Special::Parse] {
            let _ = text.encode(sample, special, true).map(check);
        }
        let chat = Chat {
            messages: vec![Message::new(Role::User, sample)],
            ..Chat::default()
        };
        let _ = text.prompt(&chat).map(check);
    }
}
