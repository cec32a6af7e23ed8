//! Activations, and the checks of their shapes.

use super::Buffer;
use crate::{Error, Result};

/// Elements that a task of cheap work takes: some microseconds, many times what handing it out costs.
pub(super) const GRAIN: usize = 16 << 10;

/// An activation.
#[derive(Debug)]
pub struct Tensor {
    pub(super) cols: usize,
    pub(super) data: Buffer<f32>,
}

impl Tensor {
    pub(super) fn rows(&self, rows: usize) -> Result<&[f32]> {
        let len = self.checked(rows)?;
        Ok(&self.data[..len])
    }

    pub(super) fn rows_mut(&mut self, rows: usize) -> Result<&mut [f32]> {
        let len = self.checked(rows)?;
        Ok(&mut self.data[..len])
    }

    fn checked(&self, rows: usize) -> Result<usize> {
        let len = rows.checked_mul(self.cols).filter(|&len| len <= self.data.len());
        len.ok_or_else(|| {
            Error::invalid(format!(
                "{rows} rows are wanted of an activation that has room for {}",
                self.data.len() / self.cols
            ))
        })
    }

    /// Rows that make about a [`GRAIN`].
    pub(super) fn grain(&self) -> usize {
        (GRAIN / self.cols).max(1)
    }
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
