//! A product with a weight, and its bias.

use crate::{
    Result,
    weights::{Binder, Matrix, Vector, Weights},
};
use met_kernels::{Linear, Ops};

/// A matrix, with a bias where the checkpoint has one.
#[derive(Clone, Copy)]
pub(super) struct Projection {
    weight: Matrix,
    bias: Option<Vector>,
}

impl Projection {
    /// `NAME.weight`, `[rows, cols]`, and `NAME.bias`.
    pub(super) fn bind(binder: &mut Binder<'_>, name: &str, rows: usize, cols: usize) -> Result<Self> {
        Ok(Self {
            weight: binder.matrix(&format!("{name}.weight"), rows, cols)?,
            bias: binder.optional_vector(&format!("{name}.bias"), rows)?,
        })
    }

    /// The product, written to `out`.
    pub(super) fn to<'a, O: Ops>(&self, weights: &'a Weights<O>, out: &'a mut O::Tensor) -> Linear<'a, O> {
        Linear {
            bias: self.bias.map(|bias| &weights[bias]),
            ..product(self.weight, weights, out)
        }
    }
}

impl From<Matrix> for Projection {
    fn from(weight: Matrix) -> Self {
        Self { weight, bias: None }
    }
}

/// The product with a matrix that has no bias, written to `out`.
pub(super) fn product<'a, O: Ops>(
    weight: Matrix,
    weights: &'a Weights<O>,
    out: &'a mut O::Tensor,
) -> Linear<'a, O> {
    Linear {
        weight: &weights[weight],
        bias: None,
        out,
    }
}
