//! Shape and constants of a model, checked for sense.

mod family;
mod gguf;
mod hugging_face;
mod json;

use crate::{Checkpoint, Error, Result};
use family::Family;
use met_kernels::{Activation, AttentionShape, RopeTable};

/// Architectures whose forward pass we have.
pub const ARCHITECTURES: [&str; 6] = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3"];

/// Bounds that no model of this family comes near; they keep products of sizes far from overflow.
const MAX_LAYERS: usize = 1 << 10;
const MAX_WIDTH: usize = 1 << 20;
const MAX_VOCAB: usize = 1 << 24;
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
    /// Heads and their size, for layers that see all positions.
    pub attention: AttentionShape,
    /// Rotary embedding of layers that see all positions.
    pub rope: RopeTable,
    /// Layers that see the last positions only, where there are any.
    pub sliding: Option<Sliding>,
    /// Of the feed-forward gate.
    pub activation: Activation,
    /// Whether queries and keys are normed, each head by itself.
    pub head_norms: bool,
    /// Whether what a block adds to the residual stream is normed.
    pub post_norms: bool,
    /// What the weights of norms lack in the checkpoint.
    pub norm_plus: f32,
    /// Whether the embedding is the output head, too.
    pub tied: bool,
    /// Multiplies the embedding.
    pub embedding_scale: f32,
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

impl LlamaConfig {
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
