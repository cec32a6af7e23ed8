use super::{Value, Writer};
use met_kernels::TensorType;

/// A tiny random Llama.
#[derive(Clone)]
pub struct Tiny {
    pub ty: TensorType,
    pub layers: usize,
    pub width: usize,
    pub ffn: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub vocab: usize,
    pub context: usize,
    pub tied: bool,
    pub biases: bool,
    pub rope_freqs: bool,
    pub extra: Vec<(String, Value)>,
}

impl Default for Tiny {
    fn default() -> Self {
        Self {
            ty: TensorType::F32,
            layers: 2,
            width: 256,
            ffn: 256,
            heads: 4,
            kv_heads: 2,
            vocab: 97,
            context: 512,
            tied: true,
            biases: false,
            rope_freqs: false,
            extra: Vec::new(),
        }
    }
}

impl Tiny {
    pub fn of(ty: TensorType) -> Self {
        Self {
            ty,
            ..Self::default()
        }
    }

    pub fn writer(&self) -> Writer {
        let mut w = Writer::default();
        w.set("general.architecture", Value::Text("llama".into()))
            .set("general.name", Value::Text("tiny".into()));
        for (key, value) in [
            ("block_count", self.layers),
            ("context_length", self.context),
            ("embedding_length", self.width),
            ("feed_forward_length", self.ffn),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
        ] {
            w.set(&format!("llama.{key}"), Value::U32(value as u32));
        }
        w.set("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
        for (key, value) in &self.extra {
            w.set(key, value.clone());
        }
        let mut rng = Rng(7);
        let kv = self.width / self.heads * self.kv_heads;
        self.matrix(&mut w, &mut rng, "token_embd.weight", self.vocab, self.width);
        for i in 0..self.layers {
            let name = |part: &str| format!("blk.{i}.{part}");
            for (part, rows, cols) in [
                ("attn_q", self.width, self.width),
                ("attn_k", kv, self.width),
                ("attn_v", kv, self.width),
                ("attn_output", self.width, self.width),
                ("ffn_gate", self.ffn, self.width),
                ("ffn_up", self.ffn, self.width),
                ("ffn_down", self.width, self.ffn),
            ] {
                self.matrix(&mut w, &mut rng, &name(&format!("{part}.weight")), rows, cols);
                if self.biases {
                    vector(&mut w, &mut rng, &name(&format!("{part}.bias")), rows, 0.0);
                }
            }
            vector(&mut w, &mut rng, &name("attn_norm.weight"), self.width, 1.0);
            vector(&mut w, &mut rng, &name("ffn_norm.weight"), self.width, 1.0);
        }
        vector(&mut w, &mut rng, "output_norm.weight", self.width, 1.0);
        if !self.tied {
            self.matrix(&mut w, &mut rng, "output.weight", self.vocab, self.width);
        }
        if self.rope_freqs {
            let dims = self.width / self.heads;
            let divisors: Vec<f32> = (0..dims / 2).map(|i| 1.0 + i as f32 / 8.0).collect();
            w.floats("rope_freqs.weight", &[dims / 2], &divisors);
        }
        w
    }

    /// The file, under a name of its own in the system's temporary folder.
    pub fn file(&self) -> TempFile {
        TempFile::new(&self.writer().bytes())
    }

    fn matrix(&self, w: &mut Writer, rng: &mut Rng, name: &str, rows: usize, cols: usize) {
        let data = random_blocks(self.ty, rows * cols, rng);
        w.tensor(name, self.ty, &[cols, rows], data);
    }
}

/// A file that is removed when it is dropped.
pub struct TempFile(pub std::path::PathBuf);

impl TempFile {
    pub fn new(bytes: &[u8]) -> Self {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("met-model-{}-{n}.gguf", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn vector(w: &mut Writer, rng: &mut Rng, name: &str, len: usize, around: f32) {
    let values: Vec<f32> = (0..len).map(|_| around + 0.1 * rng.signed()).collect();
    w.floats(name, &[len], &values);
}

/// Random codes with scales that keep the weights near ±0.1, as a real model's are.
fn random_blocks(ty: TensorType, elements: usize, rng: &mut Rng) -> Vec<u8> {
    let half = |x: f32| half::f16::from_f32(x).to_le_bytes();
    let mut out = Vec::new();
    for _ in 0..elements / ty.block_len() {
        let mut block: Vec<u8> = (0..ty.block_bytes()).map(|_| rng.next() as u8).collect();
        let x = 0.12 * rng.signed();
        let d = 0.5 + 0.5 * rng.signed().abs();
        let mut put = |at: usize, x: f32| block[at..at + 2].copy_from_slice(&half(x));
        match ty {
            TensorType::F32 => block = x.to_le_bytes().to_vec(),
            TensorType::F16 => put(0, x),
            TensorType::BF16 => block = half::bf16::from_f32(x).to_le_bytes().to_vec(),
            TensorType::Q4_0 => put(0, 0.015 * d),
            TensorType::Q4_1 => {
                put(0, 0.015 * d);
                put(2, -0.11 * d);
            }
            TensorType::Q5_0 => put(0, 0.0075 * d),
            TensorType::Q5_1 => {
                put(0, 0.0075 * d);
                put(2, -0.11 * d);
            }
            TensorType::Q8_0 => put(0, 0.001 * d),
            TensorType::Q2_K => {
                put(80, 0.005 * d);
                put(82, 0.007 * d);
            }
            TensorType::Q3_K => put(108, 0.0015 * d),
            TensorType::Q4_K | TensorType::Q5_K => {
                let codes = if ty == TensorType::Q4_K { 15.0 } else { 31.0 };
                put(0, 0.006 / codes * d);
                put(2, 0.003 * d);
            }
            TensorType::Q6_K => put(208, 0.00004 * d),
        }
        out.extend(block);
    }
    out
}

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn signed(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}
