//! What the metadata of a GGUF file says about the model.

use super::{
    Family, MAX_CONTEXT, MAX_WIDTH, ModelConfig, Sliding, check_heads, family::sliding_layers, no_rope,
};
use crate::{Checkpoint, Error, Metadata, Result, checkpoint::Value, rope};
use met_kernels::{AttentionShape, RopeTable};

/// Reads and checks it.
pub(super) fn read(checkpoint: &Checkpoint) -> Result<ModelConfig> {
    let metadata = checkpoint.metadata();
    let architecture: &str = metadata.require("general.architecture")?;
    let family = Family::named(architecture)?;
    let read = Reader {
        metadata,
        architecture,
        family,
    };
    let width = read.size("embedding_length", MAX_WIDTH)?;
    let layers = read.layers()?;
    let recurrent = read.recurrent(layers)?;
    let attention = read.attention(width, layers)?;
    let context = read.size("context_length", MAX_CONTEXT)?;
    let embedding = checkpoint
        .tensor("token_embd.weight")
        .ok_or_else(|| Error::invalid("tensor `token_embd.weight` is missing"))?;
    let rope = read.rope(checkpoint, attention.head_dim, context)?;
    Ok(ModelConfig {
        architecture: architecture.to_owned(),
        name: metadata.get("general.name")?.unwrap_or("unnamed").to_owned(),
        layers,
        guessing_layers: read.guessing_layers()?,
        width,
        feed_forward: read.feed_forward()?,
        vocab: vocab(metadata, embedding.elements() / embedding.shape[0])?,
        context,
        norm_eps: read.norm_eps()?,
        sliding: read.sliding(layers, &rope)?,
        rope,
        recurrent,
        attention,
        activation: family.activation(),
        head_norms: family.has_head_norms(),
        attention_gate: family == Family::Qwen3Next,
        post_norms: family.is_gemma(),
        // The converter adds it.
        norm_plus: 0.0,
        tied: checkpoint.tensor("output.weight").is_none(),
        embedding_scale: match read.granite_scale("embedding_scale")? {
            Some(scale) => scale as f32,
            None => family.embedding_scale(width),
        },
        residual_scale: read.granite_scale("residual_scale")?.unwrap_or(1.0) as f32,
        logit_scale: (1.0 / read.granite_scale("logit_scale")?.unwrap_or(1.0)) as f32,
        logit_softcap: read.softcap("final_logit_softcapping", 1)?,
    })
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
pub(super) struct Reader<'a> {
    pub(super) metadata: &'a Metadata,
    architecture: &'a str,
    pub(super) family: Family,
}

impl<'a> Reader<'a> {
    pub(super) fn optional<T: crate::checkpoint::FromMetadata<'a>>(&self, key: &str) -> Result<Option<T>> {
        self.metadata.get(&self.key(key))
    }

    pub(super) fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// A number from 1 to `most`.
    pub(super) fn size(&self, key: &str, most: usize) -> Result<usize> {
        let value = self.metadata.require(&self.key(key))?;
        self.in_range(key, value, most)
    }

    pub(super) fn in_range(&self, key: &str, value: usize, most: usize) -> Result<usize> {
        if (1..=most).contains(&value) {
            return Ok(value);
        }
        Err(Error::invalid(format!(
            "metadata key `{}` is {value}, but must be 1 to {most}",
            self.key(key)
        )))
    }

    fn attention(&self, width: usize, layers: usize) -> Result<AttentionShape> {
        let heads = self.size("attention.head_count", MAX_WIDTH)?;
        let kv_heads = match self.family {
            Family::GraniteHybrid => self.kv_heads_of_some(layers)?,
            _ => self.optional("attention.head_count_kv")?,
        };
        let kv_heads = self.in_range("attention.head_count_kv", kv_heads.unwrap_or(heads), heads)?;
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
        if value_length != head_dim {
            return Err(Error::invalid(format!(
                "{heads} heads with keys of {head_dim} and values of {value_length} are not supported: the lengths must be equal"
            )));
        }
        // The largest Gemmas scale by what would be their heads' size without the key; the metadata doesn't say so.
        let scaled_by = match (self.family, layers) {
            (Family::Gemma2, 46) | (Family::Gemma3, 62) => width as f32 / heads as f32,
            _ => head_dim as f32,
        };
        let scale = self.granite_scale("attention.scale")?.map(|scale| scale as f32);
        let shape = AttentionShape {
            heads,
            kv_heads,
            head_dim,
            scale: scale.unwrap_or(1.0 / scaled_by.sqrt()),
            window: 0,
            softcap: self.softcap("attn_logit_softcapping", 0)?,
        };
        check_heads(&shape, |message| {
            Error::invalid(format!(
                "`{}` and `{}`: {message}",
                self.key("attention.head_count"),
                self.key("attention.head_count_kv")
            ))
        })?;
        Ok(shape)
    }

    fn sliding(&self, layers: usize, rope: &RopeTable) -> Result<Option<Sliding>> {
        let window = self.optional("attention.sliding_window")?.unwrap_or(0);
        if window == 0 || self.family.slides_on_demand() || self.family.is_hybrid() {
            return Ok(None);
        }
        let key = self.key("attention.sliding_window_pattern");
        let layers = match self.metadata.value(&key) {
            None => sliding_layers(layers, self.family.full_every()),
            Some(Value::Array(_)) => {
                let listed: Vec<bool> = self.metadata.require(&key)?;
                if listed.len() != layers {
                    return Err(Error::invalid(format!(
                        "metadata key `{key}` lists {} layers, but there are {layers}",
                        listed.len()
                    )));
                }
                listed
            }
            Some(_) => sliding_layers(layers, self.metadata.require(&key)?),
        };
        let rope = match self.family {
            Family::Gemma3 => {
                let base = self.positive("rope.freq_base_swa")?.unwrap_or(10_000.0);
                RopeTable {
                    inverse_frequencies: rope::inverse_frequencies(rope.dims, base)
                        .into_iter()
                        .map(|f| f as f32)
                        .collect(),
                    magnitude: 1.0,
                    ..*rope
                }
            }
            _ => rope.clone(),
        };
        Ok(Some(Sliding { window, rope, layers }))
    }

    /// One of the two soft caps of Gemma 2; 0 where there is none.
    fn softcap(&self, key: &str, which: usize) -> Result<f32> {
        let default = self.family.default_softcaps()[which];
        Ok(self.positive(key)?.unwrap_or(default) as f32)
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
        if self.family == Family::GraniteHybrid && self.optional("rope.scaling.finetuned")? == Some(false) {
            return Ok(no_rope());
        }
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
            // For these the converter permutes the rows of q and k so that neighbours turn together.
            half_split: !matches!(self.family, Family::Llama | Family::Mistral) && !self.family.is_granite(),
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

    pub(super) fn positive(&self, key: &str) -> Result<Option<f64>> {
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
