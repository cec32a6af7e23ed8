//! What sets the architectures apart.

use super::ARCHITECTURES;
use crate::{Error, Result};
use met_kernels::Activation;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Qwen2Moe,
    Qwen3Moe,
    Gemma2,
    Gemma3,
    Granite,
    GraniteHybrid,
    Qwen3Next,
}

impl Family {
    /// By its name in GGUF or in `config.json`.
    pub(super) fn named(name: &str) -> Result<Self> {
        Ok(match name {
            "llama" => Self::Llama,
            "mistral" => Self::Mistral,
            "qwen2" => Self::Qwen2,
            "qwen3" => Self::Qwen3,
            "qwen2_moe" | "qwen2moe" => Self::Qwen2Moe,
            "qwen3_moe" | "qwen3moe" => Self::Qwen3Moe,
            "gemma2" => Self::Gemma2,
            "gemma3" | "gemma3_text" => Self::Gemma3,
            "granite" => Self::Granite,
            "granitemoehybrid" | "granitehybrid" => Self::GraniteHybrid,
            "qwen3_next" | "qwen3next" => Self::Qwen3Next,
            _ => {
                return Err(Error::invalid(format!(
                    "architecture `{name}` is not supported; supported: {}",
                    ARCHITECTURES.join(", ")
                )));
            }
        })
    }

    pub(super) fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma2 | Self::Gemma3)
    }

    /// Whether 1 is added to the weights of norms.
    pub(super) fn adds_to_norms(self) -> bool {
        self.is_gemma() || self == Self::Qwen3Next
    }

    pub(super) fn is_granite(self) -> bool {
        matches!(self, Self::Granite | Self::GraniteHybrid)
    }

    pub(super) fn has_head_norms(self) -> bool {
        matches!(
            self,
            Self::Qwen3 | Self::Qwen3Moe | Self::Gemma3 | Self::Qwen3Next
        )
    }

    /// Whether layers see the last positions only where `config.json` asks for it, and in GGUF never.
    pub(super) fn slides_on_demand(self) -> bool {
        matches!(self, Self::Qwen2 | Self::Qwen3 | Self::Qwen2Moe | Self::Qwen3Moe)
    }

    /// Whether it is one of Qwen's with experts.
    pub(super) fn is_qwen_moe(self) -> bool {
        matches!(self, Self::Qwen2Moe | Self::Qwen3Moe | Self::Qwen3Next)
    }

    /// Whether some layers may have a recurrent state.
    pub(super) fn is_hybrid(self) -> bool {
        matches!(self, Self::GraniteHybrid | Self::Qwen3Next)
    }

    pub(super) fn activation(self) -> Activation {
        match self.is_gemma() {
            true => Activation::GeluTanh,
            false => Activation::Silu,
        }
    }

    /// The scale of embeddings `width` wide.
    pub(super) fn embedding_scale(self, width: usize) -> f32 {
        match self.is_gemma() {
            true => (width as f32).sqrt(),
            false => 1.0,
        }
    }

    /// What caps attention scores and logits where the checkpoint doesn't say.
    pub(super) fn default_softcaps(self) -> [f64; 2] {
        match self {
            Self::Gemma2 => [50.0, 30.0],
            _ => [0.0, 0.0],
        }
    }

    /// Every how many layers one sees all positions, in a model that has a window; 0 is none.
    pub(super) fn full_every(self) -> usize {
        match self {
            Self::Gemma2 => 2,
            Self::Gemma3 => 6,
            _ => 0,
        }
    }
}

/// Which of `layers` layers have a window, where every `full_every`th has none.
pub(super) fn sliding_layers(layers: usize, full_every: usize) -> Vec<bool> {
    (1..=layers)
        .map(|number| full_every == 0 || !number.is_multiple_of(full_every))
        .collect()
}
