//! Mamba-2 (Dao and Gu 2024, "Transformers are SSMs"): a convolution, a selective scan, a gate and a norm.

use super::{Pass, output, place, projection::product};
use crate::{
    ModelConfig, Result,
    arena::{Buffers, missing},
    checkpoint::pieces,
    config::Recurrent,
    weights::{Binder, Made, Matrix, Vector},
};
use met_kernels::{Activation, Ops, ScanShape, ScanWeights};

pub(super) struct Mamba2 {
    shape: ScanShape,
    taps: usize,
    /// Where its part of a slot begins: the convolution's state, then the scan's.
    offset: usize,
    scan_offset: usize,
    gate: Matrix,
    /// To the scan's x, B and C.
    xbc: Matrix,
    dt: Matrix,
    conv: Vector,
    conv_bias: Option<Vector>,
    a: Vector,
    d: Vector,
    dt_bias: Vector,
    norm: Vector,
    out: Matrix,
}

impl Mamba2 {
    pub(super) fn bind(
        binder: &mut Binder<'_>,
        config: &ModelConfig,
        recurrent: &Recurrent,
        shape: ScanShape,
        index: usize,
    ) -> Result<Self> {
        let name = |part: &str| format!("blk.{index}.{part}");
        let (inner, channels, heads) = (recurrent.width(), recurrent.channels(), shape.heads);
        let all = inner + channels + heads;
        let input = binder.source(&name("ssm_in.weight"), &[config.width, all])?;
        let mut rows = |range| pieces::rows(&input, [range]).map(|rows| binder.push(rows));
        let [gate, xbc, dt] = [
            rows(0..inner)?,
            rows(inner..inner + channels)?,
            rows(inner + channels..all)?,
        ];
        Ok(Self {
            shape,
            taps: recurrent.taps,
            offset: recurrent.offset(index),
            scan_offset: recurrent.offset(index) + recurrent.conv_values(),
            gate,
            xbc,
            dt,
            conv: binder.flat(
                &name("ssm_conv1d.weight"),
                &[recurrent.taps, channels],
                Made::AsIs,
            )?,
            conv_bias: binder.optional_vector(&name("ssm_conv1d.bias"), channels)?,
            a: binder.flat(&name("ssm_a"), &[heads], Made::Decay)?,
            d: binder.vector(&name("ssm_d"), heads, 0.0)?,
            dt_bias: binder.vector(&name("ssm_dt.bias"), heads, 0.0)?,
            norm: binder.vector(&name("ssm_norm.weight"), inner, 0.0)?,
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
        let mut products = [
            product(self.gate, weights, r.gate),
            product(self.xbc, weights, r.mixed),
            product(self.dt, weights, r.rate),
        ];
        ops.linear(normed, tokens, &mut products)?;
        let bias = self.conv_bias.map(|bias| &weights[bias]);
        let conv = &weights[self.conv];
        let conv_place = place(&mut pass.state, self.offset)?;
        ops.conv(r.mixed, conv, bias, self.taps, conv_place, step, r.convolved)?;
        let constants = ScanWeights {
            shape: self.shape,
            a: &weights[self.a],
            d: &weights[self.d],
            dt_bias: &weights[self.dt_bias],
        };
        let scan_place = place(&mut pass.state, self.scan_offset)?;
        ops.scan(r.convolved, r.rate, &constants, scan_place, step, r.made)?;
        if used == Some(&[]) {
            return Ok(());
        }
        ops.gated(Activation::Silu, r.gate, r.made, tokens, r.gated)?;
        ops.rms_norm(r.gated, &weights[self.norm], eps, tokens, r.made)?;
        let product = product(self.out, weights, update);
        output(ops, r.made, r.gated, tokens, used, product)
    }
}
