//! A mixture of experts: feed-forward parts, of which a router chooses some for each token.

use super::{Pass, dense::Dense, projection::product};
use crate::{
    Result,
    arena::{Buffers, Gated, missing},
    checkpoint::pieces,
    config,
    weights::{Binder, Matrix},
};
use met_kernels::{Ops, WeightSource};

pub(super) struct Experts {
    shape: config::Experts,
    router: Matrix,
    /// Those of all experts, one below another.
    gate: Matrix,
    up: Matrix,
    down: Matrix,
    shared: Option<Shared>,
}

/// The expert that every token passes.
struct Shared {
    expert: Dense,
    gate: Option<Matrix>,
}

impl Experts {
    pub(super) fn bind(
        binder: &mut Binder<'_>,
        layer: usize,
        width: usize,
        shape: &config::Experts,
    ) -> Result<Self> {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let (inner, count) = (shape.width, shape.count);
        // Another choice of experts costs more than what the router weighs.
        let router = binder.exact_matrix(&name("ffn_gate_inp"), count, width)?;
        let both = binder.optional_source(&name("ffn_gate_up_exps"), &[width, 2 * inner, count])?;
        let [gate, up] = match both {
            Some(both) => {
                let mut half = |first: usize| {
                    let experts = (first..2 * inner * count).step_by(2 * inner);
                    pieces::rows(&both, experts.map(|row| row..row + inner)).map(|rows| binder.push(rows))
                };
                [half(0)?, half(inner)?]
            }
            None => [
                stacked(binder, layer, "ffn_gate", inner, width, count)?,
                stacked(binder, layer, "ffn_up", inner, width, count)?,
            ],
        };
        let shared = match shape.shared {
            0 => None,
            inner => Some(Shared {
                expert: Dense::bind(binder, layer, "_shexp", width, inner)?,
                gate: match shape.shared_gate {
                    true => Some(binder.exact_matrix(&name("ffn_gate_inp_shexp"), 1, width)?),
                    false => None,
                },
            }),
        };
        Ok(Self {
            shape: *shape,
            router,
            gate,
            up,
            down: stacked(binder, layer, "ffn_down", width, inner, count)?,
            shared,
        })
    }

    /// From `normed` to `update`.
    pub(super) fn run<O: Ops>(&self, pass: &mut Pass<'_, O>, rows: usize) -> Result<()> {
        let (ops, weights, activation) = (&mut *pass.ops, pass.weights, pass.config.activation);
        let config::Experts {
            count,
            chosen,
            normalised,
            ..
        } = self.shape;
        let Buffers {
            experts: Some(e),
            normed,
            update,
            ..
        } = &mut pass.b
        else {
            return Err(missing("experts"));
        };
        ops.linear(normed, rows, &mut [product(self.router, weights, e.scores)])?;
        ops.route(e.scores, rows, count, chosen, normalised, e.routing)?;
        let Gated { gate, up, gated } = &mut e.chosen;
        ops.expert_linear(normed, false, rows, &weights[self.gate], count, e.routing, gate)?;
        ops.expert_linear(normed, false, rows, &weights[self.up], count, e.routing, up)?;
        ops.gated(activation, gate, up, rows * chosen, gated)?;
        ops.expert_linear(gated, true, rows, &weights[self.down], count, e.routing, e.made)?;
        ops.combine(e.made, e.routing, rows, update)?;
        let (Some(shared), Some(s)) = (&self.shared, &mut e.shared) else {
            return Ok(());
        };
        let expert = &shared.expert;
        expert.apply(ops, weights, activation, rows, normed, &mut s.inside, s.made)?;
        if let (Some(weight), Some(gate)) = (shared.gate, &mut s.gate) {
            ops.linear(normed, rows, &mut [product(weight, weights, gate)])?;
            ops.gate_rows(s.made, gate, rows)?;
        }
        ops.add(update, s.made, rows)
    }
}

/// One matrix of each expert, `[rows, cols]`, one below another: one tensor, or as many as there are experts.
fn stacked(
    binder: &mut Binder<'_>,
    layer: usize,
    part: &str,
    rows: usize,
    cols: usize,
    count: usize,
) -> Result<Matrix> {
    let whole = format!("blk.{layer}.{part}_exps.weight");
    let one = |expert| format!("blk.{layer}.{part}.{expert}.weight");
    if binder.checkpoint().tensor(&one(0)).is_none() {
        let whole = binder.source(&whole, &[cols, rows, count])?;
        return Ok(binder.push(whole));
    }
    let each = (0..count).map(|expert| binder.source(&one(expert), &[cols, rows]));
    let each = each.collect::<Result<Vec<WeightSource>>>()?;
    Ok(binder.push(pieces::stack(&each)?))
}
