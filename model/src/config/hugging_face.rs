//! What a `config.json` says about the model, as `transformers` reads it.

use super::{
    Family, MAX_CONTEXT, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, ModelConfig, Sliding, check_heads,
    family::sliding_layers,
    json::{Fields, missing, wrong},
    no_rope,
};
use crate::{Error, Result, rope};
use met_kernels::{AttentionShape, RopeTable};
use serde_json::{Map, Value as Json};

/// Reads and checks it. `name` is that of the folder.
pub(super) fn read(config: &Map<String, Json>, name: &str) -> Result<ModelConfig> {
    let fields = Fields(config);
    let architecture = fields.text("model_type")?.ok_or_else(|| missing("model_type"))?;
    let family = Family::named(architecture)?;
    let reader = Reader { fields, family };
    reader.refuse_variants()?;
    let width = fields.size("hidden_size", MAX_WIDTH)?;
    let layers = fields.size("num_hidden_layers", MAX_LAYERS)?;
    let context = fields.size("max_position_embeddings", MAX_CONTEXT)?;
    let attention = reader.attention(width)?;
    let norm_eps = fields.positive("rms_norm_eps")?;
    if norm_eps >= 1.0 {
        return Err(Error::invalid(format!(
            "`rms_norm_eps` is {norm_eps}, but must be below 1"
        )));
    }
    Ok(ModelConfig {
        architecture: architecture.to_owned(),
        name: name.to_owned(),
        layers,
        guessing_layers: 0,
        width,
        feed_forward: reader.feed_forward()?,
        vocab: fields.size("vocab_size", MAX_VOCAB)?,
        context,
        norm_eps: norm_eps as f32,
        rope: reader.rope("full_attention", attention.head_dim, context)?,
        sliding: reader.sliding(layers, attention.head_dim, context)?,
        attention,
        recurrent: reader.recurrent(width, layers)?,
        activation: family.activation(),
        head_norms: family.has_head_norms(),
        attention_gate: family == Family::Qwen3Next,
        post_norms: family.is_gemma(),
        norm_plus: if family.adds_to_norms() { 1.0 } else { 0.0 },
        tied: fields.flag("tie_word_embeddings")?.unwrap_or(family.is_gemma()),
        embedding_scale: match reader.granite_scale("embedding_multiplier")? {
            Some(scale) => scale as f32,
            None => family.embedding_scale(width),
        },
        residual_scale: reader.granite_scale("residual_multiplier")?.unwrap_or(1.0) as f32,
        logit_scale: (1.0 / reader.granite_scale("logits_scaling")?.unwrap_or(1.0)) as f32,
        logit_softcap: reader.softcap("final_logit_softcapping", 1)?,
    })
}

pub(super) struct Reader<'a> {
    pub(super) fields: Fields<'a>,
    pub(super) family: Family,
}

impl Reader<'_> {
    /// What would be computed wrong if it were passed over.
    fn refuse_variants(&self) -> Result<()> {
        let fields = self.fields;
        if fields.is_stated("quantization_config") {
            return Err(Error::invalid(
                "the weights are quantised (`quantization_config`), which is supported in GGUF files only",
            ));
        }
        if fields.is_stated("text_config") {
            return Err(Error::invalid(
                "the model takes more than text (`text_config`), which is not supported",
            ));
        }
        if fields.flag("use_bidirectional_attention")? == Some(true) {
            return Err(Error::invalid(
                "attention looks ahead (`use_bidirectional_attention`), which is not supported",
            ));
        }
        let (key, expected) = match self.family.is_gemma() {
            true => ("hidden_activation", "gelu_pytorch_tanh"),
            false => ("hidden_act", "silu"),
        };
        match fields.text(key)? {
            Some(other) if other != expected => Err(Error::invalid(format!(
                "`{key}` is `{other}`, which is not supported; supported: {expected}"
            ))),
            _ => Ok(()),
        }
    }

    fn attention(&self, width: usize) -> Result<AttentionShape> {
        let fields = self.fields;
        let heads = fields.size("num_attention_heads", MAX_WIDTH)?;
        let is_next = self.family == Family::Qwen3Next;
        let kv_heads = match fields.optional_size("num_key_value_heads", heads)? {
            Some(kv_heads) => kv_heads,
            None if is_next => return Err(missing("num_key_value_heads")),
            None => heads,
        };
        let head_dim = match fields.optional_size("head_dim", MAX_WIDTH)? {
            Some(head_dim) => head_dim,
            None if is_next => return Err(missing("head_dim")),
            None if width.is_multiple_of(heads) => width / heads,
            None => {
                return Err(Error::invalid(format!(
                    "`hidden_size` ({width}) must be a multiple of `num_attention_heads` ({heads}) where `head_dim` is missing"
                )));
            }
        };
        let scale = match self.family {
            Family::Gemma2 | Family::Gemma3 => {
                let scalar = fields.optional_positive("query_pre_attn_scalar")?;
                1.0 / scalar.unwrap_or(256.0).sqrt()
            }
            family if family.is_granite() => self.granite_scale("attention_multiplier")?.unwrap_or(1.0),
            _ => 1.0 / (head_dim as f64).sqrt(),
        };
        let shape = AttentionShape {
            heads,
            kv_heads,
            head_dim,
            scale: scale as f32,
            window: 0,
            softcap: self.softcap("attn_logit_softcapping", 0)?,
        };
        check_heads(&shape, |message| {
            Error::invalid(format!(
                "`num_attention_heads` and `num_key_value_heads`: {message}"
            ))
        })?;
        Ok(shape)
    }

    fn softcap(&self, key: &str, which: usize) -> Result<f32> {
        let default = match self.fields.is_stated(key) {
            true => 0.0,
            false => self.family.default_softcaps()[which],
        };
        Ok(self.fields.optional_positive(key)?.unwrap_or(default) as f32)
    }

    fn sliding(&self, layers: usize, head_dim: usize, context: usize) -> Result<Option<Sliding>> {
        let fields = self.fields;
        let is_qwen = self.family.slides_on_demand();
        let off = match self.family {
            Family::Llama | Family::Granite => true,
            family if family.is_hybrid() => true,
            _ => is_qwen && fields.flag("use_sliding_window")? != Some(true),
        };
        if off {
            return Ok(None);
        }
        let stated = fields.optional_size("sliding_window", MAX_CONTEXT)?;
        let default = (!fields.is_stated("sliding_window")).then_some(4096);
        let Some(window) = stated.or(default) else {
            return Ok(None);
        };
        let layers = match fields.list("layer_types")? {
            Some(types) => listed_layers(types, layers)?,
            None if is_qwen => {
                let first = fields
                    .optional_size("max_window_layers", MAX_LAYERS)?
                    .unwrap_or(28);
                (0..layers).map(|layer| layer >= first).collect()
            }
            None => {
                let mut full_every = fields.optional_size("sliding_window_pattern", MAX_LAYERS)?;
                if full_every.is_none() {
                    full_every = fields.optional_size("_sliding_window_pattern", MAX_LAYERS)?;
                }
                sliding_layers(layers, full_every.unwrap_or(self.family.full_every()))
            }
        };
        let rope = self.rope("sliding_attention", head_dim, context)?;
        Ok(Some(Sliding { window, rope, layers }))
    }

    /// The rotary embedding of one kind of layers.
    fn rope(&self, kind: &str, head_dim: usize, context: usize) -> Result<RopeTable> {
        let fields = self.fields;
        if self.family == Family::GraniteHybrid && fields.text("position_embedding_type")? != Some("rope") {
            return Ok(no_rope());
        }
        // Newer files have all of it in `rope_parameters`, which Gemma 3's divide by the kind of layer.
        let parameters = fields.object("rope_parameters")?;
        let of_kind = parameters.map(|all| all.object(kind)).transpose()?.flatten();
        let (scaling, base) = match of_kind.or(parameters) {
            Some(parameters) => (Some(parameters), parameters.optional_positive("rope_theta")?),
            None if self.family == Family::Gemma3 && kind == "sliding_attention" => {
                let base = fields.optional_positive("rope_local_base_freq")?;
                (None, Some(base.unwrap_or(10_000.0)))
            }
            None => {
                let base = fields.optional_positive("rope_theta")?;
                (fields.object("rope_scaling")?, base)
            }
        };
        let default = if self.family == Family::Gemma3 { 1e6 } else { 1e4 };
        let base = base.unwrap_or(default);
        if !head_dim.is_multiple_of(2) {
            return Err(Error::invalid(format!(
                "`head_dim` is {head_dim}, but must be even"
            )));
        }
        let dims = self.rotary_dims(scaling, head_dim)?;
        let mut inverse = rope::inverse_frequencies(dims, base);
        let magnitude = match scaling {
            Some(scaling) => scale(scaling, &mut inverse, base, context)?,
            None => 1.0,
        };
        if !inverse.iter().all(|f| f.is_finite()) {
            return Err(Error::invalid(format!(
                "the rotary embedding with `rope_theta` {base} has no finite angles"
            )));
        }
        Ok(RopeTable {
            dims,
            inverse_frequencies: inverse.into_iter().map(|f| f as f32).collect(),
            magnitude,
            half_split: true,
        })
    }
}

impl Reader<'_> {
    /// How many of a head's dimensions turn.
    fn rotary_dims(&self, parameters: Option<Fields<'_>>, head_dim: usize) -> Result<usize> {
        let key = "partial_rotary_factor";
        let stated = match parameters
            .map(|p| p.optional_positive(key))
            .transpose()?
            .flatten()
        {
            Some(factor) => Some(factor),
            None => self.fields.optional_positive(key)?,
        };
        let is_next = self.family == Family::Qwen3Next;
        let factor = stated.unwrap_or(if is_next { 0.25 } else { 1.0 });
        let dims = (head_dim as f64 * factor) as usize;
        if !is_next && factor != 1.0 {
            return Err(Error::invalid(format!(
                "`{key}` is {factor}, but only 1 is supported"
            )));
        }
        if factor > 1.0 || dims == 0 || !dims.is_multiple_of(2) {
            return Err(Error::invalid(format!(
                "`{key}` is {factor}, which doesn't give an even number of a head's {head_dim} dimensions"
            )));
        }
        Ok(dims)
    }
}

/// Applies a scaling and returns the magnitude.
fn scale(scaling: Fields<'_>, inverse: &mut [f64], base: f64, context: usize) -> Result<f32> {
    if let Some(key) = ["mscale", "mscale_all_dim", "truncate"]
        .into_iter()
        .find(|key| scaling.is_stated(key))
    {
        return Err(Error::invalid(format!(
            "the rotary scaling has `{key}`, which is not supported"
        )));
    }
    let kind = match scaling.text("rope_type")? {
        Some(kind) => Some(kind),
        None => scaling.text("type")?,
    };
    let original = || {
        let stated = scaling.optional_size("original_max_position_embeddings", MAX_CONTEXT)?;
        Ok::<_, Error>(stated.unwrap_or(context) as f64)
    };
    match kind {
        None | Some("default") => {}
        Some("linear") => rope::scale_linear(inverse, scaling.positive("factor")?),
        Some("llama3") => rope::Llama3 {
            factor: scaling.positive("factor")?,
            low: scaling.positive("low_freq_factor")?,
            high: scaling.positive("high_freq_factor")?,
            original_context: original()?,
        }
        .apply(inverse),
        Some("yarn") => {
            let yarn = rope::Yarn {
                factor: scaling.positive("factor")?,
                original_context: original()?,
                beta_fast: scaling.optional_positive("beta_fast")?.unwrap_or(32.0),
                beta_slow: scaling.optional_positive("beta_slow")?.unwrap_or(1.0),
            };
            yarn.apply(inverse, base);
            let stated = scaling.optional_positive("attention_factor")?;
            return Ok(stated.unwrap_or(yarn.magnitude()) as f32);
        }
        Some(other) => {
            return Err(Error::invalid(format!(
                "`rope_type` is `{other}`, which is not supported; supported: default, linear, llama3, yarn"
            )));
        }
    }
    Ok(1.0)
}

/// `layer_types`: which of the layers have a window.
fn listed_layers(types: &[Json], layers: usize) -> Result<Vec<bool>> {
    if types.len() != layers {
        return Err(Error::invalid(format!(
            "`layer_types` lists {} layers, but `num_hidden_layers` is {layers}",
            types.len()
        )));
    }
    types
        .iter()
        .map(|kind| match kind.as_str() {
            Some("sliding_attention") => Ok(true),
            Some("full_attention") => Ok(false),
            _ => Err(wrong(
                "layer_types",
                kind,
                "a list of full_attention and sliding_attention",
            )),
        })
        .collect()
}
