//! The text of a model whose tokens are bytes.

use met_model::checkpoint::Checkpoint;

use super::END;
use crate::text::Text;

/// A chat is `[message]` for each of its messages; token [`END`] is `<end>`, and every other token is its byte.
pub fn text() -> Text {
    let tokens: Vec<String> = (0..=255)
        .map(|byte| {
            if byte == END {
                "<end>".into()
            } else {
                written(byte)
            }
        })
        .collect();
    let mut metadata = Metadata::default();
    metadata.text("general.architecture", "llama");
    metadata.text("tokenizer.ggml.model", "gpt2");
    metadata.text("tokenizer.ggml.pre", "default");
    metadata.texts("tokenizer.ggml.tokens", &tokens);
    metadata.texts("tokenizer.ggml.merges", &[]);
    metadata.number("tokenizer.ggml.eos_token_id", END);
    metadata.text(
        "tokenizer.chat_template",
        "{% for message in messages %}[{{ message.content }}]{% endfor %}",
    );
    let checkpoint = Checkpoint::from_bytes(metadata.file()).unwrap();
    Text::from_metadata(checkpoint.metadata()).unwrap()
}

/// Byte-level BPE's character for a byte: itself where it is printable, else one after the first 256.
fn written(byte: u32) -> String {
    let is_printable = |byte: &u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let code = match is_printable(&byte) {
        true => byte,
        false => 256 + (0..byte).filter(|other| !is_printable(other)).count() as u32,
    };
    char::from_u32(code).unwrap().into()
}

/// A GGUF file without tensors.
#[derive(Default)]
struct Metadata {
    count: u64,
    bytes: Vec<u8>,
}

impl Metadata {
    fn text(&mut self, key: &str, value: &str) {
        self.entry(key, 8);
        self.string(value);
    }

    fn texts(&mut self, key: &str, values: &[String]) {
        self.entry(key, 9);
        self.bytes.extend(8u32.to_le_bytes());
        self.bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| self.string(value));
    }

    fn number(&mut self, key: &str, value: u32) {
        self.entry(key, 4);
        self.bytes.extend(value.to_le_bytes());
    }

    fn entry(&mut self, key: &str, kind: u32) {
        self.count += 1;
        self.string(key);
        self.bytes.extend(kind.to_le_bytes());
    }

    fn string(&mut self, text: &str) {
        self.bytes.extend((text.len() as u64).to_le_bytes());
        self.bytes.extend(text.bytes());
    }

    fn file(self) -> Vec<u8> {
        let header = [
            3u32.to_le_bytes().as_slice(),
            &0u64.to_le_bytes(),
            &self.count.to_le_bytes(),
        ]
        .concat();
        [b"GGUF".as_slice(), &header, &self.bytes].concat()
    }
}
