//! Which experts a token goes to, and what comes back.

use super::{
    Team, Workers,
    elementwise::{Scale, sigmoid},
    simd::{Kernel, LANES, Simd},
    tensor::{Tensor, same},
};
use crate::{Error, Result, chosen_experts};

/// Chooses the experts of each row, and their weights.
pub(super) fn route(
    team: &Team,
    logits: &Tensor,
    rows: usize,
    chosen: usize,
    normalised: bool,
    routing: &mut Tensor,
) -> Result<()> {
    let experts = logits.cols;
    same(routing.cols, 2 * chosen)?;
    if chosen == 0 || chosen > experts {
        return Err(Error::invalid(format!("{chosen} of {experts} experts")));
    }
    let grain = (logits.grain() / chosen).max(1);
    let logits = logits.rows(rows)?.chunks(grain * experts);
    let mut tasks: Vec<_> = logits
        .zip(routing.rows_mut(rows)?.chunks_mut(grain * 2 * chosen))
        .collect();
    team.for_each(&mut tasks, |(logits, routing)| {
        for (logits, routing) in logits
            .chunks_exact(experts)
            .zip(routing.chunks_exact_mut(2 * chosen))
        {
            let (numbers, weights) = routing.split_at_mut(chosen);
            choose(logits, numbers, weights);
            let largest = weights[0];
            weights
                .iter_mut()
                .for_each(|logit| *logit = (*logit - largest).exp());
            let sum: f32 = match normalised {
                true => weights.iter().sum(),
                false => logits.iter().map(|logit| (logit - largest).exp()).sum(),
            };
            weights.iter_mut().for_each(|weight| *weight /= sum);
        }
    })
}

/// The numbers of the largest logits, and those logits: in falling order, lower numbers first among equals.
fn choose(logits: &[f32], numbers: &mut [f32], largest: &mut [f32]) {
    let key = |logit: f32| if logit.is_nan() { f32::NEG_INFINITY } else { logit };
    let mut found = 0;
    for (i, &logit) in logits.iter().enumerate() {
        if found == largest.len() && key(logit) <= key(largest[found - 1]) {
            continue;
        }
        let at = largest[..found].partition_point(|&before| key(before) >= key(logit));
        found = largest.len().min(found + 1);
        for values in [&mut *numbers, &mut *largest] {
            values.copy_within(at..found - 1, at + 1);
        }
        (numbers[at], largest[at]) = (i as f32, logit);
    }
}

/// The experts of all rows, checked.
pub(super) fn numbers(routing: &Tensor, rows: usize, experts: usize) -> Result<Vec<u32>> {
    let chosen = chosen_experts(routing.cols)?;
    let rows = routing.rows(rows)?.chunks_exact(2 * chosen);
    let numbers = rows.flat_map(|row| &row[..chosen]).map(|&number| {
        if number >= 0.0 && (number as usize) < experts {
            Ok(number as u32)
        } else {
            Err(Error::invalid(format!(
                "expert {number} isn't one of the {experts}"
            )))
        }
    });
    numbers.collect()
}

/// Adds up what the experts of each row made of it.
pub(super) fn combine(
    workers: Workers<'_>,
    x: &Tensor,
    routing: &Tensor,
    rows: usize,
    out: &mut Tensor,
) -> Result<()> {
    let (cols, chosen) = (x.cols, chosen_experts(routing.cols)?);
    same(out.cols, cols)?;
    let products = rows.saturating_mul(chosen);
    let inputs = x.rows(products)?.chunks_exact(chosen * cols);
    let inputs = inputs.zip(routing.rows(rows)?.chunks_exact(2 * chosen));
    let mut tasks: Vec<_> = inputs.zip(out.rows_mut(rows)?.chunks_exact_mut(cols)).collect();
    let grain = (x.grain() / chosen).max(1);
    let mut tasks: Vec<_> = tasks.chunks_mut(grain).collect();
    workers.team.for_each(&mut tasks, |tasks| {
        for ((x, routing), out) in tasks.iter_mut() {
            workers.isa.run(Combine {
                x,
                weights: &routing[chosen..],
                out,
            });
        }
    })
}

/// `out = Σ weight · x` of one row.
struct Combine<'a> {
    x: &'a [f32],
    weights: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Combine<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let cols = self.out.len();
        let (outs, last) = self.out.as_chunks_mut::<LANES>();
        let rows = || self.weights.iter().zip(self.x.chunks_exact(cols));
        for (i, out) in outs.iter_mut().enumerate() {
            let mut sum = s.splat(0.0);
            for (&weight, x) in rows() {
                sum = s.fma(s.splat(weight), s.load(&x.as_chunks().0[i]), sum);
            }
            s.store(sum, out);
        }
        let first = cols - last.len();
        for (i, out) in last.iter_mut().enumerate() {
            *out = rows().map(|(weight, x)| weight * x[first + i]).sum();
        }
    }
}

/// `x[t] *= sigmoid(gate[t])`.
pub(super) fn gate_rows(workers: Workers<'_>, x: &mut Tensor, gate: &Tensor, rows: usize) -> Result<()> {
    same(gate.cols, 1)?;
    let (cols, grain) = (x.cols, x.grain());
    let gates = gate.rows(rows)?.chunks(grain);
    let mut tasks: Vec<_> = gates.zip(x.rows_mut(rows)?.chunks_mut(grain * cols)).collect();
    workers.team.for_each(&mut tasks, |(gates, x)| {
        for (&gate, x) in gates.iter().zip(x.chunks_exact_mut(cols)) {
            let factor = sigmoid(gate);
            workers.isa.run(Scale { x, factor });
        }
    })
}
