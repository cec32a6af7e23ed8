use super::*;
use crate::text::{Chat, Detokenizer, Message, Role, Special, fuzz};
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::fs;

/// A value of GGUF metadata.
enum Entry<'a> {
    Text(&'a str),
    Texts(&'a [&'a str]),
    Id(u32),
    Kinds(&'a [i32]),
}

/// The text of a GGUF file without tensors.
fn gguf(entries: &[(&str, Entry<'_>)]) -> Result<Text, TextError> {
    let checkpoint = Checkpoint::from_bytes(gguf_bytes(entries)).unwrap();
    Text::from_metadata(checkpoint.metadata())
}

fn gguf_bytes(entries: &[(&str, Entry<'_>)]) -> Vec<u8> {
    fn text(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    }
    fn array(out: &mut Vec<u8>, ty: u32, len: usize) {
        out.extend([9, ty].map(u32::to_le_bytes).concat());
        out.extend((len as u64).to_le_bytes());
    }
    let mut out = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    out.extend((entries.len() as u64).to_le_bytes());
    for (key, entry) in entries {
        text(&mut out, &format!("tokenizer.{key}"));
        match entry {
            Entry::Text(value) => {
                out.extend(8u32.to_le_bytes());
                text(&mut out, value);
            }
            Entry::Id(id) => out.extend([4, *id].map(u32::to_le_bytes).concat()),
            Entry::Texts(values) => {
                array(&mut out, 8, values.len());
                values.iter().for_each(|value| text(&mut out, value));
            }
            Entry::Kinds(values) => {
                array(&mut out, 5, values.len());
                values.iter().for_each(|value| out.extend(value.to_le_bytes()));
            }
        }
    }
    out
}

fn chat(content: &str) -> Chat {
    Chat {
        messages: vec![Message::new(Role::User, content)],
        ..Chat::default()
    }
}

const TOKENS: [&str; 6] = ["<|im_start|>", "<|im_end|>", "a", "b", "ab", "Ċ"];

#[test]
fn chat_ml_is_the_format_of_a_model_that_has_its_markers_alone() {
    let base = [
        ("ggml.model", Entry::Text("gpt2")),
        ("ggml.pre", Entry::Text("gpt-2")),
    ];
    let with = |tokens, kinds| {
        let [model, pre] = &base;
        let clone = |e: &(&'static str, Entry<'static>)| match e.1 {
            Entry::Text(text) => (e.0, Entry::Text(text)),
            _ => unreachable!(),
        };
        gguf(&[
            clone(model),
            clone(pre),
            ("ggml.tokens", Entry::Texts(tokens)),
            ("ggml.token_type", Entry::Kinds(kinds)),
            ("ggml.merges", Entry::Texts(&["a b"])),
        ])
    };
    let text = with(&TOKENS, &[3, 3, 1, 1, 1, 1]).unwrap();
    // Of `user` and `assistant` the vocabulary has nothing but the letter a.
    assert_eq!(text.prompt(&chat("ab")).unwrap(), [0, 5, 4, 1, 5, 0, 2, 2, 5]);
    assert_eq!(text.stop_tokens(), [1]);

    let text = with(&TOKENS[2..], &[1, 1, 1, 1]).unwrap();
    let error = text.prompt(&chat("ab")).unwrap_err();
    assert!(
        matches!(&error, TextError::Template(why) if why.contains("tokenizer.chat_template")),
        "{error}"
    );
    assert_eq!(text.chat_support(), Err(&error));
    assert_eq!(text.encode("ab", Special::Parse, true), Ok(vec![2]));
}

#[test]
fn chats_with_tools_have_a_template_of_their_own() {
    let text = gguf(&[
        ("ggml.model", Entry::Text("gpt2")),
        ("ggml.tokens", Entry::Texts(&TOKENS)),
        ("ggml.eos_token_id", Entry::Id(4)),
        ("chat_template", Entry::Text("b")),
        ("chat_template.tool_use", Entry::Text("{{ eos_token }}a")),
    ])
    .unwrap();
    let mut chat = chat("a");
    assert_eq!(text.prompt(&chat).unwrap(), [3]);
    chat.tools = vec![json!({})];
    assert_eq!(text.prompt(&chat).unwrap(), [4, 2]);
    assert_eq!(text.stop_tokens(), [1, 4]);
}

#[test]
fn known_names_end_an_output() {
    let stops = |tokens| {
        let model = ("ggml.model", Entry::Text("gpt2"));
        let text = gguf(&[model, ("ggml.tokens", Entry::Texts(tokens))]).unwrap();
        text.stop_tokens().to_vec()
    };
    assert_eq!(stops(&["a", "<|eot_id|>", "<|end|>"]), [1, 2]);
    // There it ends a message inside of a turn.
    assert_eq!(stops(&["<|end|>", "<|return|>", "</s>"]), [1]);
}

#[test]
fn vocabularies_with_monstrous_special_tokens_are_refused() {
    let long = "x".repeat(2000);
    let entries = [
        ("ggml.model", Entry::Text("gpt2")),
        ("ggml.tokens", Entry::Texts(&[&long])),
        ("ggml.token_type", Entry::Kinds(&[3])),
    ];
    assert!(matches!(gguf(&entries), Err(TextError::Checkpoint(_))));
}

#[test]
fn what_is_wrong_is_named() {
    let model = || ("ggml.model", Entry::Text("gpt2"));
    let tokens = || ("ggml.tokens", Entry::Texts(&TOKENS));
    let cases = [
        (vec![tokens()], "tokenizer.ggml.model"),
        (vec![model()], "tokenizer.ggml.tokens"),
        (vec![("ggml.model", Entry::Text("rwkv")), tokens()], "rwkv"),
        (
            vec![model(), tokens(), ("ggml.pre", Entry::Text("klingon"))],
            "klingon",
        ),
        (vec![model(), ("ggml.tokens", Entry::Texts(&[]))], "0 tokens"),
        (
            vec![model(), tokens(), ("ggml.token_type", Entry::Kinds(&[1]))],
            "token_type",
        ),
        (
            vec![model(), tokens(), ("ggml.token_type", Entry::Kinds(&[9; 6]))],
            "token_type",
        ),
        (
            vec![model(), tokens(), ("ggml.eos_token_id", Entry::Id(6))],
            "eos_token_id",
        ),
    ];
    for (entries, named) in cases {
        let error = gguf(&entries).err().unwrap();
        assert!(
            matches!(&error, TextError::Checkpoint(why) if why.contains(named)),
            "{named}: {error}"
        );
    }
}

/// A folder with a tokenizer of SentencePiece's kind.
fn folder(normalizer: Json, pre_tokenizer: Json, config: Json) -> tempfile::TempDir {
    let special = |id: u32, content: &str, rstrip: bool| json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": rstrip, "normalized": false});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(0, "<unk>", false), special(1, "<s>", false), special(2, "<|turn|>", true)],
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": {"<unk>": 0, "<s>": 1, "<|turn|>": 2, "<0xC3>": 3, "<0xA9>": 4, "▁": 5, "a": 6, "▁a": 7, "\n": 8},
            "merges": ["▁ a"],
        },
    });
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    folder
}

#[test]
fn a_folder_of_sentence_pieces() {
    let normalizer = json!({"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]});
    let config = json!({"bos_token": "<s>", "eos_token": "<|turn|>"});
    let folder = folder(normalizer, Json::Null, config);
    fs::write(
        folder.path().join("generation_config.json"),
        r#"{"eos_token_id": [2, 1]}"#,
    )
    .unwrap();
    fs::write(
        folder.path().join("chat_template.jinja"),
        "<|turn|>\n{{ messages[0].content }}",
    )
    .unwrap();
    let text = Text::from_checkpoint(folder.path()).unwrap();
    assert_eq!(
        text.encode("a a é", Special::Text, true),
        Ok(vec![1, 7, 7, 5, 3, 4])
    );
    // Its `rstrip` takes the newline. What follows a special token is prefixed as well.
    assert_eq!(text.prompt(&chat("a")), Ok(vec![1, 2, 7]));
    assert_eq!(text.stop_tokens(), [1, 2]);
    let mut detokenizer = Detokenizer::new(text.vocabulary().clone());
    let pieces: Vec<String> = [7, 7, 3, 4, 2]
        .iter()
        .map(|&id| detokenizer.push(id).to_owned())
        .collect();
    assert_eq!(pieces, ["a", " a", "", "é", ""]);
}

#[test]
fn only_the_first_piece_of_a_text_is_prefixed_where_the_file_says_so() {
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false});
    let folder = folder(
        Json::Null,
        metaspace,
        json!({"bos_token": "<s>", "add_bos_token": false}),
    );
    let text = Text::from_checkpoint(folder.path()).unwrap();
    assert_eq!(text.encode("a<s>a a", Special::Parse, true), Ok(vec![7, 1, 6, 7]));
}

#[test]
fn a_text_is_given_back_where_all_it_is_made_from_is_the_same() {
    let texts = tempfile::tempdir().unwrap();
    let gguf = |name: &str, template: &str| {
        let path = texts.path().join(name);
        let entries = [
            ("ggml.model", Entry::Text("gpt2")),
            ("ggml.tokens", Entry::Texts(&["a", "b", "ab"])),
            ("ggml.merges", Entry::Texts(&["a b"])),
            ("ggml.eos_token_id", Entry::Id(1)),
            ("chat_template", Entry::Text(template)),
        ];
        fs::write(&path, gguf_bytes(&entries)).unwrap();
        path
    };
    let in_folder = |template: &str| {
        let folder = folder(Json::Null, Json::Null, Json::Null);
        fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
        folder
    };
    let (folder, same, other) = (in_folder("a"), in_folder("a"), in_folder("aa"));
    let folders = [folder.path(), same.path(), other.path()].map(Path::to_owned);
    for [path, same, other] in [[gguf("1", "a"), gguf("2", "a"), gguf("3", "aa")], folders] {
        let earlier = Arc::new(Text::from_checkpoint(&path).unwrap());
        assert!(Arc::ptr_eq(&Text::again(&same, &earlier).unwrap(), &earlier));
        let another = Text::again(&other, &earlier).unwrap();
        assert_ne!(another.prompt(&chat("x")), earlier.prompt(&chat("x")));
    }
}

#[test]
fn a_broken_folder_is_named() {
    let broken = tempfile::tempdir().unwrap();
    fs::write(
        broken.path().join("tokenizer.json"),
        r#"{"decoder": {"type": "WordPiece"}}"#,
    )
    .unwrap();
    let error = Text::from_checkpoint(broken.path()).err().unwrap().to_string();
    assert!(
        error.contains("tokenizer.json") && error.contains("WordPiece"),
        "{error}"
    );
    let folder = folder(Json::Null, Json::Null, Json::Null);
    fs::write(folder.path().join("tokenizer_config.json"), "{").unwrap();
    let error = Text::from_checkpoint(folder.path()).err().unwrap().to_string();
    assert!(error.contains("tokenizer_config.json"), "{error}");
}

#[test]
fn a_post_processor_whose_parts_do_not_fit_puts_nothing_first() {
    let folder = folder(Json::Null, Json::Null, Json::Null);
    let path = folder.path().join("tokenizer.json");
    let mut json: Json = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for (ids, first) in [
        (json!([1]), vec![1, 6]),
        (json!([99]), vec![6]),
        (json!([]), vec![6]),
    ] {
        json["post_processor"]["special_tokens"]["<s>"]["ids"] = ids;
        let tokenizer = Tokenizer::from_tokenizer_json(json.to_string().as_bytes(), None, None).unwrap();
        assert_eq!(tokenizer.encode("a", Special::Text, true), Ok(first));
    }
    json["post_processor"]["single"][0]["SpecialToken"]["id"] = json!("<x>");
    let tokenizer = Tokenizer::from_tokenizer_json(json.to_string().as_bytes(), None, None).unwrap();
    assert_eq!(tokenizer.encode("a", Special::Text, true), Ok(vec![6]));
}

/// One byte changed, put in or taken out, or the rest cut off, at a place somewhere in the file.
fn damage() -> impl Strategy<Value = Vec<(u8, prop::sample::Index, u8)>> {
    let byte = prop_oneof![any::<u8>(), prop::sample::select(b"\"{}[],:0-\\".to_vec())];
    prop::collection::vec((0..8u8, any::<prop::sample::Index>(), byte), 1..4)
}

fn damaged(whole: &[u8], damage: &[(u8, prop::sample::Index, u8)]) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for (what, at, byte) in damage {
        let at = at.index(bytes.len().max(1));
        match what {
            0 => bytes.truncate(at),
            1 if at < bytes.len() => drop(bytes.remove(at)),
            2 | 3 => bytes.insert(at, *byte),
            _ if at < bytes.len() => bytes[at] = *byte,
            _ => {}
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn damaged_metadata_makes_an_error_or_a_text_that_works(damage in damage(), pieces in any::<bool>()) {
        let whole = gguf_bytes(&[
            ("ggml.model", Entry::Text(if pieces { "llama" } else { "gpt2" })),
            ("ggml.pre", Entry::Text("gpt-2")),
            ("ggml.tokens", Entry::Texts(&["<|im_start|>", "<|im_end|>", "a", "b", "ab", "\u{10a}", "<0x0A>"])),
            ("ggml.token_type", Entry::Kinds(&[3, 3, 1, 1, 1, 1, 6])),
            ("ggml.merges", Entry::Texts(&["a b"])),
            ("ggml.bos_token_id", Entry::Id(0)),
            ("ggml.eos_token_id", Entry::Id(1)),
            ("chat_template", Entry::Text("{{ bos_token }}{{ messages[0].content }}")),
        ]);
        fuzz::metadata(&damaged(&whole, &damage));
    }

    #[test]
    fn a_damaged_tokenizer_json_makes_an_error_or_a_text_that_works(damage in damage()) {
        let folder = folder(Json::Null, json!({"type": "Metaspace", "replacement": "▁"}), Json::Null);
        let whole = fs::read(folder.path().join("tokenizer.json")).unwrap();
        fuzz::tokenizer_json(&damaged(&whole, &damage));
    }
}
