//! A model that can't be run as its metadata says is refused before anything is loaded, by the name of the field.

use crate::support::{Tiny, Value, Writer};
use met_kernels::TensorType;
use met_model::{Checkpoint, Decoder, ModelConfig, Result};

fn bind(writer: &Writer) -> Result<ModelConfig> {
    let checkpoint = Checkpoint::from_bytes(writer.bytes())?;
    let config = ModelConfig::from_checkpoint(&checkpoint)?;
    Decoder::bind(config.clone(), &checkpoint)?;
    Ok(config)
}

#[test]
fn what_is_not_said_has_the_usual_values() {
    let config = bind(&Tiny::default().writer()).unwrap();
    assert_eq!(config.rope.dims, 64);
    assert_eq!(config.rope.inverse_frequencies[1], 10_000f32.powf(-2.0 / 64.0));
    assert_eq!(config.attention.scale, 0.125);
    assert_eq!(config.vocab, 97);
    let mut other = Tiny::default().writer();
    other.pairs.retain(|(key, _)| !key.ends_with("head_count_kv"));
    assert!(
        bind(&other).unwrap_err().message.contains("blk.0.attn_k.weight"),
        "as many as heads"
    );
}

#[test]
fn wrong_metadata_is_refused_by_the_name_of_the_key() {
    let text = |s: &str| Value::Text(s.into());
    for (key, value, part) in [
        (
            "general.architecture",
            text("mamba"),
            "supported: llama, mistral, qwen2",
        ),
        ("llama.expert_count", Value::U32(8), "expert_count"),
        ("llama.block_count", Value::U32(0), "llama.block_count"),
        ("llama.block_count", Value::U32(1 << 20), "llama.block_count"),
        ("llama.block_count", Value::U32(3), "blk.2."),
        ("llama.embedding_length", Value::U32(512), "token_embd.weight"),
        ("llama.embedding_length", Value::U32(255), "multiple of"),
        (
            "llama.feed_forward_length",
            Value::I32s(vec![1, 2]),
            "must be a whole number",
        ),
        ("llama.context_length", Value::U32(0), "llama.context_length"),
        ("llama.attention.head_count", Value::U32(3), "multiple of"),
        ("llama.attention.head_count_kv", Value::U32(8), "head_count_kv"),
        (
            "llama.attention.head_count_kv",
            Value::U32(1),
            "blk.0.attn_k.weight",
        ),
        (
            "llama.attention.key_length",
            Value::U32(32),
            "blk.0.attn_q.weight",
        ),
        ("llama.attention.value_length", Value::U32(32), "values of 32"),
        (
            "llama.attention.layer_norm_rms_epsilon",
            Value::F32(f32::NAN),
            "epsilon",
        ),
        ("llama.attention.layer_norm_rms_epsilon", Value::U32(0), "epsilon"),
        ("llama.rope.dimension_count", Value::U32(63), "even"),
        (
            "llama.rope.dimension_count",
            Value::U32(66),
            "rope.dimension_count",
        ),
        ("llama.rope.freq_base", Value::F32(-1.0), "rope.freq_base"),
        ("llama.rope.scaling.type", text("longrope"), "linear, yarn"),
        (
            "llama.rope.scaling.factor",
            Value::F32(f32::INFINITY),
            "rope.scaling.factor",
        ),
        (
            "tokenizer.ggml.tokens",
            Value::Texts(vec![String::new(); 98]),
            "98 tokens",
        ),
    ] {
        let mut writer = Tiny::default().writer();
        writer.set(key, value);
        let message = match bind(&writer) {
            Ok(_) => panic!("{key} is wrong"),
            Err(e) => e.message,
        };
        assert!(message.contains(part), "expected \"{part}\" in \"{message}\"");
    }
}

#[test]
fn missing_misshapen_and_unknown_tensors_are_refused_by_name() {
    let with = |change: &dyn Fn(&mut Writer)| {
        let mut writer = Tiny {
            biases: true,
            rope_freqs: true,
            ..Tiny::default()
        }
        .writer();
        change(&mut writer);
        bind(&writer).unwrap_err().message
    };
    for name in [
        "token_embd.weight",
        "blk.1.ffn_down.weight",
        "blk.0.ffn_norm.weight",
        "output_norm.weight",
    ] {
        let message = with(&|w| w.tensors.retain(|t| t.0 != name));
        assert!(message.contains(name) && message.contains("missing"), "{message}");
    }
    for name in ["blk.1.attn_q.bias", "blk.1.attn_norm.weight", "rope_freqs.weight"] {
        let message = with(&|w| {
            let tensor = w.tensors.iter_mut().find(|t| t.0 == name).unwrap();
            tensor.2 = vec![8];
            tensor.3.truncate(32);
        });
        assert!(message.contains(name) && message.contains("shape"), "{message}");
    }
    let message = with(&|w| {
        w.floats("blk.0.attn_q_norm.weight", &[1], &[1.0]);
    });
    assert!(
        message.contains("attn_q_norm") && message.contains("not supported"),
        "{message}"
    );
    let message = with(&|w| {
        let freqs = w.tensors.iter_mut().find(|t| t.0 == "rope_freqs.weight").unwrap();
        freqs.3[..4].copy_from_slice(&0f32.to_le_bytes());
    });
    assert!(message.contains("rope_freqs"), "{message}");
}

#[test]
fn unsupported_tensor_types_are_named_with_those_we_have() {
    let mut bytes = Tiny::of(TensorType::Q4_0).writer().bytes();
    let name = b"token_embd.weight";
    let at = bytes.windows(name.len()).position(|w| w == name).unwrap() + name.len() + 4 + 16;
    assert_eq!(bytes[at], 2, "Q4_0");
    bytes[at] = 23;
    let message = Checkpoint::from_bytes(bytes).unwrap_err().message;
    for part in ["token_embd.weight", "IQ4_XS", "Q4_0, Q4_1"] {
        assert!(message.contains(part), "{message}");
    }
}
