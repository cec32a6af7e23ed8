//! Activations and vectors.

use crate::memory::DeviceBuffer;
use cudarc::driver::sys::CUdeviceptr;
use met_kernels::{Error, Result};

/// An activation: `rows × cols` of f32, row after row.
#[derive(Debug)]
pub struct Tensor {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) data: DeviceBuffer,
}

/// A short vector: `len` of f32.
#[derive(Debug)]
pub struct Vector {
    pub(super) len: usize,
    pub(super) data: DeviceBuffer,
}

impl Tensor {
    /// Checks that `rows` rows are there.
    pub(super) fn at(&self, rows: usize) -> Result<CUdeviceptr> {
        if rows > self.rows {
            return Err(Error::invalid(format!(
                "{rows} rows are wanted of an activation that has room for {}",
                self.rows
            )));
        }
        Ok(self.data.address())
    }

    /// The same, with the number of their elements, which kernels count in 32 bits.
    pub(super) fn elements(&self, rows: usize) -> Result<(CUdeviceptr, u32)> {
        let count = u32::try_from(rows.saturating_mul(self.cols));
        let count =
            count.map_err(|_| Error::invalid(format!("a step of {rows} rows of {} elements", self.cols)))?;
        Ok((self.at(rows)?, count))
    }
}

/// Checks that two sizes are one.
pub(super) fn same(a: usize, b: usize) -> Result<()> {
    if a == b {
        Ok(())
    } else {
        Err(Error::invalid(format!("shapes disagree: {a} and {b}")))
    }
}
