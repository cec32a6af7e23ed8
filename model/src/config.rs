//! What the metadata of a Llama-family GGUF file says about the model, checked for sense.

use crate::{Checkpoint, Error, Metadata, Result, rope};
use met_kernels::{AttentionShape, RopeTable};

/// Architectures whose forward pass we have, as GGUF names them.
pub const ARCHITECTURES: [&str; 1] = ["llama"];

/// Bounds that no model of this family comes near; they keep products of sizes far from overflow.
const MAX_LAYERS: usize = 1 << 10;
const MAX_WIDTH: usize = 1 << 20;
const MAX_CONTEXT: usize = 1 << 28;

/// Shape and constants of a Llama-family model.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaConfig {
    /// The architecture as the checkpoint names it.
    pub architecture: String,
    /// A name for people.
    pub name: String,
    /// Number of layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Width of the feed-forward layer.
    pub feed_forward: usize,
    /// Number of tokens.
    pub vocab: usize,
    /// Positions the model was made for.
    pub context: usize,
    /// Added to the mean square in norms.
    pub norm_eps: f32,
    /// Heads and their size.
    pub attention: AttentionShape,
    /// Rotary embedding.
    pub rope: RopeTable,
}

impl LlamaConfig {
    /// Reads and checks the configuration.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self> {
        let metadata = checkpoint.metadata();
        let architecture: &str = metadata.require("general.architecture")?;
        if !ARCHITECTURES.contains(&architecture) {
            return Err(Error::invalid(format!(
                "architecture `{architecture}` is not supported; supported: {}",
                ARCHITECTURES.join(", ")
            )));
        }
        let read = Reader {
            metadata,
            architecture,
        };
        if read.optional("expert_count")?.unwrap_or(0usize) > 0 {
            return Err(Error::invalid(
                "a mixture of experts (`llama.expert_count` > 0) is not supported",
            ));
        }
        let width = read.size("embedding_length", MAX_WIDTH)?;
        let attention = read.attention(width)?;
        let context = read.size("context_length", MAX_CONTEXT)?;
        let embedding = checkpoint
            .tensor("token_embd.weight")
            .ok_or_else(|| Error::invalid("tensor `token_embd.weight` is missing"))?;
        Ok(Self {
            architecture: architecture.to_owned(),
            name: metadata.get("general.name")?.unwrap_or("unnamed").to_owned(),
            layers: read.size("block_count", MAX_LAYERS)?,
            width,
            feed_forward: read.size("feed_forward_length", MAX_WIDTH)?,
            vocab: vocab(metadata, embedding.elements() / embedding.shape[0])?,
            context,
            norm_eps: read.norm_eps()?,
            rope: read.rope(checkpoint, attention.head_dim, context)?,
            attention,
        })
    }
}

/// A token is a `u32`, and none may lie beyond the embedding.
fn vocab(metadata: &Metadata, rows: usize) -> Result<usize> {
    let listed = metadata
        .get::<crate::checkpoint::Array>("tokenizer.ggml.tokens")?
        .map_or(0, |tokens| tokens.len());
    if listed > rows || u32::try_from(rows).is_err() {
        return Err(Error::invalid(format!(
            "`token_embd.weight` has {rows} rows, but `tokenizer.ggml.tokens` lists {listed} tokens"
        )));
    }
    Ok(rows)
}

/// Reads keys under the architecture's prefix.
struct Reader<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
}

impl<'a> Reader<'a> {
    fn optional<T: crate::checkpoint::FromMetadata<'a>>(&self, key: &str) -> Result<Option<T>> {
        self.metadata.get(&self.key(key))
    }

    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// A number from 1 to `most`.
    fn size(&self, key: &str, most: usize) -> Result<usize> {
        let value = self.metadata.require(&self.key(key))?;
        self.in_range(key, value, most)
    }

    fn in_range(&self, key: &str, value: usize, most: usize) -> Result<usize> {
        if (1..=most).contains(&value) {
            return Ok(value);
        }
        Err(Error::invalid(format!(
            "metadata key `{}` is {value}, but must be 1 to {most}",
            self.key(key)
        )))
    }

    fn attention(&self, width: usize) -> Result<AttentionShape> {
        let heads = self.size("attention.head_count", MAX_WIDTH)?;
        let kv_heads = self.optional("attention.head_count_kv")?.unwrap_or(heads);
        let kv_heads = self.in_range("attention.head_count_kv", kv_heads, heads)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(Error::invalid(format!(
                "`{}` ({heads}) must be a multiple of `{}` ({kv_heads})",
                self.key("attention.head_count"),
                self.key("attention.head_count_kv")
            )));
        }
        let key_length = self.optional("attention.key_length")?;
        if key_length.is_none() && !width.is_multiple_of(heads) {
            return Err(Error::invalid(format!(
                "`{}` ({width}) must be a multiple of `{}` ({heads})",
                self.key("embedding_length"),
                self.key("attention.head_count")
            )));
        }
        let head_dim = self.in_range(
            "attention.key_length",
            key_length.unwrap_or(width / heads),
            MAX_WIDTH,
        )?;
        let value_length = self.optional("attention.value_length")?.unwrap_or(head_dim);
        if value_length != head_dim || heads.checked_mul(head_dim).is_none_or(|n| n > MAX_WIDTH) {
            return Err(Error::invalid(format!(
                "{heads} heads with keys of {head_dim} and values of {value_length} are not supported: the lengths must be equal, and at most {MAX_WIDTH} together"
            )));
        }
        Ok(AttentionShape {
            heads,
            kv_heads,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            window: self.optional("attention.sliding_window")?.unwrap_or(0),
            softcap: 0.0,
        })
    }

    fn norm_eps(&self) -> Result<f32> {
        let key = self.key("attention.layer_norm_rms_epsilon");
        let eps: f32 = self.metadata.require(&key)?;
        if !(0.0..1.0).contains(&eps) {
            return Err(Error::invalid(format!(
                "metadata key `{key}` is {eps}, but must be 0 to 1"
            )));
        }
        Ok(eps)
    }

    fn rope(&self, checkpoint: &Checkpoint, head_dim: usize, context: usize) -> Result<RopeTable> {
        let dims = self.optional("rope.dimension_count")?.unwrap_or(head_dim);
        let dims = self.in_range("rope.dimension_count", dims, head_dim)?;
        if !dims.is_multiple_of(2) {
            return Err(Error::invalid(format!(
                "metadata key `{}` is {dims}, but must be even",
                self.key("rope.dimension_count")
            )));
        }
        let base = self.positive("rope.freq_base")?.unwrap_or(10_000.0);
        let mut inverse = rope::inverse_frequencies(dims, base);
        if let Some(divisors) = checkpoint.floats("rope_freqs.weight", dims / 2)? {
            if !divisors.iter().all(|d| d.is_normal() && *d > 0.0) {
                return Err(Error::invalid(
                    "tensor `rope_freqs.weight` must hold positive numbers",
                ));
            }
            rope::divide(&mut inverse, &divisors);
        }
        let magnitude = self.scale_rope(&mut inverse, base, context)?;
        if !inverse.iter().all(|f| f.is_finite()) {
            return Err(Error::invalid(format!(
                "the rotary scaling with `rope.freq_base` {base} has no finite angles"
            )));
        }
        Ok(RopeTable {
            dims,
            inverse_frequencies: inverse.into_iter().map(|f| f as f32).collect(),
            magnitude,
            // The converter permutes the rows of q and k so that neighbours turn together.
            half_split: false,
        })
    }

    /// Applies the scaling that the metadata names, and returns the magnitude.
    fn scale_rope(&self, inverse: &mut [f64], base: f64, context: usize) -> Result<f32> {
        let factor = match self.positive("rope.scaling.factor")? {
            Some(factor) => factor,
            None => self.positive("rope.scale_linear")?.unwrap_or(1.0),
        };
        let key = self.key("rope.scaling.type");
        let kind: Option<&str> = self.metadata.get(&key)?;
        match kind {
            Some("none") => Ok(1.0),
            None | Some("linear") => {
                rope::scale_linear(inverse, factor);
                Ok(1.0)
            }
            Some("yarn") => {
                let original = self.optional("rope.scaling.original_context_length")?;
                let original = self.in_range(
                    "rope.scaling.original_context_length",
                    original.unwrap_or(context),
                    MAX_CONTEXT,
                )?;
                let yarn = rope::Yarn {
                    factor,
                    original_context: original as f64,
                    beta_fast: self.positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                    beta_slow: self.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                };
                yarn.apply(inverse, base);
                let attention = self.positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
                Ok((attention * yarn.magnitude()) as f32)
            }
            Some(other) => Err(Error::invalid(format!(
                "metadata key `{key}` is `{other}`, which is not supported; supported: none, linear, yarn"
            ))),
        }
    }

    fn positive(&self, key: &str) -> Result<Option<f64>> {
        let value: Option<f64> = self.optional(key)?;
        match value {
            // 0 stands for "not set" in files of older converters.
            Some(0.0) => Ok(None),
            Some(x) if !(x.is_finite() && x > 0.0) => Err(Error::invalid(format!(
                "metadata key `{}` is {x}, but must be positive",
                self.key(key)
            ))),
            x => Ok(x),
        }
    }
}
