//! The reference's mixture of experts.

use super::tensor::{Tensor, Weight, same};
use crate::{Error, Result, chosen_experts};

pub(super) fn route(
    logits: &Tensor,
    rows: usize,
    experts: usize,
    chosen: usize,
    normalised: bool,
    routing: &mut Tensor,
) -> Result<()> {
    same(logits.cols, experts)?;
    same(routing.cols, 2 * chosen)?;
    if chosen == 0 || chosen > experts {
        return Err(Error::invalid(format!("{chosen} of {experts} experts")));
    }
    for (logits, routing) in logits.rows(rows)?.zip(routing.rows_mut(rows)?) {
        let mut order: Vec<usize> = (0..experts).collect();
        // It is stable, so equals stay in order; a NaN is the last.
        order.sort_by(|&a, &b| key(logits[b]).total_cmp(&key(logits[a])));
        order.truncate(chosen);
        let exp = |logit: f64| (logit - logits[order[0]]).exp();
        let sum: f64 = match normalised {
            true => order.iter().map(|&expert| exp(logits[expert])).sum(),
            false => logits.iter().copied().map(exp).sum(),
        };
        let (numbers, weights) = routing.split_at_mut(chosen);
        for ((number, weight), &expert) in numbers.iter_mut().zip(weights).zip(&order) {
            (*number, *weight) = (expert as f64, exp(logits[expert]) / sum);
        }
    }
    Ok(())
}

/// Numbers that order as the logits do: adding 0 makes a negative 0 a positive one.
fn key(logit: f64) -> f64 {
    if logit.is_nan() {
        f64::NEG_INFINITY
    } else {
        logit + 0.0
    }
}

pub(super) fn expert_linear(
    x: &Tensor,
    spread: bool,
    rows: usize,
    weight: &Weight,
    experts: usize,
    routing: &Tensor,
    out: &mut Tensor,
) -> Result<()> {
    let chosen = chosen_experts(routing.cols)?;
    same(weight.cols, x.cols)?;
    same(weight.rows, experts * out.cols)?;
    let products = rows * chosen;
    let (outputs, inputs) = (out.cols, if spread { products } else { rows });
    let x: Vec<_> = x.rows(inputs)?.collect();
    let numbers = routing.rows(rows)?.flat_map(|row| &row[..chosen]);
    let values = weight.values()?;
    for (i, (&number, out)) in numbers.zip(out.rows_mut(products)?).enumerate() {
        let x = x[if spread { i } else { i / chosen }];
        let rows = values.chunks_exact(weight.cols).skip(number as usize * outputs);
        for (out, weight) in out.iter_mut().zip(rows) {
            *out = x.iter().zip(weight).map(|(x, &w)| x * f64::from(w)).sum();
        }
    }
    Ok(())
}

pub(super) fn combine(x: &Tensor, routing: &Tensor, rows: usize, out: &mut Tensor) -> Result<()> {
    let chosen = chosen_experts(routing.cols)?;
    same(x.cols, out.cols)?;
    let mut x = x.rows(rows * chosen)?;
    for (routing, out) in routing.rows(rows)?.zip(out.rows_mut(rows)?) {
        out.fill(0.0);
        for (weight, x) in routing[chosen..].iter().zip(&mut x) {
            for (out, x) in out.iter_mut().zip(x) {
                *out += weight * x;
            }
        }
    }
    Ok(())
}
