//! Products on a thread team: who computes which part of which output.

use super::{
    dispatch, float,
    format::{GROUP, Shape},
    kernel,
    quantize::{GROUP_WORDS, QuantizedRows, Tiles},
    simd::LANES,
    weight::{PackedWeight, Storage},
};
use crate::{
    Error, Result,
    cpu::{Isa, Team},
};
use std::ops::Range;

/// One product of [`linear`].
#[derive(Debug)]
pub struct Product<'a> {
    /// `[outputs, inputs]`.
    pub weight: &'a PackedWeight,
    /// `[outputs]`.
    pub bias: Option<&'a [f32]>,
    /// `[rows, outputs]`.
    pub out: &'a mut [f32],
}

/// Panels that stay in the second-level cache while tiles, which stay in the first-level one, pass by them.
const BLOCK_BYTES: usize = 256 << 10;
/// Work of a task in multiply-adds, at least: some microseconds, many times what it costs to hand it out.
const TASK_WORK: usize = 1 << 18;
/// Tasks a thread, at most: so many that a thread that lost its core holds up little.
const TASKS_PER_THREAD: usize = 8;

/// `out = x · weightᵀ + bias` for each of `products`; `x` is `[rows, cols]`, and `cols` the inputs of every
/// weight. `scratch` has room for `rows` rows of `cols`.
///
/// [`crate::ErrorKind::Invalid`] where shapes disagree; then nothing was computed.
pub fn linear(
    team: &Team,
    isa: Isa,
    scratch: &mut QuantizedRows,
    x: &[f32],
    rows: usize,
    products: &mut [Product<'_>],
) -> Result<()> {
    let Some(cols) = products.first().map(|product| product.weight.cols()) else {
        return Ok(());
    };
    check(x, rows, cols, products)?;
    if rows == 0 {
        return Ok(());
    }
    if products
        .iter()
        .any(|product| Shape::of(product.weight.ty()).is_some())
    {
        quantize(team, isa, scratch, x, rows, cols)?;
    }
    let inputs = Inputs {
        isa,
        x,
        quantized: scratch.words(),
        rows,
        cols,
    };
    let mut jobs = Vec::with_capacity(products.len());
    for product in products {
        jobs.push(Job::new(&inputs, product)?);
    }
    let work: usize = jobs.iter().map(|job| job.panels).sum::<usize>() * LANES * cols * rows;
    let tasks = (work / TASK_WORK).clamp(1, team.size() * TASKS_PER_THREAD);
    let panels: usize = jobs.iter().map(|job| job.panels).sum();
    team.split(panels, panels.div_ceil(tasks), |range| {
        let mut before = 0;
        for job in &jobs {
            let start = range.start.clamp(before, before + job.panels) - before;
            let end = range.end.clamp(before, before + job.panels) - before;
            // SAFETY: the ranges of the tasks don't overlap, so no two write the same outputs.
            unsafe { job.run(&inputs, start..end) };
            before += job.panels;
        }
    })
}

fn check(x: &[f32], rows: usize, cols: usize, products: &[Product<'_>]) -> Result<()> {
    if rows.checked_mul(cols).is_none_or(|len| x.len() < len) {
        return Err(Error::invalid(format!(
            "{} activations aren't {rows} rows of {cols}",
            x.len()
        )));
    }
    for Product { weight, bias, out } in products {
        let outputs = weight.rows();
        let fits = weight.cols() == cols
            && bias.is_none_or(|bias| bias.len() == outputs)
            && rows.checked_mul(outputs).is_some_and(|len| out.len() >= len);
        if !fits {
            return Err(Error::invalid(format!(
                "{}: [{outputs}, {}] with {} biases can't make {} outputs from {rows} rows of {cols}",
                weight.name(),
                weight.cols(),
                bias.map_or(0, <[f32]>::len),
                out.len(),
            )));
        }
    }
    Ok(())
}

/// Quantises `x` to `scratch`, several tiles at a time.
fn quantize(
    team: &Team,
    isa: Isa,
    scratch: &mut QuantizedRows,
    x: &[f32],
    rows: usize,
    cols: usize,
) -> Result<()> {
    if !scratch.holds(rows, cols) {
        return Err(Error::bug(format!(
            "the quantisation's scratch is too small for {rows} rows of {cols}"
        )));
    }
    let tiles = Tiles::new(rows, dispatch::highest(isa));
    let row_words = cols / GROUP * GROUP_WORDS;
    let words = Shared(scratch.words_mut().as_mut_ptr());
    let grain = (TASK_WORK / cols)
        .div_ceil(dispatch::highest(isa))
        .max(tiles.count().div_ceil(team.size() * TASKS_PER_THREAD));
    team.split(tiles.count(), grain, |range| {
        for tile in range.map(|index| tiles.get(index)) {
            // SAFETY: tiles follow one another and fit (`holds`), and each belongs to one task.
            let words = unsafe {
                std::slice::from_raw_parts_mut(
                    words.get().add(tile.first * row_words),
                    tile.height * row_words,
                )
            };
            dispatch::quantize(
                isa,
                &x[tile.first * cols..][..tile.height * cols],
                tile.height,
                cols,
                words,
            );
        }
    })
}

/// What all products read.
struct Inputs<'a> {
    isa: Isa,
    x: &'a [f32],
    quantized: &'a [u32],
    rows: usize,
    cols: usize,
}

/// A product with its outputs open to all threads.
struct Job<'a> {
    weight: &'a PackedWeight,
    bias: Option<&'a [f32]>,
    out: Shared<f32>,
    panels: usize,
    tiles: Tiles,
    kernels: Kernels<'a>,
}

/// The kernels for tiles of 1, 2, 4 and 8 rows, as far as there are any, and what they read.
enum Kernels<'a> {
    Quantized {
        panels: &'a [u8],
        panel_bytes: usize,
        by_height: [Option<dispatch::Quantized>; 4],
    },
    Float {
        data: &'a [u8],
        by_height: [Option<dispatch::Float>; 4],
    },
}

/// A pointer that threads may share; who uses it says why.
struct Shared<T>(*mut T);

// SAFETY: using the pointer is unsafe, and there the reason is given.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

impl<'a> Job<'a> {
    fn new(inputs: &Inputs<'_>, product: &'a mut Product<'_>) -> Result<Self> {
        let weight = product.weight;
        let heights = [1, 2, 4, 8];
        let (kernels, highest) = match weight.storage() {
            Storage::Panels(shape, panels) => {
                let by_height = heights.map(|height| dispatch::quantized(inputs.isa, weight.ty(), height));
                let panel_bytes = shape.panel_bytes(inputs.cols / GROUP);
                (
                    Kernels::Quantized {
                        panels,
                        panel_bytes,
                        by_height,
                    },
                    dispatch::highest(inputs.isa),
                )
            }
            Storage::InPlace(data) => {
                let by_height = heights.map(|height| dispatch::float(inputs.isa, weight.ty(), height));
                (Kernels::Float { data, by_height }, dispatch::HIGHEST_FLOAT)
            }
            Storage::Released => return Err(weight.released()),
        };
        Ok(Self {
            weight,
            bias: product.bias,
            out: Shared(product.out.as_mut_ptr()),
            panels: weight.rows().div_ceil(LANES),
            tiles: Tiles::new(inputs.rows, highest),
            kernels,
        })
    }

    /// Computes the outputs of `panels` for all rows.
    ///
    /// # Safety
    /// No other thread computes any of `panels` at the same time.
    unsafe fn run(&self, inputs: &Inputs<'_>, panels: Range<usize>) {
        let panel_bytes = match self.kernels {
            Kernels::Quantized { panel_bytes, .. } => panel_bytes,
            Kernels::Float { data, .. } => data.len() / self.weight.rows() * LANES,
        };
        let block = (BLOCK_BYTES / panel_bytes).max(1);
        for start in panels.clone().step_by(block) {
            for index in 0..self.tiles.count() {
                for panel in start..panels.end.min(start + block) {
                    // SAFETY: the caller's promise.
                    unsafe { self.run_tile(inputs, panel, index) };
                }
            }
        }
    }

    /// Computes one panel's outputs for one tile.
    unsafe fn run_tile(&self, inputs: &Inputs<'_>, panel: usize, index: usize) {
        let tile = self.tiles.get(index);
        let outputs = self.weight.rows();
        let first = panel * LANES;
        let lanes = LANES.min(outputs - first);
        let mut partial = [0f32; LANES * 8];
        // SAFETY: `check` has compared all lengths, so row `tile.first` and output `first` are inside.
        let out = unsafe { self.out.get().add(tile.first * outputs + first) };
        let height_index = tile.height.ilog2() as usize;
        match &self.kernels {
            Kernels::Quantized {
                panels,
                panel_bytes,
                by_height,
            } => {
                let Some(kernel) = by_height[height_index] else {
                    return;
                };
                let whole = lanes == LANES;
                let call = kernel::Call {
                    panel: panels[panel * panel_bytes..][..*panel_bytes].as_ptr(),
                    tile: inputs.quantized[tile.first * (inputs.cols / GROUP) * GROUP_WORDS..].as_ptr(),
                    groups: inputs.cols / GROUP,
                    out: if whole { out } else { partial.as_mut_ptr() },
                    stride: if whole { outputs } else { LANES },
                };
                // SAFETY: an `Isa` exists only where the processor has it; the panel, the tile and the output have been cut for this shape.
                unsafe { kernel(&call) };
                if !whole {
                    for row in 0..tile.height {
                        // SAFETY: `lanes` outputs are left in each row.
                        unsafe {
                            std::ptr::copy_nonoverlapping(
                                partial[row * LANES..].as_ptr(),
                                out.add(row * outputs),
                                lanes,
                            )
                        };
                    }
                }
            }
            Kernels::Float { data, by_height } => {
                let Some(kernel) = by_height[height_index] else {
                    return;
                };
                let row_bytes = data.len() / outputs;
                let call = float::Call {
                    weight: data[first * row_bytes..].as_ptr(),
                    outputs: lanes,
                    x: inputs.x[tile.first * inputs.cols..].as_ptr(),
                    cols: inputs.cols,
                    out,
                    stride: outputs,
                };
                // SAFETY: as above.
                unsafe { kernel(&call) };
            }
        }
        if let Some(bias) = self.bias {
            for row in 0..tile.height {
                // SAFETY: `lanes` outputs of a row, which no other thread uses.
                let out = unsafe { std::slice::from_raw_parts_mut(out.add(row * outputs), lanes) };
                for (value, bias) in out.iter_mut().zip(&bias[first..]) {
                    *value += bias;
                }
            }
        }
    }
}
