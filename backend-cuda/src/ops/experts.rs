//! The choice of experts, their products, and the sum of what they give.

use super::{CudaOps, Tensor, same};
use crate::{
    launch::args,
    weight::{self, Kernels, Weight},
    workspace::STEP,
};
use met_kernels::{Error, Result};

/// Experts that kernels count, and that f32 names exactly.
const MAX_EXPERTS: usize = 1 << 20;
/// Pairs of an expert, on average, from which on they are sorted, so that they share what is read of its weights.
const SHARED: usize = 2;

impl CudaOps {
    pub(super) fn choose_experts(
        &mut self,
        logits: &Tensor,
        rows: usize,
        [experts, chosen]: [usize; 2],
        normalised: bool,
        routing: &mut Tensor,
    ) -> Result<()> {
        same(logits.cols, experts)?;
        same(routing.cols, 2 * chosen)?;
        if chosen > experts || experts > MAX_EXPERTS {
            return Err(Error::invalid(format!("{chosen} of {experts} experts")));
        }
        let (logits, to) = (logits.at(rows)?, routing.at(rows)?);
        let args = args![
            logits,
            to,
            rows as u32,
            experts as u32,
            chosen as u32,
            u32::from(normalised)
        ];
        let kernel = self.modules.kernel("experts", "route")?;
        self.launch(kernel, [rows.div_ceil(4), 1], 128, args)
    }

    pub(super) fn multiply_by_experts(
        &mut self,
        (x, spread, rows): (&Tensor, bool, usize),
        (weight, experts): (&Weight, usize),
        routing: &Tensor,
        out: &mut Tensor,
    ) -> Result<()> {
        let chosen = chosen_of(routing)?;
        same(x.cols, weight.cols)?;
        same(out.cols.saturating_mul(experts), weight.rows)?;
        let pairs = rows.saturating_mul(chosen);
        let (from, to) = (x.at(if spread { pairs } else { rows })?, out.at(pairs)?);
        let (outputs, cols) = (out.cols as i32, weight.cols as i32);
        let (matrix, routing) = (weight.data.address(), routing.at(rows)?);
        let (chosen, spread) = (chosen as u32, u32::from(spread));
        let segment = weight::segment(weight.cols) as i32;
        match weight.kernels {
            Kernels::Tiled {
                experts: [_, kernel], ..
            } if pairs >= SHARED * experts && self.noted.is_none() => {
                let lists = self
                    .allocator
                    .scratch(STEP, (experts + pairs) * size_of::<u32>())?;
                let (list, count, pairs) = (lists.address(), experts as u32, pairs as u32);
                let sort = self.modules.kernel("experts", "expert_lists")?;
                self.launch(sort, [experts, 1], 32, args![routing, list, count, pairs, chosen])?;
                let args = args![
                    matrix, from, list, to, outputs, cols, count, pairs, chosen, spread, segment
                ];
                self.launch(kernel, [experts, out.cols.div_ceil(16)], 256, args)
            }
            Kernels::Tiled {
                experts: [kernel, _], ..
            } => {
                let args = args![matrix, from, routing, to, outputs, cols, chosen, spread, segment];
                self.launch(kernel, [pairs, out.cols.div_ceil(16)], 256, args)
            }
            Kernels::Plain { experts, .. } => {
                let args = args![matrix, from, routing, to, outputs, cols, chosen, spread];
                self.launch(experts, [pairs, out.cols.div_ceil(8)], 256, args)
            }
        }
    }

    pub(super) fn combine_experts(
        &mut self,
        x: &Tensor,
        routing: &Tensor,
        rows: usize,
        out: &mut Tensor,
    ) -> Result<()> {
        let chosen = chosen_of(routing)?;
        same(x.cols, out.cols)?;
        let args = args![
            x.at(rows.saturating_mul(chosen))?,
            routing.at(rows)?,
            out.at(rows)?,
            out.cols as u32,
            chosen as u32
        ];
        let kernel = self.modules.kernel("experts", "combine")?;
        self.launch(kernel, [rows, out.cols.div_ceil(256)], 256, args)
    }
}

/// Experts of a token.
fn chosen_of(routing: &Tensor) -> Result<usize> {
    match routing.cols % 2 {
        0 => Ok(routing.cols / 2),
        _ => Err(Error::invalid(format!(
            "a routing of {} columns: each expert has a number and a weight",
            routing.cols
        ))),
    }
}
