//! Operations that carry a state along a sequence.

use super::{CudaOps, Tensor, Vector, same};
use crate::{launch::args, state::State, step::Step};
use met_kernels::{DeltaWeights, Error, Place, Result, ScanWeights};

/// Taps that conv.cu keeps in registers.
const MAX_TAPS: usize = 8;
/// Channels of a block of conv.cu, values of one of scan.cu, columns of one of delta_rule.cu.
const CHANNELS: usize = 128;
const VALUES: usize = 16;
const COLUMNS: usize = 32;

impl CudaOps {
    pub(super) fn convolve(
        &mut self,
        x: &Tensor,
        (weight, bias, taps): (&Vector, Option<&Vector>, usize),
        place: Place<'_, State>,
        step: &Step,
        out: &mut Tensor,
    ) -> Result<()> {
        let (channels, tokens) = (x.cols, step.host.tokens().len());
        same(out.cols, channels)?;
        if !(1..=MAX_TAPS).contains(&taps) {
            return Err(Error::invalid(format!(
                "a convolution of {taps} taps: the CUDA kernel takes 1 to {MAX_TAPS}"
            )));
        }
        same(weight.len, channels * taps)?;
        if let Some(bias) = bias {
            same(bias.len, channels)?;
        }
        let state = place
            .state
            .check(place.offset, (taps - 1) * channels, &step.host)?;
        let lists = step.recurrences()?;
        let args = args![
            x.at(tokens)?,
            weight.data.address(),
            bias.map_or(0, |bias| bias.data.address()),
            out.at(tokens)?,
            state,
            place.state.values as u32,
            lists.pieces,
            channels as u32,
            taps as u32
        ];
        let kernel = self.modules.kernel("conv", "conv")?;
        self.launch(
            kernel,
            [channels.div_ceil(CHANNELS), lists.piece_count],
            128,
            args,
        )
    }

    pub(super) fn selective_scan(
        &mut self,
        xbc: &Tensor,
        dt: &Tensor,
        weights: &ScanWeights<'_, Vector>,
        place: Place<'_, State>,
        step: &Step,
        out: &mut Tensor,
    ) -> Result<()> {
        let (shape, tokens) = (weights.shape, step.host.tokens().len());
        let is_whole = shape.groups > 0 && shape.heads.is_multiple_of(shape.groups);
        let name = match shape.state_dim {
            1..=32 => "scan_32",
            33..=128 => "scan_128",
            129..=256 => "scan_256",
            _ => "",
        };
        if !is_whole || name.is_empty() {
            return Err(Error::invalid(format!(
                "{shape:?}: the CUDA kernel takes 1 to 256 states, and groups of as many heads each"
            )));
        }
        same(xbc.cols, shape.channels())?;
        same(dt.cols, shape.heads)?;
        same(out.cols, shape.heads * shape.head_dim)?;
        for vector in [weights.a, weights.d, weights.dt_bias] {
            same(vector.len, shape.heads)?;
        }
        let state = place.state.check(place.offset, shape.state(), &step.host)?;
        let lists = step.recurrences()?;
        // `Shape` of scan.cu.
        let words = [
            shape.heads,
            shape.head_dim,
            shape.groups,
            shape.state_dim,
            shape.channels(),
        ];
        let args = args![
            xbc.at(tokens)?,
            dt.at(tokens)?,
            weights.a.data.address(),
            weights.d.data.address(),
            weights.dt_bias.data.address(),
            out.at(tokens)?,
            state,
            place.state.values as u32,
            lists.rows,
            words.map(|word| word as u32)
        ];
        let kernel = self.modules.kernel("scan", name)?;
        let tiles = shape.heads * shape.head_dim.div_ceil(VALUES);
        self.launch(kernel, [tiles, step.host.rows().len()], 128, args)
    }

    pub(super) fn gated_delta_rule(
        &mut self,
        [qkv, alpha, beta]: [&Tensor; 3],
        weights: &DeltaWeights<'_, Vector>,
        place: Place<'_, State>,
        step: &Step,
        out: &mut Tensor,
    ) -> Result<()> {
        let (shape, tokens) = (weights.shape, step.host.tokens().len());
        let is_whole = shape.key_heads > 0 && shape.value_heads.is_multiple_of(shape.key_heads);
        let name = match shape.key_dim {
            1..=32 => "delta_rule_32",
            33..=128 => "delta_rule_128",
            129..=256 => "delta_rule_256",
            _ => "",
        };
        if !is_whole || name.is_empty() {
            return Err(Error::invalid(format!(
                "{shape:?}: the CUDA kernel takes keys of 1 to 256 values, and as many value heads for each key head"
            )));
        }
        same(qkv.cols, shape.channels())?;
        same(alpha.cols, shape.value_heads)?;
        same(beta.cols, shape.value_heads)?;
        same(out.cols, shape.value_heads * shape.value_dim)?;
        for vector in [weights.a, weights.dt_bias] {
            same(vector.len, shape.value_heads)?;
        }
        let state = place.state.check(place.offset, shape.state(), &step.host)?;
        let lists = step.recurrences()?;
        // `Shape` of delta_rule.cu.
        let words = [
            shape.key_heads,
            shape.value_heads,
            shape.key_dim,
            shape.value_dim,
            shape.channels(),
        ];
        let args = args![
            qkv.at(tokens)?,
            alpha.at(tokens)?,
            beta.at(tokens)?,
            weights.a.data.address(),
            weights.dt_bias.data.address(),
            out.at(tokens)?,
            state,
            place.state.values as u32,
            lists.rows,
            words.map(|word| word as u32)
        ];
        let kernel = self.modules.kernel("delta_rule", name)?;
        let tiles = shape.value_heads * shape.value_dim.div_ceil(COLUMNS);
        self.launch(kernel, [tiles, step.host.rows().len()], 128, args)
    }
}
