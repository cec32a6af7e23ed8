//! Hugging Face folders: those that are right are read; those that are wrong give an error that names file and field.

use crate::support::{Rng, TempFolder, safetensors, small, with_header};
use met_model::{Checkpoint, Decoder, ErrorKind, ModelConfig, Result, fuzz};
use serde_json::{Value, json};

fn bind(config: &Value, weights: Vec<u8>) -> Result<ModelConfig> {
    let checkpoint = Checkpoint::from_folder_bytes(config.to_string().as_bytes(), weights)?;
    let config = ModelConfig::from_checkpoint(&checkpoint)?;
    Decoder::bind(config.clone(), &checkpoint)?;
    Ok(config)
}

/// The message of an open that fails, without a configuration to blame.
fn header_error(header: &str, data: &[u8]) -> String {
    let error = Checkpoint::from_folder_bytes(b"{}", with_header(header, data)).expect_err(header);
    assert_eq!(error.kind, ErrorKind::Invalid);
    error.message
}

#[test]
fn a_folder_is_read_by_the_names_of_gguf() {
    let (config, mut entries) = small();
    // What old versions saved besides, and a copy of a tied embedding.
    entries.push((
        "model.layers.0.self_attn.rotary_emb.inv_freq".into(),
        "F32",
        vec![2],
        vec![0; 8],
    ));
    entries.push(("lm_head.weight".into(), "F16", vec![5, 8], vec![0; 80]));
    let read = bind(&config, safetensors(&entries)).unwrap();
    assert_eq!((read.layers, read.width, read.vocab, read.context), (1, 8, 5, 16));
    assert_eq!(
        (
            read.attention.heads,
            read.attention.kv_heads,
            read.attention.head_dim
        ),
        (2, 1, 4)
    );
    assert!(read.rope.half_split && read.tied && read.sliding.is_none());
    let checkpoint =
        Checkpoint::from_folder_bytes(config.to_string().as_bytes(), safetensors(&entries)).unwrap();
    assert_eq!(checkpoint.weight("blk.0.attn_k.weight").unwrap().rows, 4);
    assert_eq!(
        checkpoint.floats("output_norm.weight", 8).unwrap(),
        Some(vec![1.0; 8])
    );
    assert_eq!(checkpoint.quantization(), "F32");
}

#[test]
fn lying_headers_are_refused_by_the_name_of_the_tensor_and_the_field() {
    let entry = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    let max = u64::MAX;
    let half = 1u64 << 63;
    for (header, part) in [
        (entry("F32", "[2]", "[0,4]"), "`data_offsets` of tensor `a`"),
        (entry("F32", "[2]", "[8,0]"), "`data_offsets` of tensor `a`"),
        (
            entry("F32", "[2]", "[4,12]"),
            "past the end of the data (8 bytes)",
        ),
        (
            entry("F32", "[2]", &format!("[{},{max}]", max - 8)),
            "past the end",
        ),
        (
            entry("F32", "[2]", &format!("[{half},{}]", half + 8)),
            "past the end",
        ),
        (
            entry("F32", &format!("[{half}]"), "[0,8]"),
            "`data_offsets` of tensor `a`",
        ),
        (
            entry("F32", &format!("[{half},2]"), "[0,0]"),
            "dimension 1 of tensor `a`",
        ),
        (
            entry("F32", &format!("[{max},{max}]"), "[0,1]"),
            "dimension 1 of tensor `a`",
        ),
        (entry("F32", "[0]", "[0,0]"), "dimension 0 of tensor `a` is 0"),
        (entry("F32", "[]", "[0,4]"), "`shape` of tensor `a` has 0"),
        (
            entry("F32", "[1,1,1,1,2]", "[0,8]"),
            "`shape` of tensor `a` has 5",
        ),
        (entry("F32", "[-2]", "[0,8]"), "tensor `a`"),
        (entry("F32", "[2.0]", "[0,8]"), "tensor `a`"),
        (entry("F32", "[1e30]", "[0,8]"), "tensor `a`"),
        (entry("F32", "[2]", "[0,8,8]"), "tensor `a`"),
        (entry("I64", "[1]", "[0,8]"), "`dtype` of tensor `a` is `I64`"),
        (r#"{"a":{"dtype":"F32","shape":[2]}}"#.into(), "data_offsets"),
        (r#"{"a":7}"#.into(), "tensor `a`"),
        ("[]".into(), "the header"),
        (String::new(), "the header"),
        ("[".repeat(100_000), "the header"),
    ] {
        let message = header_error(&header, &[0; 8]);
        assert!(message.contains(part), "expected \"{part}\" in \"{message}\"");
    }
    let two = |a: &str, b: &str, second: &str| {
        let entry = |offsets: &str| format!(r#"{{"dtype":"F16","shape":[2],"data_offsets":{offsets}}}"#);
        header_error(
            &format!(r#"{{"a":{},"{second}":{}}}"#, entry(a), entry(b)),
            &[0; 8],
        )
    };
    assert!(two("[0,4]", "[2,6]", "b").contains("`a` and `b` overlap"));
    assert!(two("[0,4]", "[4,8]", "a").contains("`a` occurs twice"));
    for (length, part) in [
        (max, "header's length is 18446744073709551615"),
        (9, "the file has 8 bytes after it"),
    ] {
        let bytes = [length.to_le_bytes(), *b"{}      "].concat();
        let message = Checkpoint::from_folder_bytes(b"{}", bytes).unwrap_err().message;
        assert!(message.contains(part), "{message}");
    }
    let short = Checkpoint::from_folder_bytes(b"{}", vec![0; 7])
        .unwrap_err()
        .message;
    assert!(short.contains("not a safetensors file"), "{short}");
}

#[test]
fn wrong_configurations_are_refused_by_the_name_of_the_key() {
    let weights = safetensors(&small().1);
    for (key, value, part) in [
        (
            "model_type",
            json!("mamba"),
            "supported: llama, mistral, qwen2, qwen3, gemma2, gemma3",
        ),
        ("model_type", json!(null), "`model_type` is missing"),
        ("model_type", json!(7), "`model_type` is 7"),
        ("hidden_size", json!(0), "`hidden_size` is 0"),
        ("hidden_size", json!(-1), "`hidden_size` is -1"),
        ("hidden_size", json!(9), "`hidden_size` (9) must be a multiple"),
        (
            "hidden_size",
            json!(u64::MAX),
            "`hidden_size` is 18446744073709551615",
        ),
        ("hidden_size", json!(8.5), "`hidden_size` is 8.5"),
        ("hidden_size", json!(16), "shape"),
        ("num_hidden_layers", json!(2), "model.layers.1."),
        ("num_hidden_layers", json!(1u64 << 62), "`num_hidden_layers`"),
        ("num_attention_heads", json!(3), "multiple"),
        ("num_key_value_heads", json!(4), "`num_key_value_heads` is 4"),
        ("head_dim", json!(1 << 20), "at most"),
        ("head_dim", json!(3), "`head_dim` is 3, but must be even"),
        ("vocab_size", json!(6), "model.embed_tokens.weight"),
        ("rms_norm_eps", json!(-1.0), "`rms_norm_eps`"),
        ("rms_norm_eps", json!(1), "`rms_norm_eps` is 1"),
        ("rms_norm_eps", json!("1e-5"), "`rms_norm_eps`"),
        ("rope_theta", json!(0), "`rope_theta` is 0"),
        (
            "rope_scaling",
            json!({"type": "longrope"}),
            "default, linear, llama3, yarn",
        ),
        (
            "rope_scaling",
            json!({"rope_type": "linear"}),
            "`factor` is missing",
        ),
        ("rope_scaling", json!([1]), "`rope_scaling` is [1]"),
        (
            "rope_parameters",
            json!({"rope_theta": 1e4, "partial_rotary_factor": 0.5}),
            "partial_rotary_factor",
        ),
        ("hidden_act", json!("gelu"), "`hidden_act` is `gelu`"),
        ("tie_word_embeddings", json!(false), "`lm_head.weight` is missing"),
        ("tie_word_embeddings", json!("no"), "`tie_word_embeddings`"),
        ("quantization_config", json!({}), "GGUF"),
        ("text_config", json!({}), "text_config"),
    ] {
        let (mut config, _) = small();
        config[key] = value;
        let message = match bind(&config, weights.clone()) {
            Ok(_) => panic!("{key} is wrong: {config}"),
            Err(error) => error.message,
        };
        assert!(message.contains(part), "expected \"{part}\" in \"{message}\"");
        assert!(
            message.contains("config.json") || message.contains("tensor"),
            "{message}"
        );
    }
    for (key, value, part) in [
        (
            "layer_types",
            json!(["full_attention", "full_attention"]),
            "lists 2 layers",
        ),
        ("layer_types", json!(["linear_attention"]), "linear_attention"),
        ("sliding_window", json!(0), "`sliding_window` is 0"),
    ] {
        let (mut config, _) = small();
        config["model_type"] = json!("mistral");
        config[key] = value;
        let message = bind(&config, weights.clone()).unwrap_err().message;
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn what_gemma_adds_is_read() {
    let read = |config: Value| {
        let checkpoint = Checkpoint::from_folder_bytes(config.to_string().as_bytes(), safetensors(&[]));
        ModelConfig::from_checkpoint(&checkpoint.unwrap()).unwrap()
    };
    let (mut config, _) = small();
    for (key, value) in [
        ("model_type", json!("gemma2")),
        ("num_hidden_layers", json!(4)),
        ("query_pre_attn_scalar", json!(64)),
        ("sliding_window", json!(7)),
    ] {
        config[key] = value;
    }
    config.as_object_mut().unwrap().remove("tie_word_embeddings");
    let gemma = read(config.clone());
    assert_eq!((gemma.attention.scale, gemma.attention.softcap), (0.125, 50.0));
    assert_eq!((gemma.logit_softcap, gemma.norm_plus), (30.0, 1.0));
    assert!(gemma.tied && gemma.post_norms && !gemma.head_norms);
    let windows: Vec<usize> = (0..4).map(|layer| gemma.attention_of(layer).0.window).collect();
    assert_eq!(windows, [7, 0, 7, 0]);
    config["attn_logit_softcapping"] = json!(null);
    assert_eq!(read(config.clone()).attention.softcap, 0.0);

    config["model_type"] = json!("gemma3_text");
    config["rope_theta"] = json!(1e6);
    config["rope_scaling"] = json!({"rope_type": "linear", "factor": 8.0});
    let gemma = read(config);
    let angles = |layer: usize| gemma.attention_of(layer).1.inverse_frequencies.clone();
    let local = gemma.sliding.as_ref().unwrap();
    assert_eq!(local.layers, [true; 4]);
    assert_eq!(angles(0), [1.0, 0.01]);
    assert_eq!(gemma.rope.inverse_frequencies, [0.125, 0.000125]);
    assert!(gemma.head_norms && gemma.logit_softcap == 0.0);
}

#[test]
fn shards_are_those_that_the_index_lists() {
    let (config, entries) = small();
    let (first, second) = entries.split_at(4);
    let folder = TempFolder::new();
    let map = |change: &dyn Fn(&mut Value)| {
        let mut map = json!({});
        for (shard, entries) in [("a.safetensors", first), ("b.safetensors", second)] {
            for (name, ..) in entries {
                map[name] = json!(shard);
            }
        }
        change(&mut map);
        folder.write(
            "model.safetensors.index.json",
            json!({"metadata": {"total_size": 1}, "weight_map": map}).to_string(),
        );
        Checkpoint::open(folder.path()).map_err(|error| error.message)
    };
    folder
        .write("config.json", config.to_string())
        .write("a.safetensors", safetensors(first))
        .write("b.safetensors", safetensors(second));
    let whole = map(&|_| ()).unwrap();
    assert_eq!(whole.tensors().len(), entries.len());
    assert_eq!(
        whole.floats("blk.0.ffn_norm.weight", 8).unwrap(),
        Some(vec![1.0; 8])
    );
    ModelConfig::from_checkpoint(&whole)
        .and_then(|config| Decoder::bind(config, &whole))
        .unwrap();
    let identity = whole.identity().unwrap();
    assert_eq!(map(&|_| ()).unwrap().identity().unwrap(), identity);

    let name = "model.norm.weight";
    for (error, part) in [
        (
            map(&|map| map[name] = json!("b.safetensors")),
            "model.norm.weight` is in a.safetensors",
        ),
        (
            map(&|map| map["more"] = json!("b.safetensors")),
            "`more` is in b.safetensors",
        ),
        (
            map(&|map| map[name] = json!("../a.safetensors")),
            "not one of the folder",
        ),
        (
            map(&|map| map[name] = json!("/etc/passwd")),
            "not one of the folder",
        ),
        (map(&|map| map[name] = json!("..")), "not one of the folder"),
        (
            map(&|map| map[name] = json!("c.safetensors")),
            "c.safetensors: can't be opened",
        ),
        (map(&|map| map[name] = json!(3)), "index.json"),
        (map(&|map| *map = json!({})), "names 0 files"),
    ] {
        let message = error.expect_err(part);
        assert!(message.contains(part), "expected \"{part}\" in \"{message}\"");
    }

    folder.write("b.safetensors", safetensors(first));
    assert!(map(&|_| ()).unwrap_err().contains("occurs twice"));
    let mut changed = second.to_vec();
    changed[0].3[0] ^= 1;
    folder.write("b.safetensors", safetensors(&changed));
    assert_ne!(map(&|_| ()).unwrap().identity().unwrap(), identity);
    let mut other = config.clone();
    other["rope_theta"] = json!(5e5);
    folder
        .write("b.safetensors", safetensors(second))
        .write("config.json", other.to_string());
    assert_ne!(map(&|_| ()).unwrap().identity().unwrap(), identity);
    std::fs::remove_file(folder.path().join("model.safetensors.index.json")).unwrap();
    let message = Checkpoint::open(folder.path()).unwrap_err().message;
    assert!(message.contains("neither model.safetensors nor"), "{message}");
}

#[test]
fn random_damage_is_survived() {
    let (mut config, entries) = small();
    config["rope_scaling"] =
        json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8});
    config["model_type"] = json!("mistral");
    config["layer_types"] = json!(["sliding_attention"]);
    config["sliding_window"] = json!(7);
    bind(&config, safetensors(&entries)).unwrap();
    let config = config.to_string();
    let mut whole = (config.len() as u16).to_le_bytes().to_vec();
    whole.extend(config.as_bytes());
    let weights = safetensors(&entries);
    // Little of the data: what matters is before it.
    let header = 8 + u64::from_le_bytes(*weights.first_chunk().unwrap()) as usize;
    let interesting = whole.len() + header;
    whole.extend(weights);
    fuzz::folder(&whole);
    let mut rng = Rng(17);
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + rng.next() % 3 {
            let at = 2 + rng.next() as usize % (interesting - 2);
            match rng.next() % 5 {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, b"0123456789\"{}[],:-.e"[rng.next() as usize % 20]),
                2 => {
                    let number = [u64::MAX, 1 << 63, (1 << 63) - 1, 1 << 32, 0][rng.next() as usize % 5];
                    let digits = number.to_string();
                    let digit = |byte: &u8| byte.is_ascii_digit();
                    if let Some(from) = bytes.iter().skip(at).position(digit).map(|n| at + n) {
                        let len = bytes[from..].iter().take_while(|byte| digit(byte)).count();
                        bytes.splice(from..from + len, digits.bytes());
                    }
                }
                3 if at < bytes.len() => bytes[at] = rng.next() as u8,
                _ => {
                    bytes.remove(at.min(bytes.len() - 1));
                }
            }
            if bytes.len() < interesting {
                break;
            }
        }
        fuzz::folder(&bytes);
    }
}
