//! Attention over the paged keys and values.

use super::{Pass, output, projection::Projection};
use crate::{
    ModelConfig, Result,
    arena::{Buffers, missing},
    checkpoint::pieces,
    weights::{Binder, Vector},
};
use met_kernels::{Activation, Ops};

pub(super) struct Attention {
    index: usize,
    /// Its number among the layers that keep keys and values.
    kv_layer: usize,
    q: Projection,
    k: Projection,
    v: Projection,
    o: Projection,
    gate: Option<Projection>,
    head_norms: Option<[Vector; 2]>,
}

impl Attention {
    pub(super) fn bind(binder: &mut Binder<'_>, config: &ModelConfig, index: usize) -> Result<Self> {
        let (shape, width) = (&config.attention, config.width);
        let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let name = |part: &str| format!("blk.{index}.{part}");
        let (q_proj, gate) = match config.attention_gate {
            false => (Projection::bind(binder, &name("attn_q"), q, width)?, None),
            true => {
                // Each head's queries are followed by its gate.
                let both = binder.source(&name("attn_q.weight"), &[width, 2 * q])?;
                let mut of = |first| {
                    let heads = (first..2 * q).step_by(2 * shape.head_dim);
                    let rows = pieces::rows(&both, heads.map(|row| row..row + shape.head_dim));
                    rows.map(|rows| Projection::from(binder.push(rows)))
                };
                (of(0)?, Some(of(shape.head_dim)?))
            }
        };
        let mut norm = |part: &str| {
            let name = name(&format!("{part}.weight"));
            binder.vector(&name, shape.head_dim, config.norm_plus)
        };
        let head_norms = match config.head_norms {
            true => Some([norm("attn_q_norm")?, norm("attn_k_norm")?]),
            false => None,
        };
        Ok(Self {
            index,
            kv_layer: (0..index).filter(|&layer| !config.is_recurrent(layer)).count(),
            q: q_proj,
            k: Projection::bind(binder, &name("attn_k"), kv, width)?,
            v: Projection::bind(binder, &name("attn_v"), kv, width)?,
            o: Projection::bind(binder, &name("attn_output"), width, q)?,
            gate,
            head_norms,
        })
    }

    /// From `normed` to `update`, of the rows that are `used`; where none is, only keys and values are kept.
    pub(super) fn run<O: Ops>(
        &self,
        pass: &mut Pass<'_, O>,
        tokens: usize,
        used: Option<&[u32]>,
    ) -> Result<()> {
        self.project(pass, tokens)?;
        let (ops, weights, step) = (&mut *pass.ops, pass.weights, pass.step);
        let Buffers {
            attention: a, update, ..
        } = &mut pass.b;
        let (shape, rope) = pass.config.attention_of(self.index);
        ops.rope_kv_write(a.q, a.k, a.v, rope, &shape, pass.kv, self.kv_layer, step)?;
        if used == Some(&[]) {
            return Ok(());
        }
        ops.attention(a.q, pass.kv, self.kv_layer, &shape, step, a.attended)?;
        let Some(gate) = &mut a.gate else {
            return output(ops, a.attended, a.q, tokens, used, self.o.to(weights, update));
        };
        ops.gated(Activation::Sigmoid, gate, a.attended, tokens, a.q)?;
        output(ops, a.q, a.attended, tokens, used, self.o.to(weights, update))
    }

    /// Queries, keys and values of `normed`, and the gate.
    fn project<O: Ops>(&self, pass: &mut Pass<'_, O>, tokens: usize) -> Result<()> {
        let (ops, weights, eps) = (&mut *pass.ops, pass.weights, pass.config.norm_eps);
        let Buffers {
            attention: a, normed, ..
        } = &mut pass.b;
        let mut products = Vec::new();
        if let (Some(projection), Some(gate)) = (self.gate, &mut a.gate) {
            products.push(projection.to(weights, gate));
        }
        let Some([q_norm, k_norm]) = self.head_norms else {
            products.extend([
                self.q.to(weights, a.q),
                self.k.to(weights, a.k),
                self.v.to(weights, a.v),
            ]);
            return ops.linear(normed, tokens, &mut products);
        };
        let Some(raw_k) = &mut a.raw_k else {
            return Err(missing("keys before their norm"));
        };
        products.extend([
            self.q.to(weights, a.attended),
            self.k.to(weights, raw_k),
            self.v.to(weights, a.v),
        ]);
        ops.linear(normed, tokens, &mut products)?;
        ops.rms_norm(a.attended, &weights[q_norm], eps, tokens, a.q)?;
        ops.rms_norm(raw_k, &weights[k_norm], eps, tokens, a.k)
    }
}
