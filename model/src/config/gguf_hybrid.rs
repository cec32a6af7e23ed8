//! What the metadata of a GGUF file says about recurrent layers, experts, and Granite's multipliers.

use super::{
    Experts, Family, FeedForward, MAX_EXPERTS, MAX_LAYERS, MAX_WIDTH, Mixer, Recurrent, gguf::Reader,
};
use crate::{Error, Result, checkpoint::Value};
use met_kernels::{DeltaShape, ScanShape};

/// The number that stands for a softmax router.
const SOFTMAX: u32 = 1;

impl Reader<'_> {
    /// The layers that take part in a step: those that only guess further tokens don't.
    pub(super) fn layers(&self) -> Result<usize> {
        let all = self.size("block_count", MAX_LAYERS)?;
        let guessing = self.guessing_layers()?;
        self.in_range("block_count", all.saturating_sub(guessing), MAX_LAYERS)
    }

    /// Qwen3-Next's files count them among the layers.
    pub(super) fn guessing_layers(&self) -> Result<usize> {
        match self.family {
            Family::Qwen3Next => Ok(self.optional("nextn_predict_layers")?.unwrap_or(0)),
            _ => Ok(0),
        }
    }

    /// One of Granite's multipliers; `None` where there is none.
    pub(super) fn granite_scale(&self, key: &str) -> Result<Option<f64>> {
        match self.family.is_granite() {
            true => self.positive(key),
            false => Ok(None),
        }
    }

    /// `attention.head_count_kv` of the layers that have any.
    pub(super) fn kv_heads_of_some(&self, layers: usize) -> Result<Option<usize>> {
        let listed = self.kv_heads(layers)?;
        let mut some = listed.iter().copied().filter(|&heads| heads > 0);
        let first = some.next();
        match some.find(|&heads| Some(heads) != first) {
            None => Ok(first),
            Some(other) => Err(Error::invalid(format!(
                "metadata key `{}` has layers of {} and of {other}, but must be the same in all that have any",
                self.key("attention.head_count_kv"),
                first.unwrap_or(0)
            ))),
        }
    }

    /// `attention.head_count_kv` of each layer.
    fn kv_heads(&self, layers: usize) -> Result<Vec<usize>> {
        let key = self.key("attention.head_count_kv");
        let Some(Value::Array(_)) = self.metadata.value(&key) else {
            return Ok(vec![self.metadata.require(&key)?; layers]);
        };
        self.of_each_layer("attention.head_count_kv", layers)
    }

    fn of_each_layer<'a, T>(&'a self, key: &str, layers: usize) -> Result<Vec<T>>
    where
        Vec<T>: crate::checkpoint::FromMetadata<'a>,
    {
        let key = self.key(key);
        let mut listed: Vec<T> = self.metadata.require(&key)?;
        if listed.len() != layers + self.guessing_layers()? {
            return Err(Error::invalid(format!(
                "metadata key `{key}` lists {} layers, but there are {layers}",
                listed.len()
            )));
        }
        listed.truncate(layers);
        Ok(listed)
    }

    /// The layers that have a recurrent state.
    pub(super) fn recurrent(&self, layers: usize) -> Result<Option<Recurrent>> {
        let recurrent: Vec<bool> = match self.family {
            Family::GraniteHybrid => self.kv_heads(layers)?.iter().map(|&heads| heads == 0).collect(),
            Family::Qwen3Next => {
                let key = "attention.recurrent_layers";
                match self.metadata.value(&self.key(key)) {
                    Some(_) => self.of_each_layer(key, layers)?,
                    None => {
                        let every = self.optional("full_attention_interval")?.unwrap_or(4);
                        let every = self.in_range("full_attention_interval", every, MAX_LAYERS)?;
                        (1..=layers).map(|number| !number.is_multiple_of(every)).collect()
                    }
                }
            }
            _ => return Ok(None),
        };
        if !recurrent.contains(&true) {
            return Ok(None);
        }
        let width = self.size("ssm.inner_size", MAX_WIDTH)?;
        let heads = self.size("ssm.time_step_rank", MAX_WIDTH)?;
        let (groups, state) = (
            self.size("ssm.group_count", MAX_WIDTH)?,
            self.size("ssm.state_size", MAX_WIDTH)?,
        );
        if !width.is_multiple_of(heads) {
            return Err(Error::invalid(format!(
                "`{}` ({width}) must be a multiple of `{}` ({heads})",
                self.key("ssm.inner_size"),
                self.key("ssm.time_step_rank")
            )));
        }
        let recurrent = Recurrent {
            mixer: match self.family {
                Family::GraniteHybrid => Mixer::Mamba2(ScanShape {
                    heads,
                    head_dim: width / heads,
                    groups,
                    state_dim: state,
                }),
                _ => Mixer::Delta(DeltaShape {
                    key_heads: groups,
                    value_heads: heads,
                    key_dim: state,
                    value_dim: width / heads,
                }),
            },
            taps: self.size("ssm.conv_kernel", MAX_WIDTH)?,
            layers: recurrent,
        };
        recurrent.check()?;
        Ok(Some(recurrent))
    }

    /// Dense, or of experts.
    pub(super) fn feed_forward(&self) -> Result<FeedForward> {
        let count: usize = self.optional("expert_count")?.unwrap_or(0);
        if count == 0 {
            return Ok(FeedForward::Dense(self.size("feed_forward_length", MAX_WIDTH)?));
        }
        let is_qwen = self.family.is_qwen_moe();
        if !is_qwen && self.family != Family::GraniteHybrid {
            return Err(Error::invalid(format!(
                "a mixture of experts (`{}` > 0) is not supported in this architecture",
                self.key("expert_count")
            )));
        }
        let gating: u32 = self.optional("expert_gating_func")?.unwrap_or(SOFTMAX);
        if gating != SOFTMAX {
            return Err(Error::invalid(format!(
                "metadata key `{}` is {gating}, but only {SOFTMAX} (softmax) is supported",
                self.key("expert_gating_func")
            )));
        }
        if let Some(scale) = self.positive("expert_weights_scale")?
            && scale != 1.0
        {
            return Err(Error::invalid(format!(
                "metadata key `{}` is {scale}, but only 1 is supported",
                self.key("expert_weights_scale")
            )));
        }
        let count = self.in_range("expert_count", count, MAX_EXPERTS)?;
        let width = match is_qwen {
            true => "expert_feed_forward_length",
            false => "feed_forward_length",
        };
        let shared = self.optional("expert_shared_feed_forward_length")?.unwrap_or(0);
        let may_lack = matches!(self.family, Family::GraniteHybrid | Family::Qwen3Moe);
        let shared = match shared {
            0 if may_lack => 0,
            shared => self.in_range("expert_shared_feed_forward_length", shared, MAX_WIDTH)?,
        };
        Ok(FeedForward::Experts(Experts {
            count,
            chosen: self.size("expert_used_count", count)?,
            width: self.size(width, MAX_WIDTH)?,
            normalised: self.family != Family::Qwen2Moe,
            shared,
            shared_gate: is_qwen,
        }))
    }
}
