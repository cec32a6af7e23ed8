//! What files with recurrent layers and experts say of themselves, and what is refused of it.

use crate::{
    architectures::fixtures,
    support::{Rng, Value as GgufValue, Writer},
};
use met_kernels::{DeltaShape, ScanShape};
use met_model::{
    Checkpoint, Decoder, ModelConfig, Result, checkpoint,
    config::{Experts, FeedForward, Mixer},
    fuzz,
};
use serde_json::{Value, json};

const NAMES: [&str; 3] = ["granitemoehybrid", "granitemoehybrid-experts", "qwen3_next"];

fn folder(name: &str) -> (Value, Vec<u8>) {
    let read = |file: &str| std::fs::read(fixtures().join(name).join(file)).unwrap();
    let config = serde_json::from_slice(&read("config.json")).unwrap();
    (config, read("model.safetensors"))
}

fn bind(config: &Value, weights: &[u8]) -> Result<ModelConfig> {
    let checkpoint = Checkpoint::from_folder_bytes(config.to_string().as_bytes(), weights.to_vec())?;
    let config = ModelConfig::from_checkpoint(&checkpoint)?;
    Decoder::bind(config.clone(), &checkpoint)?;
    Ok(config)
}

fn refusal(config: &Value, weights: &[u8]) -> String {
    match bind(config, weights) {
        Ok(_) => panic!("this is wrong: {config}"),
        Err(error) => error.message,
    }
}

#[test]
fn folders_and_gguf_files_say_the_same() {
    for name in NAMES {
        let (config, weights) = folder(name);
        let from_folder = bind(&config, &weights).unwrap();
        let gguf = Checkpoint::open(fixtures().join(format!("{name}.gguf"))).unwrap();
        let from_gguf = ModelConfig::from_checkpoint(&gguf).unwrap();
        let alike = ModelConfig {
            architecture: from_folder.architecture.clone(),
            name: from_folder.name.clone(),
            norm_plus: from_folder.norm_plus,
            rope: met_kernels::RopeTable {
                half_split: from_folder.rope.half_split,
                ..from_gguf.rope.clone()
            },
            // A reciprocal of f32 and one of f64.
            logit_scale: from_folder.logit_scale,
            ..from_gguf.clone()
        };
        assert_eq!(alike, from_folder, "{name}");
        assert!((from_gguf.logit_scale - from_folder.logit_scale).abs() < 1e-6);
    }
    let (config, weights) = folder("granitemoehybrid");
    let granite = bind(&config, &weights).unwrap();
    let recurrent = granite.recurrent.clone().unwrap();
    let shape = ScanShape {
        heads: 4,
        head_dim: 16,
        groups: 1,
        state_dim: 24,
    };
    assert_eq!((recurrent.mixer, recurrent.taps), (Mixer::Mamba2(shape), 4));
    assert_eq!(recurrent.layers, [true, false, true, true]);
    assert_eq!(
        (granite.kv_layers(), recurrent.offset(2)),
        (1, recurrent.layer_values())
    );
    assert_eq!(granite.state_values(), 3 * (3 * (64 + 48) + 64 * 24));
    assert_eq!(granite.feed_forward, FeedForward::Dense(48));
    assert_eq!(granite.rope.inverse_frequencies, [0.0], "it turns nothing");

    let (config, weights) = folder("qwen3_next");
    let qwen = bind(&config, &weights).unwrap();
    let shape = DeltaShape {
        key_heads: 2,
        value_heads: 4,
        key_dim: 8,
        value_dim: 12,
    };
    assert_eq!(qwen.recurrent.unwrap().mixer, Mixer::Delta(shape));
    let experts = Experts {
        count: 6,
        chosen: 3,
        width: 16,
        normalised: true,
        shared: 24,
        shared_gate: true,
    };
    assert_eq!(qwen.feed_forward, FeedForward::Experts(experts));
    assert!(qwen.rope.dims == 4 && qwen.head_norms && qwen.attention_gate);
}

#[test]
fn wrong_configurations_are_refused_by_the_name_of_the_key() {
    let granite = [
        ("layer_types", json!(["mamba"]), "`layer_types` lists 1 layers"),
        (
            "layer_types",
            json!(["mamba", "attention", "sliding_attention", "mamba"]),
            "`layer_types` is \"sliding_attention\"",
        ),
        ("layer_types", json!(null), "at least one must have attention"),
        (
            "layer_types",
            json!(["attention", "attention", "mamba", "mamba"]),
            "layers.0.self_attn.q_proj.weight` is missing",
        ),
        ("mamba_n_groups", json!(2), "2 groups are not supported"),
        ("mamba_proj_bias", json!(true), "`mamba_proj_bias`"),
        ("time_step_limit", json!([0.001, 0.1]), "`time_step_limit`"),
        ("mamba_n_heads", json!(3), "`mamba_n_heads` (3)"),
        ("mamba_d_head", json!(8), "`mamba_d_head` (8)"),
        ("mamba_d_state", json!(16), "in_proj.weight` has shape"),
        ("mamba_d_conv", json!(1), "sees 1 inputs"),
        ("mamba_d_conv", json!(5), "conv1d.weight` has shape"),
        ("mamba_d_conv", json!(65), "2 to 64"),
        ("mamba_d_state", json!(1 << 21), "`mamba_d_state` is 2097152"),
        (
            "shared_intermediate_size",
            json!(null),
            "`shared_intermediate_size` is missing",
        ),
        ("num_local_experts", json!(4), "`num_experts_per_tok` is 0"),
        ("num_local_experts", json!(5000), "`num_local_experts` is 5000"),
        ("residual_multiplier", json!(-1), "`residual_multiplier`"),
        ("hidden_act", json!("gelu"), "`hidden_act` is `gelu`"),
    ];
    let qwen = [
        ("linear_num_value_heads", json!(3), "must be a multiple"),
        (
            "linear_key_head_dim",
            json!(null),
            "`linear_key_head_dim` is missing",
        ),
        (
            "linear_value_head_dim",
            json!(16),
            "in_proj_qkvz.weight` has shape",
        ),
        ("head_dim", json!(null), "`head_dim` is missing"),
        ("decoder_sparse_step", json!(2), "`decoder_sparse_step`"),
        ("mlp_only_layers", json!([1]), "`mlp_only_layers`"),
        ("num_experts", json!(7), "mlp.gate.weight` has shape"),
        ("num_experts", json!(2), "`num_experts_per_tok` is 3"),
        (
            "moe_intermediate_size",
            json!(8),
            "experts.0.gate_proj.weight` has shape",
        ),
        (
            "shared_expert_intermediate_size",
            json!(null),
            "`shared_expert_intermediate_size` is missing",
        ),
        (
            "rope_parameters",
            json!({"rope_theta": 1e4, "partial_rotary_factor": 0.05}),
            "`partial_rotary_factor` is 0.05",
        ),
        (
            "rope_parameters",
            json!({"rope_theta": 1e4, "partial_rotary_factor": 2.0}),
            "`partial_rotary_factor` is 2",
        ),
    ];
    for (name, wrong) in [("granitemoehybrid", granite.as_slice()), ("qwen3_next", &qwen)] {
        let (config, weights) = folder(name);
        for (key, value, part) in wrong {
            let mut config = config.clone();
            config[key] = value.clone();
            let message = refusal(&config, &weights);
            assert!(message.contains(part), "expected \"{part}\" in \"{message}\"");
        }
    }
}

#[test]
fn older_spellings_are_read_alike() {
    let (config, weights) = folder("granitemoehybrid");
    let expected = bind(&config, &weights).unwrap();
    let mut other = config.clone();
    for (key, value) in [
        ("layer_types", json!(["mamba", "attention", "mamba", "mamba"])),
        ("position_embedding_type", json!("nope")),
        ("mamba_d_head", json!("auto")),
        ("time_step_limit", json!([0.0, null])),
    ] {
        other[key] = value;
    }
    assert_eq!(bind(&other, &weights).unwrap(), expected);

    let (mut config, weights) = folder("qwen3_next");
    let expected = bind(&config, &weights).unwrap();
    let fields = config.as_object_mut().unwrap();
    fields.remove("layer_types");
    fields.remove("rope_parameters");
    fields.insert("full_attention_interval".to_owned(), json!(4));
    fields.insert("rope_theta".to_owned(), json!(10_000));
    assert_eq!(bind(&config, &weights).unwrap(), expected);
}

/// A GGUF file, to be changed.
fn rewritten(name: &str) -> Writer {
    let path = fixtures().join(format!("{name}.gguf"));
    let bytes = std::fs::read(&path).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let mut writer = Writer::default();
    let metadata = checkpoint.metadata();
    for key in metadata.keys() {
        let value = match metadata.value(key).unwrap() {
            checkpoint::Value::Unsigned(n) => GgufValue::U32(n as u32),
            checkpoint::Value::Float(x) => GgufValue::F32(x as f32),
            checkpoint::Value::Text(text) => GgufValue::Text(text.to_owned()),
            other => panic!("{key}: {other:?}"),
        };
        writer.set(key, value);
    }
    for tensor in checkpoint.tensors() {
        let data = bytes[tensor.range.clone()].to_vec();
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape, data);
    }
    writer
}

#[test]
fn layers_that_guess_further_tokens_are_passed_over() {
    let mut writer = rewritten("qwen3_next");
    writer.set("qwen3next.block_count", GgufValue::U32(5)).floats(
        "blk.4.nextn.eh_proj.weight",
        &[4, 2],
        &[0.5; 8],
    );
    let bind = |writer: &Writer| {
        let checkpoint = Checkpoint::from_bytes(writer.bytes())?;
        let config = ModelConfig::from_checkpoint(&checkpoint)?;
        Decoder::bind(config.clone(), &checkpoint).map(|_| config)
    };
    let message = bind(&writer).unwrap_err().message;
    assert!(message.contains("`blk.4."), "{message}");
    writer.set("qwen3next.nextn_predict_layers", GgufValue::U32(1));
    let config = bind(&writer).unwrap();
    assert_eq!((config.layers, config.kv_layers()), (4, 1));
    writer.set("qwen3next.nextn_predict_layers", GgufValue::U32(6));
    let message = bind(&writer).unwrap_err().message;
    assert!(message.contains("`qwen3next.block_count` is 0"), "{message}");
}

/// A folder's files as the fuzzer takes them.
fn joined(config: &str, weights: &[u8]) -> Vec<u8> {
    [&(config.len() as u16).to_le_bytes(), config.as_bytes(), weights].concat()
}

#[test]
fn every_number_of_a_configuration_can_be_wrong() {
    for name in NAMES {
        let (config, weights) = folder(name);
        fuzz::folder(&joined(&config.to_string(), &weights));
        for (key, value) in config.as_object().unwrap() {
            if !value.is_number() {
                continue;
            }
            let sizes = [0u64, 1, 3, 1 << 12, 1 << 20, 1 << 32, 1 << 63, u64::MAX].map(|n| json!(n));
            let others = [json!(-1), json!(0.5), json!(1e300), json!(1e-300)];
            for wrong in sizes.into_iter().chain(others) {
                let mut config = config.clone();
                config[key] = wrong;
                fuzz::folder(&joined(&config.to_string(), &weights));
            }
        }
    }
}

#[test]
fn random_damage_to_gguf_files_is_survived() {
    let mut rng = Rng(23);
    for name in NAMES {
        let whole = std::fs::read(fixtures().join(format!("{name}.gguf"))).unwrap();
        fuzz::checkpoint(&whole);
        for _ in 0..1000 {
            let mut bytes = whole.clone();
            for _ in 0..1 + rng.next() % 2 {
                // Where the metadata is.
                let at = 24 + rng.next() as usize % 2000;
                match rng.next() % 3 {
                    0 => bytes[at] = rng.next() as u8,
                    1 => bytes[at] ^= 1 << (rng.next() % 8),
                    _ => bytes[at..at + 4].copy_from_slice(&[0xFF; 4]),
                }
            }
            fuzz::checkpoint(&bytes);
        }
    }
}
