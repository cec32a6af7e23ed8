//! Products on a thread team: who computes which part of which output.

use super::{
    dispatch::{self, Call},
    float::{self, FloatTile, Widened},
    format::{GROUP, LANES, Shape},
    quantize::{GROUP_WORDS, QuantizeTile, QuantizedRows, Tile, Tiles},
    weight::{PackedWeight, Storage},
};
use crate::{
    Error, Result, TensorType,
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
pub(super) const BLOCK_BYTES: usize = 256 << 10;
/// From so many tiles on, float weights are widened once and not for each.
const WIDENED_TILES: usize = 4;
/// Work of a task, at least, in multiply-adds: some microseconds, many times what it costs to hand it out.
const TASK_WORK: usize = 1 << 18;
/// Multiply-adds that take as long as reading a weight from memory.
pub(super) const READ_WORK: usize = 2;
/// Tasks a thread, at most: so many that a thread that lost its core holds up little.
const TASKS_PER_THREAD: usize = 8;

/// `out = x · weightᵀ + bias` for each of `products`; `x` is `[rows, cols]`, and `cols` the inputs of every
/// weight. `scratch` has room for `rows` rows of `cols`.
///
/// [`crate::ErrorKind::Invalid`] where shapes disagree; then nothing was computed. A NaN or an infinity in `x`
/// makes all outputs of its row NaN or infinite.
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
    let is_quantized = |product: &Product<'_>| Shape::of(product.weight.ty()).is_some();
    if products.iter().any(is_quantized) {
        quantize(team, isa, scratch, x, rows, cols)?;
    }
    let words = scratch.words();
    let jobs: Vec<_> = products
        .iter_mut()
        .map(|product| Job::new(product, isa, x, words, rows))
        .collect();
    let panels: usize = jobs.iter().map(|job| job.panels).sum();
    let tasks = tasks(team, panels * LANES * cols * rows.max(READ_WORK));
    // A cell is a panel's outputs for a part of the rows; cells are numbered panel by panel within a part.
    let parts = tasks.div_ceil(panels).min(rows.div_ceil(dispatch::highest(isa)));
    let cells = panels * parts;
    team.split(cells, cells.div_ceil(tasks), |range| {
        for part in range.start / panels..range.end.div_ceil(panels) {
            let mut first = part * panels;
            for job in &jobs {
                let start = range.start.clamp(first, first + job.panels) - first;
                let end = range.end.clamp(first, first + job.panels) - first;
                // SAFETY: the ranges of the tasks don't overlap, so no two write the same outputs.
                unsafe { job.run(start..end, part, parts) };
                first += job.panels;
            }
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
        if matches!(weight.storage(), Storage::Released) {
            return Err(weight.released());
        }
    }
    Ok(())
}

/// How many tasks to make of `work` multiply-adds.
pub(super) fn tasks(team: &Team, work: usize) -> usize {
    (work / TASK_WORK).clamp(1, team.size() * TASKS_PER_THREAD)
}

/// Quantises `x` to `scratch`.
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
    let row_words = row_words(cols);
    let words = Shared::new(scratch.words_mut());
    // Quantising a value takes about as long as eight multiply-adds.
    let tasks = tasks(team, rows * cols * 8);
    team.split(tiles.count(), tiles.count().div_ceil(tasks), |range| {
        for Tile { first, height } in range.map(|index| tiles.get(index)) {
            // SAFETY: tiles follow one another and fit (`holds`), and each belongs to one task.
            let words = unsafe {
                std::slice::from_raw_parts_mut(words.get().add(first * row_words), height * row_words)
            };
            let mut rows = [&[][..]; HIGHEST];
            let rows = rows_of(x, cols, Tile { first, height }, &mut rows);
            isa.run(QuantizeTile { rows, words });
        }
    })
}

/// A tile of activations.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'a> {
    /// Its rows.
    pub(super) rows: &'a [&'a [f32]],
    /// All that is quantised, where the weight is.
    pub(super) words: &'a [u32],
    /// Where there its rows begin, in rows.
    pub(super) first: usize,
}

/// Multiplies a panel with a tile of activations.
pub(super) fn multiply(
    isa: Isa,
    weight: &PackedWeight,
    panel: usize,
    inputs: Inputs<'_>,
    out: &mut [[f32; LANES]],
) {
    let cols = weight.cols();
    match weight.storage() {
        Storage::Panels(..) => {
            let row = row_words(cols);
            let call = Call {
                panel: weight.panels(panel..panel + 1),
                tile: &inputs.words[inputs.first * row..][..inputs.rows.len() * row],
                groups: cols / GROUP,
                out,
            };
            dispatch::multiply(isa, weight.ty(), call);
        }
        Storage::Rows(_) => multiply_floats(isa, weight.ty(), weight.panels(panel..panel + 1), inputs, out),
        Storage::Released => {}
    }
}

/// The same with weight rows of a float type.
fn multiply_floats(isa: Isa, ty: TensorType, weights: &[u8], inputs: Inputs<'_>, out: &mut [[f32; LANES]]) {
    isa.run(FloatTile {
        ty,
        weights,
        x: inputs.rows,
        cols: inputs.rows[0].len(),
        out,
    });
}

/// A product with its outputs open to all threads.
struct Job<'a> {
    isa: Isa,
    weight: &'a PackedWeight,
    bias: Option<&'a [f32]>,
    x: &'a [f32],
    /// The quantised `x`.
    words: &'a [u32],
    out: Shared<f32>,
    panels: usize,
    tiles: Tiles,
}

/// Rows of the highest tile of any kernel.
pub(super) const HIGHEST: usize = 8;

/// The rows of a tile, which `room` is for.
fn rows_of<'a, 'b>(
    x: &'a [f32],
    cols: usize,
    tile: Tile,
    room: &'b mut [&'a [f32]; HIGHEST],
) -> &'b [&'a [f32]] {
    let rows = x[tile.first * cols..].chunks_exact(cols);
    for (room, row) in room.iter_mut().zip(rows.take(tile.height)) {
        *room = row;
    }
    &room[..tile.height]
}

/// Words of a quantised row.
pub(super) fn row_words(cols: usize) -> usize {
    cols / GROUP * GROUP_WORDS
}

/// A pointer that threads may share; who uses it says why.
pub(super) struct Shared<T>(*mut T);

// SAFETY: using the pointer is unsafe, and there the reason is given.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(super) fn new(values: &mut [T]) -> Self {
        Self(values.as_mut_ptr())
    }

    pub(super) fn get(&self) -> *mut T {
        self.0
    }
}

impl<'a> Job<'a> {
    fn new(product: &'a mut Product<'_>, isa: Isa, x: &'a [f32], words: &'a [u32], rows: usize) -> Self {
        let weight = product.weight;
        let highest = match weight.storage() {
            Storage::Panels(..) => dispatch::highest(isa),
            _ => float::HIGHEST,
        };
        Self {
            isa,
            weight,
            bias: product.bias,
            x,
            words,
            out: Shared::new(product.out),
            panels: weight.rows().div_ceil(LANES),
            tiles: Tiles::new(rows, highest),
        }
    }

    /// Computes the outputs of `panels` for part `part` of `parts` of the rows.
    ///
    /// # Safety
    /// No other thread computes any of them at the same time.
    unsafe fn run(&self, panels: Range<usize>, part: usize, parts: usize) {
        let tiles = self.tiles.count();
        let tiles = part * tiles / parts..(part + 1) * tiles / parts;
        let is_widened = tiles.len() >= WIDENED_TILES && self.is_narrow();
        let panel_bytes = match is_widened {
            true => LANES * self.weight.cols() * size_of::<f32>(),
            false => self.weight.panel_bytes(),
        };
        let block = (BLOCK_BYTES / panel_bytes).max(1);
        let mut widened = Widened::default();
        for start in panels.clone().step_by(block) {
            let panels = start..panels.end.min(start + block);
            if is_widened {
                widened.fill(self.isa, self.weight.ty(), self.weight.panels(panels.clone()));
            }
            for tile in tiles.clone().map(|index| self.tiles.get(index)) {
                let mut rows = [&[][..]; HIGHEST];
                let inputs = Inputs {
                    rows: rows_of(self.x, self.weight.cols(), tile, &mut rows),
                    words: self.words,
                    first: tile.first,
                };
                for panel in panels.clone() {
                    let mut out = [[0.0; LANES]; HIGHEST];
                    let out = &mut out[..tile.height];
                    if is_widened {
                        let weights = &widened.bytes()[(panel - start) * panel_bytes..];
                        let weights = &weights[..panel_bytes.min(weights.len())];
                        multiply_floats(self.isa, TensorType::F32, weights, inputs, out);
                    } else {
                        multiply(self.isa, self.weight, panel, inputs, out);
                    }
                    // SAFETY: the caller's promise.
                    unsafe { self.finish(panel, tile, out) };
                }
            }
        }
    }

    /// Whether its weights are floats of less than 32 bits.
    fn is_narrow(&self) -> bool {
        matches!(self.weight.ty(), TensorType::F16 | TensorType::BF16)
    }

    /// Adds the bias and writes a tile's results to the outputs.
    ///
    /// # Safety
    /// As for [`Job::run`].
    unsafe fn finish(&self, panel: usize, tile: Tile, results: &mut [[f32; LANES]]) {
        let outputs = self.weight.rows();
        let first = panel * LANES;
        let lanes = LANES.min(outputs - first);
        let bias = self.bias.map(|bias| &bias[first..][..lanes]);
        for (row, results) in results.iter_mut().enumerate() {
            if let Some(bias) = bias {
                for (result, bias) in results.iter_mut().zip(bias) {
                    *result += bias;
                }
            }
            // SAFETY: `check` has compared all lengths, so these `lanes` outputs of the row are inside; no other
            // thread uses them by the caller's promise.
            unsafe {
                let out = self.out.get().add((tile.first + row) * outputs + first);
                std::ptr::copy_nonoverlapping(results.as_ptr(), out, lanes);
            }
        }
    }
}
