//! Shape and constants of a model, checked for sense.

mod family;
mod gguf;
mod gguf_hybrid;
mod hugging_face;
mod hugging_face_hybrid;
mod json;
mod recurrent;

use crate::{Checkpoint, Error, Result};
use family::Family;
use met_kernels::{Activation, AttentionShape, RopeTable};
pub use recurrent::{Mixer, Recurrent};

/// Architectures whose forward pass we have.
pub const ARCHITECTURES: [&str; 11] = [
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "qwen2_moe",
    "qwen3_moe",
    "granite",
    "granitemoehybrid",
    "qwen3_next",
];

/// Bounds that no model comes near; they keep products of sizes far from overflow.
const MAX_LAYERS: usize = 1 << 10;
const MAX_WIDTH: usize = 1 << 20;
const MAX_VOCAB: usize = 1 << 24;
const MAX_CONTEXT: usize = 1 << 28;
const MAX_EXPERTS: usize = 1 << 12;

/// Shape and constants of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The architecture as the checkpoint names it.
    pub architecture: String,
    /// A name for people.
    pub name: String,
    /// Number of layers.
    pub layers: usize,
    /// Layers behind those that guess further tokens and take no part in a step.
    pub guessing_layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// What follows attention, or what stands for it, in each layer.
    pub feed_forward: FeedForward,
    /// Number of tokens.
    pub vocab: usize,
    /// Positions the model was made for.
    pub context: usize,
    /// Added to the mean square in norms.
    pub norm_eps: f32,
    /// Heads and their size, for layers that see all positions.
    pub attention: AttentionShape,
    /// Rotary embedding of layers that see all positions.
    pub rope: RopeTable,
    /// Layers that see the last positions only, where there are any.
    pub sliding: Option<Sliding>,
    /// Layers with a recurrent state instead of attention, where there are any.
    pub recurrent: Option<Recurrent>,
    /// Of the feed-forward gate.
    pub activation: Activation,
    /// Whether queries and keys are normed, each head by itself.
    pub head_norms: bool,
    /// Whether what attention gives passes a gate.
    pub attention_gate: bool,
    /// Whether what a block adds to the residual stream is normed.
    pub post_norms: bool,
    /// What the weights of norms lack in the checkpoint.
    pub norm_plus: f32,
    /// Whether the embedding is the output head, too.
    pub tied: bool,
    /// Multiplies the embedding.
    pub embedding_scale: f32,
    /// Multiplies what a block adds to the residual stream.
    pub residual_scale: f32,
    /// Multiplies the logits.
    pub logit_scale: f32,
    /// Logits become `cap · tanh(logit / cap)`; 0 is off.
    pub logit_softcap: f32,
}

/// Attention to the last positions only.
#[derive(Clone, Debug, PartialEq)]
pub struct Sliding {
    /// How many positions, the token's own included.
    pub window: usize,
    /// Rotary embedding of these layers.
    pub rope: RopeTable,
    /// Which layers.
    pub layers: Vec<bool>,
}

/// The second half of every layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// One gated layer of this width.
    Dense(usize),
    /// Several, of which a router chooses for each token.
    Experts(Experts),
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many of them a token passes.
    pub chosen: usize,
    /// Width of each.
    pub width: usize,
    /// Whether the weights of the chosen ones sum up to 1.
    pub normalised: bool,
    /// Width of the expert that every token passes; 0 is none.
    pub shared: usize,
    /// Whether what the shared expert gives passes a gate.
    pub shared_gate: bool,
}

impl ModelConfig {
    /// Reads and checks the configuration.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self> {
        match checkpoint.folder() {
            Some(folder) => {
                hugging_face::read(&folder.config, &folder.name).map_err(|error| folder.wrong(error))
            }
            None => gguf::read(checkpoint),
        }
    }

    /// Attention and rotary embedding of a layer.
    pub fn attention_of(&self, layer: usize) -> (AttentionShape, &RopeTable) {
        let shape = self.attention;
        match &self.sliding {
            Some(sliding) if sliding.layers.get(layer) == Some(&true) => {
                let window = sliding.window;
                (AttentionShape { window, ..shape }, &sliding.rope)
            }
            _ => (shape, &self.rope),
        }
    }

    /// Whether a layer has a recurrent state instead of attention.
    pub fn is_recurrent(&self, layer: usize) -> bool {
        let recurrent = self.recurrent.as_ref();
        recurrent.is_some_and(|recurrent| recurrent.layers.get(layer) == Some(&true))
    }

    /// Layers that keep keys and values.
    pub fn kv_layers(&self) -> usize {
        (0..self.layers)
            .filter(|&layer| !self.is_recurrent(layer))
            .count()
    }

    /// Values of all recurrent states of a sequence; 0 where there are none.
    pub fn state_values(&self) -> usize {
        self.recurrent.as_ref().map_or(0, |recurrent| {
            (self.layers - self.kv_layers()) * recurrent.layer_values()
        })
    }
}

/// Heads that fit together; `wrong` makes an error of what doesn't.
fn check_heads(shape: &AttentionShape, wrong: impl Fn(String) -> Error) -> Result<()> {
    let AttentionShape {
        heads,
        kv_heads,
        head_dim,
        ..
    } = *shape;
    if heads.checked_mul(head_dim).is_none_or(|n| n > MAX_WIDTH) {
        return Err(wrong(format!(
            "{heads} heads of {head_dim} dimensions are not supported: at most {MAX_WIDTH} together"
        )));
    }
    if !heads.is_multiple_of(kv_heads) {
        return Err(wrong(format!(
            "the number of heads ({heads}) must be a multiple of that of key and value heads ({kv_heads})"
        )));
    }
    Ok(())
}

/// A rotary embedding that turns nothing, for attention that doesn't look at positions.
fn no_rope() -> RopeTable {
    RopeTable {
        dims: 2,
        inverse_frequencies: vec![0.0],
        magnitude: 1.0,
        half_split: true,
    }
}
