//! The forward pass of the Llama family, written once over [`Ops`].

use crate::{
    Checkpoint, LlamaConfig, Result,
    pools::Pools,
    weights::{Binder, Bound, Matrix, Vector, Weights},
};
use met_kernels::{Activation, Linear, Ops};

/// A model: its configuration and which weights its layers use.
pub struct Llama {
    config: LlamaConfig,
    embedding: Matrix,
    layers: Vec<Layer>,
    norm: Vector,
    head: Matrix,
}

struct Layer {
    attention_norm: Vector,
    q: Projection,
    k: Projection,
    v: Projection,
    o: Projection,
    ffn_norm: Vector,
    gate: Projection,
    up: Projection,
    down: Projection,
}

struct Projection {
    weight: Matrix,
    bias: Option<Vector>,
}

impl Llama {
    /// Finds the model's tensors in a checkpoint and checks their shapes.
    pub fn bind(config: LlamaConfig, checkpoint: &Checkpoint) -> Result<(Self, Bound)> {
        let mut binder = Binder::new(checkpoint);
        let embedding = binder.matrix("token_embd.weight", config.vocab, config.width)?;
        let layers = (0..config.layers)
            .map(|i| Layer::bind(&mut binder, &config, i))
            .collect::<Result<_>>()?;
        let norm = binder.vector("output_norm.weight", config.width)?;
        let head = binder.optional_matrix("output.weight", config.vocab, config.width)?;
        // Read with the configuration.
        binder.skip("rope_freqs.weight");
        let model = Self {
            embedding,
            layers,
            norm,
            // Tied embeddings.
            head: head.unwrap_or(embedding),
            config,
        };
        Ok((model, binder.finish()?))
    }

    /// Its configuration.
    pub fn config(&self) -> &LlamaConfig {
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
        let Pools { weights, kv, arena } = pools;
        let (weights, kv, b) = (&*weights, kv.get()?, &mut arena.buffers()?);
        let LlamaConfig {
            attention: shape,
            rope,
            norm_eps: eps,
            ..
        } = &self.config;
        ops.embed(&weights[self.embedding], step, b.residual)?;
        let mut rows = tokens;
        for (i, layer) in self.layers.iter().enumerate() {
            let norm = &weights[layer.attention_norm];
            if i == 0 {
                ops.rms_norm(b.residual, norm, *eps, rows, b.normed)?;
            } else {
                ops.add_rms_norm(b.residual, b.update, norm, *eps, rows, b.normed)?;
            }
            let mut products = [
                layer.q.to(weights, b.q),
                layer.k.to(weights, b.k),
                layer.v.to(weights, b.v),
            ];
            ops.linear(b.normed, rows, &mut products)?;
            ops.rope_kv_write(b.q, b.k, b.v, rope, shape, kv, i, step)?;
            if i + 1 == self.layers.len() {
                // Past here the last layer's other rows have no use.
                if wanted.is_empty() {
                    return Ok(());
                }
            }
            ops.attention(b.q, kv, i, shape, step, b.attended)?;
            if i + 1 == self.layers.len() && wanted.len() < tokens {
                ops.gather(b.attended, wanted, b.q)?;
                ops.gather(b.residual, wanted, b.update)?;
                std::mem::swap(&mut b.attended, &mut b.q);
                std::mem::swap(&mut b.residual, &mut b.update);
                rows = wanted.len();
            }
            ops.linear(b.attended, rows, &mut [layer.o.to(weights, b.update)])?;
            ops.add_rms_norm(
                b.residual,
                b.update,
                &weights[layer.ffn_norm],
                *eps,
                rows,
                b.normed,
            )?;
            let mut products = [layer.gate.to(weights, b.gate), layer.up.to(weights, b.up)];
            ops.linear(b.normed, rows, &mut products)?;
            ops.gated(Activation::Silu, b.gate, b.up, rows, b.gated)?;
            ops.linear(b.gated, rows, &mut [layer.down.to(weights, b.update)])?;
        }
        ops.add_rms_norm(b.residual, b.update, &weights[self.norm], *eps, rows, b.normed)
    }

    /// Computes the logits of the named rows of `normed`, in the arena's `logits`; at most
    /// [`LOGITS_ROWS`](crate::arena::LOGITS_ROWS) rows. Leaves `normed` as it is.
    pub fn logits<O: Ops>(&self, ops: &mut O, pools: &mut Pools<O>, rows: &[u32]) -> Result<()> {
        let b = pools.arena.buffers()?;
        ops.gather(b.normed, rows, b.update)?;
        let head = Linear {
            weight: &pools.weights[self.head],
            bias: None,
            out: b.logits,
        };
        ops.linear(b.update, rows.len(), &mut [head])
    }
}

impl Layer {
    fn bind(binder: &mut Binder<'_>, config: &LlamaConfig, index: usize) -> Result<Self> {
        let shape = &config.attention;
        let (width, ffn) = (config.width, config.feed_forward);
        let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let mut projection =
            |name: &str, rows, cols| Projection::bind(binder, &format!("blk.{index}.{name}"), rows, cols);
        let [q, k, v, o] = [
            projection("attn_q", q, width)?,
            projection("attn_k", kv, width)?,
            projection("attn_v", kv, width)?,
            projection("attn_output", width, q)?,
        ];
        let [gate, up, down] = [
            projection("ffn_gate", ffn, width)?,
            projection("ffn_up", ffn, width)?,
            projection("ffn_down", width, ffn)?,
        ];
        Ok(Self {
            attention_norm: binder.vector(&format!("blk.{index}.attn_norm.weight"), width)?,
            ffn_norm: binder.vector(&format!("blk.{index}.ffn_norm.weight"), width)?,
            q,
            k,
            v,
            o,
            gate,
            up,
            down,
        })
    }
}

impl Projection {
    fn bind(binder: &mut Binder<'_>, name: &str, rows: usize, cols: usize) -> Result<Self> {
        Ok(Self {
            weight: binder.matrix(&format!("{name}.weight"), rows, cols)?,
            bias: binder.optional_vector(&format!("{name}.bias"), rows)?,
        })
    }

    fn to<'a, O: Ops>(&self, weights: &'a Weights<O>, out: &'a mut O::Tensor) -> Linear<'a, O> {
        Linear {
            weight: &weights[self.weight],
            bias: self.bias.map(|bias| &weights[bias]),
            out,
        }
    }
}
