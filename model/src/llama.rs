//! The forward pass of the Llama family (Llama, Mistral, Qwen, Gemma), written once over [`Ops`].

use crate::{
    Checkpoint, Error, LlamaConfig, Result,
    arena::Buffers,
    pools::Pools,
    weights::{Binder, Bound, Matrix, Vector, Weights},
};
use met_kernels::{Linear, Ops};

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
    head_norms: Option<[Vector; 2]>,
    attention_post_norm: Option<Vector>,
    ffn_norm: Vector,
    gate: Projection,
    up: Projection,
    down: Projection,
    ffn_post_norm: Option<Vector>,
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
        let config = &self.config;
        let eps = config.norm_eps;
        ops.embed(&weights[self.embedding], step, b.residual)?;
        if config.embedding_scale != 1.0 {
            ops.scale(b.residual, tokens, config.embedding_scale)?;
        }
        let first = &weights[self.layers[0].attention_norm];
        ops.rms_norm(b.residual, first, eps, tokens, b.normed)?;
        let mut rows = tokens;
        for (i, layer) in self.layers.iter().enumerate() {
            let (shape, rope) = config.attention_of(i);
            let next = self.layers.get(i + 1);
            layer.project(ops, weights, b, eps, tokens)?;
            ops.rope_kv_write(b.q, b.k, b.v, rope, &shape, kv, i, step)?;
            // Past here the last layer's other rows have no use.
            if next.is_none() && wanted.is_empty() {
                return Ok(());
            }
            ops.attention(b.q, kv, i, &shape, step, b.attended)?;
            if next.is_none() && wanted.len() < tokens {
                ops.gather(b.attended, wanted, b.q)?;
                ops.gather(b.residual, wanted, b.update)?;
                std::mem::swap(&mut b.attended, &mut b.q);
                std::mem::swap(&mut b.residual, &mut b.update);
                rows = wanted.len();
            }
            ops.linear(b.attended, rows, &mut [layer.o.to(weights, b.update)])?;
            let post = layer.attention_post_norm.map(|norm| &weights[norm]);
            add_and_norm(ops, b, post, &weights[layer.ffn_norm], eps, rows)?;
            let mut products = [layer.gate.to(weights, b.gate), layer.up.to(weights, b.up)];
            ops.linear(b.normed, rows, &mut products)?;
            ops.gated(config.activation, b.gate, b.up, rows, b.gated)?;
            ops.linear(b.gated, rows, &mut [layer.down.to(weights, b.update)])?;
            let post = layer.ffn_post_norm.map(|norm| &weights[norm]);
            let norm = next.map_or(self.norm, |next| next.attention_norm);
            add_and_norm(ops, b, post, &weights[norm], eps, rows)?;
        }
        Ok(())
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
        ops.linear(b.update, rows.len(), &mut [head])?;
        match self.config.logit_softcap {
            0.0 => Ok(()),
            cap => ops.softcap(b.logits, rows.len(), cap),
        }
    }
}

/// `residual += update`, the latter normed first where there is a norm behind the block; `normed = norm(residual)`.
fn add_and_norm<O: Ops>(
    ops: &mut O,
    b: &mut Buffers<'_, O::Tensor>,
    post: Option<&O::Vector>,
    norm: &O::Vector,
    eps: f32,
    rows: usize,
) -> Result<()> {
    let Some(post) = post else {
        return ops.add_rms_norm(b.residual, b.update, norm, eps, rows, b.normed);
    };
    ops.rms_norm(b.update, post, eps, rows, b.normed)?;
    ops.add(b.residual, b.normed, rows)?;
    ops.rms_norm(b.residual, norm, eps, rows, b.normed)
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
        let mut norm =
            |name: &str, len| binder.vector(&format!("blk.{index}.{name}.weight"), len, config.norm_plus);
        let head_norms = match config.head_norms {
            true => Some([
                norm("attn_q_norm", shape.head_dim)?,
                norm("attn_k_norm", shape.head_dim)?,
            ]),
            false => None,
        };
        let [attention_post_norm, ffn_post_norm] = match config.post_norms {
            true => [
                Some(norm("post_attention_norm", width)?),
                Some(norm("post_ffw_norm", width)?),
            ],
            false => [None, None],
        };
        Ok(Self {
            attention_norm: norm("attn_norm", width)?,
            ffn_norm: norm("ffn_norm", width)?,
            head_norms,
            attention_post_norm,
            ffn_post_norm,
            q,
            k,
            v,
            o,
            gate,
            up,
            down,
        })
    }

    /// Queries, keys and values of `normed`.
    fn project<O: Ops>(
        &self,
        ops: &mut O,
        weights: &Weights<O>,
        b: &mut Buffers<'_, O::Tensor>,
        eps: f32,
        rows: usize,
    ) -> Result<()> {
        let Some([q_norm, k_norm]) = self.head_norms else {
            let mut products = [
                self.q.to(weights, b.q),
                self.k.to(weights, b.k),
                self.v.to(weights, b.v),
            ];
            return ops.linear(b.normed, rows, &mut products);
        };
        let raw_k = b.raw_k.as_deref_mut();
        let raw_k =
            raw_k.ok_or_else(|| Error::bug("the buffer arena has no room for keys before their norm"))?;
        let mut products = [
            self.q.to(weights, b.attended),
            self.k.to(weights, raw_k),
            self.v.to(weights, b.v),
        ];
        ops.linear(b.normed, rows, &mut products)?;
        ops.rms_norm(b.attended, &weights[q_norm], eps, rows, b.q)?;
        ops.rms_norm(raw_k, &weights[k_norm], eps, rows, b.k)
    }
}

impl Projection {
    fn bind(binder: &mut Binder<'_>, name: &str, rows: usize, cols: usize) -> Result<Self> {
        Ok(Self {
            weight: binder.matrix(&format!("{name}.weight"), rows, cols)?,
            bias: binder.optional_vector(&format!("{name}.bias"), rows, 0.0)?,
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
