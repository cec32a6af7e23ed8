//! Writes small safetensors, and folders of a model.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A tensor's name, type, shape (row-major, as in the file) and data.
pub type Entry = (String, &'static str, Vec<u64>, Vec<u8>);

/// A safetensors file with these tensors.
pub fn safetensors(entries: &[Entry]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    for (name, dtype, shape, bytes) in entries {
        let start = data.len();
        data.extend(bytes);
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    with_header(&Value::from(header).to_string(), &data)
}

/// A safetensors file with this header.
pub fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let length = (header.len() as u64).to_le_bytes();
    [&length, header.as_bytes(), data].concat()
}

/// A Llama of one layer, 8 wide, with 5 tokens: its configuration and its tensors, all ones.
pub fn small() -> (Value, Vec<Entry>) {
    let config = json!({
        "model_type": "llama", "vocab_size": 5, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": true,
    });
    let ones = |name: &str, shape: &[u64]| {
        let count = shape.iter().product::<u64>() as usize;
        let bytes = 1f32.to_le_bytes().repeat(count);
        (name.to_owned(), "F32", shape.to_vec(), bytes)
    };
    let mut entries = vec![
        ones("model.embed_tokens.weight", &[5, 8]),
        ones("model.norm.weight", &[8]),
    ];
    for (part, shape) in [
        ("input_layernorm", vec![8]),
        ("post_attention_layernorm", vec![8]),
        ("self_attn.q_proj", vec![8, 8]),
        ("self_attn.k_proj", vec![4, 8]),
        ("self_attn.v_proj", vec![4, 8]),
        ("self_attn.o_proj", vec![8, 8]),
        ("mlp.gate_proj", vec![8, 8]),
        ("mlp.up_proj", vec![8, 8]),
        ("mlp.down_proj", vec![8, 8]),
    ] {
        entries.push(ones(&format!("model.layers.0.{part}.weight"), &shape));
    }
    (config, entries)
}

/// A folder that is removed when it is dropped.
pub struct TempFolder(pub PathBuf);

impl TempFolder {
    pub fn new() -> Self {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("met-model-folder-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> &Self {
        std::fs::write(self.0.join(name), bytes).unwrap();
        self
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
