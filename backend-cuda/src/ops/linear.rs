//! Products with weight matrices.

use super::{CudaOps, Tensor, same};
use crate::{
    launch::args,
    weight::{self, Kernels},
};
use met_kernels::{Error, Linear, Result};

impl CudaOps {
    pub(super) fn multiply(
        &mut self,
        x: &Tensor,
        rows: usize,
        products: &mut [Linear<'_, Self>],
    ) -> Result<()> {
        for Linear { weight, bias, out } in products {
            same(weight.cols, x.cols)?;
            same(weight.rows, out.cols)?;
            if let Some(bias) = bias {
                same(bias.len, out.cols)?;
            }
            let (outputs, cols) = (weight.rows, weight.cols);
            let tokens = i32::try_from(rows)
                .map_err(|_| Error::invalid(format!("a product of {rows} rows is too large")))?;
            let bias = bias.map_or(0, |bias| bias.data.address());
            let operands = (weight.data.address(), x.at(rows)?, bias, out.at(rows)?);
            match weight.kernels {
                Kernels::Tiled { few, many, .. } => {
                    let (kernel, grid) = match rows {
                        0..=8 => (few[0], [outputs.div_ceil(16), 1]),
                        9..=16 => (few[1], [outputs.div_ceil(16), 1]),
                        17..=32 => (few[2], [outputs.div_ceil(16), 1]),
                        _ => (many, [outputs.div_ceil(64), rows.div_ceil(128)]),
                    };
                    let segment = weight::segment(cols);
                    let args = args![
                        operands.0,
                        operands.1,
                        operands.2,
                        operands.3,
                        outputs as i32,
                        cols as i32,
                        tokens,
                        segment as i32
                    ];
                    self.launch(kernel, grid, 256, args)?;
                }
                Kernels::Plain { linear, .. } => {
                    let args = args![
                        operands.0,
                        operands.1,
                        operands.2,
                        operands.3,
                        outputs as i32,
                        cols as i32,
                        tokens
                    ];
                    self.launch(linear, [outputs, rows.div_ceil(8)], 256, args)?;
                }
            }
        }
        Ok(())
    }
}
