//! The reference's activations and weights.

use crate::{Error, Result, cpu::Buffer};

/// An activation.
#[derive(Debug)]
pub struct Tensor {
    pub(super) cols: usize,
    pub(super) data: Buffer<f64>,
}

impl Tensor {
    /// Checks that `rows` rows are there, and gives them one by one.
    pub(super) fn rows(&self, rows: usize) -> Result<impl Iterator<Item = &[f64]>> {
        Ok(first_rows(&self.data, self.cols, rows)?.chunks_exact(self.cols))
    }

    pub(super) fn rows_mut(&mut self, rows: usize) -> Result<impl Iterator<Item = &mut [f64]>> {
        let cols = self.cols;
        first_rows(&self.data, cols, rows)?;
        Ok(self.data.chunks_exact_mut(cols).take(rows))
    }
}

/// A dequantised matrix.
#[derive(Debug)]
pub struct Weight {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) values: Option<Buffer<f32>>,
}

impl Weight {
    pub(super) fn values(&self) -> Result<&[f32]> {
        self.values
            .as_deref()
            .ok_or_else(|| Error::bug("a weight was used after its release"))
    }
}

pub(super) fn first_rows(data: &[f64], cols: usize, rows: usize) -> Result<&[f64]> {
    let len = rows.checked_mul(cols);
    len.and_then(|len| data.get(..len)).ok_or_else(|| {
        Error::invalid(format!(
            "{rows} rows are wanted of an activation that has room for {}",
            data.len() / cols
        ))
    })
}

pub(super) fn same(a: usize, b: usize) -> Result<()> {
    if a == b {
        Ok(())
    } else {
        Err(Error::invalid(format!("shapes disagree: {a} and {b}")))
    }
}

/// Checks that a row of `cols` is a whole number of groups of `len`.
pub(super) fn groups(cols: usize, len: usize) -> Result<()> {
    match len > 0 && cols.is_multiple_of(len) {
        true => Ok(()),
        false => Err(Error::invalid(format!("{cols} columns aren't groups of {len}"))),
    }
}
