//! The forward pass of every architecture, written once over [`Ops`].
//!
//! A layer is a mixer, which lets a token see those before it, and a feed-forward part; each adds to the residual
//! stream what it makes of the stream's norm.

mod attention;
mod delta;
mod dense;
mod experts;
mod mamba2;
mod projection;

use crate::{
    Checkpoint, Error, ModelConfig, Result,
    arena::Buffers,
    config,
    pools::Pools,
    weights::{Binder, Bound, Matrix, Vector, Weights},
};
use attention::Attention;
use delta::Delta;
use dense::Dense;
use experts::Experts;
use mamba2::Mamba2;
use met_kernels::{Linear, Ops, Place};

/// A decoder: its configuration and which weights its layers use.
pub struct Decoder {
    config: ModelConfig,
    embedding: Matrix,
    layers: Vec<Layer>,
    norm: Vector,
    head: Matrix,
}

struct Layer {
    norm: Vector,
    mixer: Mixer,
    post_norm: Option<Vector>,
    ffn_norm: Vector,
    ffn: FeedForward,
    ffn_post_norm: Option<Vector>,
}

enum Mixer {
    Attention(Attention),
    Mamba2(Mamba2),
    Delta(Delta),
}

enum FeedForward {
    Dense(Dense),
    Experts(Experts),
}

/// A step on its way through the layers.
struct Pass<'a, O: Ops> {
    ops: &'a mut O,
    config: &'a ModelConfig,
    weights: &'a Weights<O>,
    kv: &'a mut O::KvCache,
    state: Option<&'a mut O::State>,
    step: &'a O::Step,
    b: Buffers<&'a mut O::Tensor>,
}

impl Decoder {
    /// Finds the model's tensors in a checkpoint and checks their shapes.
    pub fn bind(config: ModelConfig, checkpoint: &Checkpoint) -> Result<(Self, Bound)> {
        let mut binder = Binder::new(checkpoint);
        let embedding = binder.matrix("token_embd.weight", config.vocab, config.width)?;
        let layers = (0..config.layers)
            .map(|i| Layer::bind(&mut binder, &config, i))
            .collect::<Result<_>>()?;
        let norm = binder.vector("output_norm.weight", config.width, config.norm_plus)?;
        let head = match config.tied {
            false => binder.matrix("output.weight", config.vocab, config.width)?,
            true => {
                // Some files have a copy of the embedding under this name.
                binder.skip("output.weight");
                embedding
            }
        };
        // Read with the configuration.
        binder.skip("rope_freqs.weight");
        for layer in 0..config.guessing_layers {
            binder.skip_layer(config.layers + layer);
        }
        let model = Self {
            embedding,
            layers,
            norm,
            head,
            config,
        };
        Ok((model, binder.finish()?))
    }

    /// Its configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Runs `tokens` tokens, whose step is `step`, through the layers. `wanted` names, in order, the tokens
    /// whose logits are wanted; afterwards row `i` of `normed` is the head's input for `wanted[i]`.
    pub fn forward<O: Ops>(
        &self,
        ops: &mut O,
        pools: &mut Pools<O>,
        step: &O::Step,
        tokens: usize,
        wanted: &[u32],
    ) -> Result<()> {
        let config = &self.config;
        let mut pass = Pass {
            ops,
            config,
            weights: &pools.weights,
            kv: pools.kv.get()?,
            state: pools.states.get(),
            step,
            b: pools.arena.buffers(config)?,
        };
        pass.embed(self.embedding, tokens)?;
        let Pass { ops, weights, b, .. } = &mut pass;
        let first = &weights[self.layers[0].norm];
        ops.rms_norm(b.residual, first, config.norm_eps, tokens, b.normed)?;
        let mut rows = tokens;
        for (i, layer) in self.layers.iter().enumerate() {
            let next = self.layers.get(i + 1);
            // What the last mixer gives has a use only for those whose logits are wanted.
            let used = (next.is_none() && wanted.len() < tokens).then_some(wanted);
            match &layer.mixer {
                Mixer::Attention(attention) => attention.run(&mut pass, tokens, used)?,
                Mixer::Mamba2(mamba2) => mamba2.run(&mut pass, tokens, used)?,
                Mixer::Delta(delta) => delta.run(&mut pass, tokens, used)?,
            }
            match used {
                Some([]) => return Ok(()),
                Some(used) => {
                    pass.keep(used)?;
                    rows = used.len();
                }
                None => {}
            }
            pass.add_and_norm(layer.post_norm, layer.ffn_norm, rows)?;
            match &layer.ffn {
                FeedForward::Dense(dense) => dense.run(&mut pass, rows)?,
                FeedForward::Experts(experts) => experts.run(&mut pass, rows)?,
            }
            let norm = next.map_or(self.norm, |next| next.norm);
            pass.add_and_norm(layer.ffn_post_norm, norm, rows)?;
        }
        Ok(())
    }

    /// Computes the logits of the named rows of `normed`, in the arena's `logits`; at most
    /// [`LOGITS_ROWS`](crate::arena::LOGITS_ROWS) rows. Leaves `normed` as it is.
    pub fn logits<O: Ops>(&self, ops: &mut O, pools: &mut Pools<O>, rows: &[u32]) -> Result<()> {
        let b = pools.arena.buffers(&self.config)?;
        ops.gather(b.normed, rows, b.update)?;
        let head = Linear {
            weight: &pools.weights[self.head],
            bias: None,
            out: b.logits,
        };
        ops.linear(b.update, rows.len(), &mut [head])?;
        if self.config.logit_scale != 1.0 {
            ops.scale(b.logits, rows.len(), self.config.logit_scale)?;
        }
        match self.config.logit_softcap {
            0.0 => Ok(()),
            cap => ops.softcap(b.logits, rows.len(), cap),
        }
    }
}

impl<O: Ops> Pass<'_, O> {
    fn embed(&mut self, table: Matrix, tokens: usize) -> Result<()> {
        let (ops, b) = (&mut *self.ops, &mut self.b);
        ops.embed(&self.weights[table], self.step, b.residual)?;
        match self.config.embedding_scale {
            1.0 => Ok(()),
            scale => ops.scale(b.residual, tokens, scale),
        }
    }

    /// Keeps these rows of the residual stream.
    fn keep(&mut self, rows: &[u32]) -> Result<()> {
        let (ops, b) = (&mut *self.ops, &mut self.b);
        let all: Vec<u32> = (0..rows.len() as u32).collect();
        ops.gather(b.residual, rows, b.normed)?;
        // Back to where it was: a step's tensors are always the same, so that a backend may know a step again.
        ops.gather(b.normed, &all, b.residual)
    }

    /// `residual += update`, the latter normed and scaled first where the model does that; `normed = norm(residual)`.
    fn add_and_norm(&mut self, post: Option<Vector>, norm: Vector, rows: usize) -> Result<()> {
        let (ops, b, weights) = (&mut *self.ops, &mut self.b, self.weights);
        let (eps, norm) = (self.config.norm_eps, &weights[norm]);
        if self.config.residual_scale != 1.0 {
            ops.scale(b.update, rows, self.config.residual_scale)?;
        }
        let Some(post) = post else {
            return ops.add_rms_norm(b.residual, b.update, norm, eps, rows, b.normed);
        };
        ops.rms_norm(b.update, &weights[post], eps, rows, b.normed)?;
        ops.add(b.residual, b.normed, rows)?;
        ops.rms_norm(b.residual, norm, eps, rows, b.normed)
    }
}

/// The last product of a mixer, of the rows of `x` that are used; `room` is as wide as `x`.
fn output<O: Ops>(
    ops: &mut O,
    x: &O::Tensor,
    room: &mut O::Tensor,
    tokens: usize,
    used: Option<&[u32]>,
    product: Linear<'_, O>,
) -> Result<()> {
    match used {
        None => ops.linear(x, tokens, &mut [product]),
        Some(used) => {
            ops.gather(x, used, room)?;
            ops.linear(room, used.len(), &mut [product])
        }
    }
}

/// The part of a slot that begins at value `offset`.
fn place<'a, S>(state: &'a mut Option<&mut S>, offset: usize) -> Result<Place<'a, S>> {
    let state = state.as_deref_mut();
    let state = state.ok_or_else(|| Error::bug("the state pool was used after its release"))?;
    Ok(Place { state, offset })
}

impl Layer {
    fn bind(binder: &mut Binder<'_>, config: &ModelConfig, index: usize) -> Result<Self> {
        let name = |part: &str| format!("blk.{index}.{part}.weight");
        // GGUF calls Qwen3-Next's what others have behind attention.
        let is_there = |part: &str| binder.checkpoint().tensor(&name(part)).is_some();
        let ffn_norm = match is_there("post_attention_norm") && !is_there("ffn_norm") {
            true => "post_attention_norm",
            false => "ffn_norm",
        };
        let mut norm = |part: &str| binder.vector(&name(part), config.width, config.norm_plus);
        let [post_norm, ffn_post_norm] = match config.post_norms {
            true => [Some(norm("post_attention_norm")?), Some(norm("post_ffw_norm")?)],
            false => [None, None],
        };
        Ok(Self {
            norm: norm("attn_norm")?,
            ffn_norm: norm(ffn_norm)?,
            mixer: Mixer::bind(binder, config, index)?,
            ffn: FeedForward::bind(binder, config, index)?,
            post_norm,
            ffn_post_norm,
        })
    }
}

impl Mixer {
    fn bind(binder: &mut Binder<'_>, config: &ModelConfig, index: usize) -> Result<Self> {
        let Some(recurrent) = config.recurrent.as_ref().filter(|r| r.layers[index]) else {
            return Ok(Self::Attention(Attention::bind(binder, config, index)?));
        };
        Ok(match recurrent.mixer {
            config::Mixer::Mamba2(shape) => {
                Self::Mamba2(Mamba2::bind(binder, config, recurrent, shape, index)?)
            }
            config::Mixer::Delta(shape) => Self::Delta(Delta::bind(binder, config, recurrent, shape, index)?),
        })
    }
}

impl FeedForward {
    fn bind(binder: &mut Binder<'_>, config: &ModelConfig, index: usize) -> Result<Self> {
        let width = config.width;
        Ok(match &config.feed_forward {
            config::FeedForward::Dense(inner) => Self::Dense(Dense::bind(binder, index, "", width, *inner)?),
            config::FeedForward::Experts(shape) => Self::Experts(Experts::bind(binder, index, width, shape)?),
        })
    }
}
