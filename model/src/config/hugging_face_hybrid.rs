//! What a `config.json` says about recurrent layers, experts, and Granite's multipliers.

use super::{
    Experts, Family, FeedForward, MAX_EXPERTS, MAX_LAYERS, MAX_WIDTH, Mixer, Recurrent,
    hugging_face::Reader,
    json::{missing, wrong},
};
use crate::{Error, Result};
use met_kernels::{DeltaShape, ScanShape};
use serde_json::Value as Json;

impl Reader<'_> {
    /// One of Granite's multipliers; `None` where there is none.
    pub(super) fn granite_scale(&self, key: &str) -> Result<Option<f64>> {
        match self.family.is_granite() {
            true => self.fields.optional_positive(key),
            false => Ok(None),
        }
    }

    /// The layers that have a recurrent state.
    pub(super) fn recurrent(&self, width: usize, layers: usize) -> Result<Option<Recurrent>> {
        let recurrent = match self.family {
            Family::GraniteHybrid => match self.fields.list("layer_types")? {
                Some(types) => recurrent_layers(types, layers)?,
                None => vec![true; layers],
            },
            Family::Qwen3Next => match self.fields.list("layer_types")? {
                Some(types) => recurrent_layers(types, layers)?,
                None => {
                    let every = self.fields.optional_size("full_attention_interval", MAX_LAYERS)?;
                    let every = every.unwrap_or(4);
                    (1..=layers).map(|number| !number.is_multiple_of(every)).collect()
                }
            },
            _ => return Ok(None),
        };
        if !recurrent.contains(&true) {
            return Ok(None);
        }
        let (mixer, taps) = match self.family {
            Family::GraniteHybrid => self.mamba2(width)?,
            _ => self.delta()?,
        };
        let recurrent = Recurrent {
            mixer,
            taps,
            layers: recurrent,
        };
        recurrent.check()?;
        Ok(Some(recurrent))
    }

    fn mamba2(&self, width: usize) -> Result<(Mixer, usize)> {
        let fields = self.fields;
        if fields.flag("mamba_proj_bias")? == Some(true) {
            return Err(Error::invalid(
                "Mamba-2 projections have biases (`mamba_proj_bias`), which is not supported",
            ));
        }
        if let Some(limit) = fields.list("time_step_limit")?
            && !is_no_limit(limit)
        {
            return Err(Error::invalid(
                "time steps are limited (`time_step_limit`), which is not supported",
            ));
        }
        let heads = fields.size("mamba_n_heads", MAX_WIDTH)?;
        let inner = width * fields.optional_size("mamba_expand", MAX_WIDTH)?.unwrap_or(2);
        let head_dim = match fields.is_text("mamba_d_head", "auto") {
            true => inner / heads,
            false => fields
                .optional_size("mamba_d_head", MAX_WIDTH)?
                .unwrap_or(inner / heads),
        };
        if heads * head_dim != inner {
            return Err(Error::invalid(format!(
                "`mamba_n_heads` ({heads}) of `mamba_d_head` ({head_dim}) aren't `mamba_expand` times `hidden_size` ({inner})"
            )));
        }
        let shape = ScanShape {
            heads,
            head_dim,
            groups: fields.optional_size("mamba_n_groups", MAX_WIDTH)?.unwrap_or(1),
            state_dim: fields.optional_size("mamba_d_state", MAX_WIDTH)?.unwrap_or(256),
        };
        let taps = fields.optional_size("mamba_d_conv", MAX_WIDTH)?.unwrap_or(4);
        Ok((Mixer::Mamba2(shape), taps))
    }

    fn delta(&self) -> Result<(Mixer, usize)> {
        let size = |key| self.fields.size(key, MAX_WIDTH);
        let shape = DeltaShape {
            key_heads: size("linear_num_key_heads")?,
            value_heads: size("linear_num_value_heads")?,
            key_dim: size("linear_key_head_dim")?,
            value_dim: size("linear_value_head_dim")?,
        };
        Ok((Mixer::Delta(shape), size("linear_conv_kernel_dim")?))
    }

    /// Dense, or of experts.
    pub(super) fn feed_forward(&self) -> Result<FeedForward> {
        match self.family {
            Family::GraniteHybrid => self.granite_feed_forward(),
            family if family.is_qwen_moe() => self.qwen_feed_forward(),
            _ => Ok(FeedForward::Dense(
                self.fields.size("intermediate_size", MAX_WIDTH)?,
            )),
        }
    }

    fn granite_feed_forward(&self) -> Result<FeedForward> {
        let fields = self.fields;
        let shared = fields.size("shared_intermediate_size", MAX_WIDTH)?;
        let count = fields.count("num_local_experts", MAX_EXPERTS)?;
        Ok(match count.ok_or_else(|| missing("num_local_experts"))? {
            0 => FeedForward::Dense(shared),
            count => FeedForward::Experts(Experts {
                count,
                chosen: fields.size("num_experts_per_tok", count)?,
                width: fields.size("intermediate_size", MAX_WIDTH)?,
                normalised: true,
                shared,
                shared_gate: false,
            }),
        })
    }

    fn qwen_feed_forward(&self) -> Result<FeedForward> {
        let fields = self.fields;
        let every = fields.optional_size("decoder_sparse_step", MAX_LAYERS)?;
        let dense = fields.list("mlp_only_layers")?;
        if every.is_some_and(|every| every != 1) || dense.is_some_and(|dense| !dense.is_empty()) {
            return Err(Error::invalid(
                "some layers have experts and others none (`decoder_sparse_step`, `mlp_only_layers`), which is not supported",
            ));
        }
        // The latter is what newer files of some say.
        let count = match fields.count("num_experts", MAX_EXPERTS)? {
            Some(count) => Some(count),
            None => fields.count("num_local_experts", MAX_EXPERTS)?,
        };
        let is_next = self.family == Family::Qwen3Next;
        Ok(match count.ok_or_else(|| missing("num_experts"))? {
            0 => FeedForward::Dense(fields.size("intermediate_size", MAX_WIDTH)?),
            count => FeedForward::Experts(Experts {
                count,
                chosen: fields.size("num_experts_per_tok", count)?,
                width: fields.size("moe_intermediate_size", MAX_WIDTH)?,
                normalised: fields.flag("norm_topk_prob")?.unwrap_or(is_next),
                shared: match self.family {
                    Family::Qwen3Moe => 0,
                    _ => fields.size("shared_expert_intermediate_size", MAX_WIDTH)?,
                },
                shared_gate: true,
            }),
        })
    }
}

/// `layer_types`: which of the layers are recurrent. Older files have other names.
fn recurrent_layers(types: &[Json], layers: usize) -> Result<Vec<bool>> {
    if types.len() != layers {
        return Err(Error::invalid(format!(
            "`layer_types` lists {} layers, but `num_hidden_layers` is {layers}",
            types.len()
        )));
    }
    types
        .iter()
        .map(|kind| match kind.as_str() {
            Some("linear_attention" | "mamba") => Ok(true),
            Some("full_attention" | "attention") => Ok(false),
            _ => Err(wrong(
                "layer_types",
                kind,
                "a list of full_attention and linear_attention",
            )),
        })
        .collect()
}

/// From 0 to infinity, which JSON has no number for.
fn is_no_limit(limit: &[Json]) -> bool {
    let [from, to] = limit else {
        return false;
    };
    let infinite = to.get("__float__").unwrap_or(to).as_str() == Some("Infinity");
    from.as_f64() == Some(0.0) && (infinite || to.is_null())
}
