//! Linear attention by the gated delta rule (Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks"): a convolution,
//! the rule, a norm of each head and a gate.

use super::{Pass, output, place, projection::product};
use crate::{
    ModelConfig, Result,
    arena::{Buffers, missing},
    checkpoint::pieces,
    config::Recurrent,
    weights::{Binder, Made, Matrix, Vector},
};
use met_kernels::{Activation, DeltaShape, DeltaWeights, Ops};
use std::ops::Range;

pub(super) struct Delta {
    shape: DeltaShape,
    taps: usize,
    /// Where its part of a slot begins: the convolution's state, then the rule's.
    offset: usize,
    rule_offset: usize,
    qkv: Matrix,
    gate: Matrix,
    beta: Matrix,
    alpha: Matrix,
    conv: Vector,
    a: Vector,
    dt_bias: Vector,
    norm: Vector,
    out: Matrix,
}

impl Delta {
    pub(super) fn bind(
        binder: &mut Binder<'_>,
        config: &ModelConfig,
        recurrent: &Recurrent,
        shape: DeltaShape,
        index: usize,
    ) -> Result<Self> {
        let name = |part: &str| format!("blk.{index}.{part}");
        let (inner, channels, heads) = (recurrent.width(), recurrent.channels(), shape.value_heads);
        let [qkv, gate] = inputs(binder, config.width, shape, &name)?;
        // For each key head, beta of its value heads, then alpha of them.
        let group = heads / shape.key_heads;
        let both = binder.source(&name("ssm_ba.weight"), &[config.width, 2 * heads])?;
        let mut of_groups = |first: usize| {
            let groups = (first..2 * heads).step_by(2 * group);
            pieces::rows(&both, groups.map(|row| row..row + group)).map(|rows| binder.push(rows))
        };
        let [beta, alpha] = [of_groups(0)?, of_groups(group)?];
        Ok(Self {
            shape,
            taps: recurrent.taps,
            offset: recurrent.offset(index),
            rule_offset: recurrent.offset(index) + recurrent.conv_values(),
            qkv,
            gate,
            beta,
            alpha,
            conv: binder.flat(
                &name("ssm_conv1d.weight"),
                &[recurrent.taps, channels],
                Made::AsIs,
            )?,
            a: binder.flat(&name("ssm_a"), &[heads], Made::Decay)?,
            dt_bias: binder.vector(&name("ssm_dt.bias"), heads, 0.0)?,
            norm: binder.vector(&name("ssm_norm.weight"), shape.value_dim, 0.0)?,
            out: binder.matrix(&name("ssm_out.weight"), config.width, inner)?,
        })
    }

    /// From `normed` to `update`, of the rows that are `used`; where none is, only the state is kept.
    pub(super) fn run<O: Ops>(
        &self,
        pass: &mut Pass<'_, O>,
        tokens: usize,
        used: Option<&[u32]>,
    ) -> Result<()> {
        let (ops, weights, step) = (&mut *pass.ops, pass.weights, pass.step);
        let eps = pass.config.norm_eps;
        let Buffers {
            recurrent: Some(r),
            normed,
            update,
            ..
        } = &mut pass.b
        else {
            return Err(missing("recurrent layers"));
        };
        let Some(beta) = &mut r.beta else {
            return Err(missing("the delta rule"));
        };
        let mut products = [
            product(self.qkv, weights, r.mixed),
            product(self.gate, weights, r.gate),
            product(self.alpha, weights, r.rate),
            product(self.beta, weights, beta),
        ];
        ops.linear(normed, tokens, &mut products)?;
        let conv = &weights[self.conv];
        let conv_place = place(&mut pass.state, self.offset)?;
        ops.conv(r.mixed, conv, None, self.taps, conv_place, step, r.convolved)?;
        let constants = DeltaWeights {
            shape: self.shape,
            a: &weights[self.a],
            dt_bias: &weights[self.dt_bias],
        };
        let rule_place = place(&mut pass.state, self.rule_offset)?;
        ops.delta_rule(r.convolved, r.rate, beta, &constants, rule_place, step, r.made)?;
        if used == Some(&[]) {
            return Ok(());
        }
        ops.rms_norm(r.made, &weights[self.norm], eps, tokens, r.gated)?;
        ops.gated(Activation::Silu, r.gate, r.gated, tokens, r.made)?;
        let product = product(self.out, weights, update);
        output(ops, r.made, r.gated, tokens, used, product)
    }
}

/// The projections to q, k and v, and to the gate: two tensors, or one that has all four for each key head.
fn inputs(
    binder: &mut Binder<'_>,
    width: usize,
    shape: DeltaShape,
    name: &dyn Fn(&str) -> String,
) -> Result<[Matrix; 2]> {
    let DeltaShape {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
    } = shape;
    let (channels, inner) = (shape.channels(), value_heads * value_dim);
    if let Some(qkv) = binder.optional_source(&name("attn_qkv.weight"), &[width, channels])? {
        let gate = binder.source(&name("attn_gate.weight"), &[width, inner])?;
        return Ok([binder.push(qkv), binder.push(gate)]);
    }
    let all = binder.source(&name("ssm_in.weight"), &[width, channels + inner])?;
    let values = value_heads / key_heads * value_dim;
    let of_each = |part: Range<usize>| {
        let head = 2 * key_dim + 2 * values;
        (0..key_heads).map(move |i| i * head + part.start..i * head + part.end)
    };
    let [q, k, v, z] = [
        of_each(0..key_dim),
        of_each(key_dim..2 * key_dim),
        of_each(2 * key_dim..2 * key_dim + values),
        of_each(2 * key_dim + values..2 * key_dim + 2 * values),
    ];
    let qkv = pieces::rows(&all, q.chain(k).chain(v))?;
    let gate = pieces::rows(&all, z)?;
    Ok([binder.push(qkv), binder.push(gate)])
}
