//! A gated feed-forward part, which every token passes.

use super::{Pass, projection::Projection};
use crate::{
    Result,
    arena::{Buffers, Gated, missing},
    checkpoint::pieces,
    weights::{Binder, Weights},
};
use met_kernels::{Activation, Ops};

pub(super) struct Dense {
    gate: Projection,
    up: Projection,
    down: Projection,
}

impl Dense {
    /// The layer's tensors whose names end in `suffix`.
    pub(super) fn bind(
        binder: &mut Binder<'_>,
        layer: usize,
        suffix: &str,
        width: usize,
        inner: usize,
    ) -> Result<Self> {
        let name = |part: &str| format!("blk.{layer}.{part}{suffix}");
        let both = format!("{}.weight", name("ffn_gate_up"));
        let [gate, up] = match binder.optional_source(&both, &[width, 2 * inner])? {
            Some(both) => {
                let mut rows = |range| pieces::rows(&both, [range]).map(|rows| binder.push(rows).into());
                [rows(0..inner)?, rows(inner..2 * inner)?]
            }
            None => [
                Projection::bind(binder, &name("ffn_gate"), inner, width)?,
                Projection::bind(binder, &name("ffn_up"), inner, width)?,
            ],
        };
        Ok(Self {
            gate,
            up,
            down: Projection::bind(binder, &name("ffn_down"), width, inner)?,
        })
    }

    /// From `normed` to `update`.
    pub(super) fn run<O: Ops>(&self, pass: &mut Pass<'_, O>, rows: usize) -> Result<()> {
        let Buffers {
            dense: Some(inside),
            normed,
            update,
            ..
        } = &mut pass.b
        else {
            return Err(missing("feed-forward layers"));
        };
        let activation = pass.config.activation;
        self.apply(pass.ops, pass.weights, activation, rows, normed, inside, update)
    }

    /// From `x` to `out`.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn apply<O: Ops>(
        &self,
        ops: &mut O,
        weights: &Weights<O>,
        activation: Activation,
        rows: usize,
        x: &O::Tensor,
        inside: &mut Gated<&mut O::Tensor>,
        out: &mut O::Tensor,
    ) -> Result<()> {
        let Gated { gate, up, gated } = inside;
        ops.linear(
            x,
            rows,
            &mut [self.gate.to(weights, gate), self.up.to(weights, up)],
        )?;
        ops.gated(activation, gate, up, rows, gated)?;
        ops.linear(gated, rows, &mut [self.down.to(weights, out)])
    }
}
