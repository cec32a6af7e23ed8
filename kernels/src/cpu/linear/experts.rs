//! Products of each row with the experts that it was sent to.
//!
//! The rows of an expert are put together in tiles, so that its weights are read once for all of them. What is
//! computed of a row is the same in a tile of any height.

use super::{
    dispatch, float,
    format::{LANES, Shape},
    product::{BLOCK_BYTES, HIGHEST, Inputs, READ_WORK, Shared, multiply, row_words, tasks},
    quantize::{QuantizeTile, QuantizedRows, Tiles},
    weight::{PackedWeight, Storage},
};
use crate::{
    Error, Result,
    cpu::{Isa, Team},
};
use std::ops::Range;

/// Products with the experts of a weight.
pub struct ExpertProduct<'a> {
    /// `[experts · outputs, inputs]`.
    pub weight: &'a PackedWeight,
    /// Outputs of an expert.
    pub outputs: usize,
    /// The expert of each product.
    pub numbers: &'a [u32],
    /// The rows, `[products / each, inputs]`.
    pub x: &'a [f32],
    /// Products that a row has a part in, one after another.
    pub each: usize,
}

/// Computes `out`, `[products, outputs]`. `scratch` has room for as many rows as there are products.
///
/// [`crate::ErrorKind::Invalid`] where shapes disagree; then nothing was computed.
pub fn expert_linear(
    team: &Team,
    isa: Isa,
    scratch: &mut QuantizedRows,
    product: &ExpertProduct<'_>,
    out: &mut [f32],
) -> Result<()> {
    product.check(scratch, out)?;
    let cols = product.weight.cols();
    let plan = Plan::new(product, isa);
    if Shape::of(product.weight.ty()).is_some() {
        plan.quantize(team, isa, product, scratch.words_mut())?;
    }
    let panels: usize = plan.groups.iter().map(|group| group.panels.len()).sum();
    let work = plan
        .groups
        .iter()
        .map(|group| group.panels.len() * group.products.max(READ_WORK));
    let tasks = tasks(team, work.sum::<usize>() * LANES * cols);
    let job = Job {
        isa,
        plan: &plan,
        product,
        words: scratch.words(),
        out: Shared::new(out),
    };
    team.split(panels, panels.div_ceil(tasks), |range| {
        let mut first = 0;
        for group in &plan.groups {
            let last = first + group.panels.len();
            let [start, end] =
                [range.start, range.end].map(|at| at.clamp(first, last) - first + group.panels.start);
            // SAFETY: the ranges of the tasks don't overlap, so no two write the same outputs.
            unsafe { job.run(group, start..end) };
            first = last;
        }
    })
}

impl ExpertProduct<'_> {
    fn check(&self, scratch: &QuantizedRows, out: &[f32]) -> Result<()> {
        let &Self {
            weight,
            outputs,
            numbers,
            each,
            ..
        } = self;
        let (products, cols) = (numbers.len(), weight.cols());
        let experts = weight.rows().checked_div(outputs).unwrap_or(0);
        let fits = experts * outputs == weight.rows()
            && each > 0
            && products.is_multiple_of(each)
            && (products / each)
                .checked_mul(cols)
                .is_some_and(|len| self.x.len() >= len)
            && products.checked_mul(outputs).is_some_and(|len| out.len() >= len);
        if !fits {
            return Err(Error::invalid(format!(
                "{}: [{}, {cols}] can't make {products} products of {outputs} outputs from {} activations",
                weight.name(),
                weight.rows(),
                self.x.len()
            )));
        }
        if let Some(number) = numbers.iter().find(|&&number| number as usize >= experts) {
            return Err(Error::invalid(format!(
                "expert {number} isn't one of the {experts}"
            )));
        }
        if matches!(weight.storage(), Storage::Released) {
            return Err(weight.released());
        }
        if !scratch.holds(products, cols) {
            return Err(Error::bug(format!(
                "the scratch is too small for {products} rows of {cols}"
            )));
        }
        Ok(())
    }

    /// The inputs of a product.
    fn row(&self, product: u32) -> &[f32] {
        let cols = self.weight.cols();
        &self.x[product as usize / self.each * cols..][..cols]
    }
}

/// Which products are computed together.
struct Plan {
    /// The products, those of an expert together.
    order: Vec<u32>,
    tiles: Vec<ExpertTile>,
    groups: Vec<Group>,
}

/// An expert that has products.
struct Group {
    /// Its rows of the weight.
    rows: Range<usize>,
    /// The panels that they lie in, of which the first and the last may belong to neighbours too.
    panels: Range<usize>,
    products: usize,
    tiles: Range<usize>,
}

/// Products of one expert.
struct ExpertTile {
    /// Where in the order.
    products: Range<usize>,
    /// Where its quantised rows begin, in rows.
    quantized: usize,
    /// Whether another tile has the same.
    shared: bool,
}

impl Plan {
    fn new(product: &ExpertProduct<'_>, isa: Isa) -> Self {
        let &ExpertProduct {
            weight,
            outputs,
            numbers,
            each,
            ..
        } = product;
        let highest = match weight.storage() {
            Storage::Panels(..) => dispatch::highest(isa),
            _ => float::HIGHEST,
        };
        let mut order: Vec<u32> = (0..numbers.len() as u32).collect();
        order.sort_by_key(|&product| numbers[product as usize]);
        let (mut tiles, mut groups) = (Vec::new(), Vec::new());
        // Where a row is quantised that is by itself in a tile.
        let mut alone = vec![None; numbers.len() / each];
        let (mut first, mut quantized) = (0, 0);
        for products in order.chunk_by(|&a, &b| numbers[a as usize] == numbers[b as usize]) {
            let cut = Tiles::new(products.len(), highest);
            let before = tiles.len();
            for tile in (0..cut.count()).map(|index| cut.get(index)) {
                let row = products[tile.first] as usize / each;
                let known = if tile.height == 1 { alone[row] } else { None };
                tiles.push(ExpertTile {
                    products: first + tile.first..first + tile.first + tile.height,
                    quantized: known.unwrap_or(quantized),
                    shared: known.is_some(),
                });
                if tile.height == 1 {
                    alone[row] = known.or(Some(quantized));
                }
                quantized += if known.is_some() { 0 } else { tile.height };
            }
            let expert = numbers[products[0] as usize] as usize;
            let rows = expert * outputs..(expert + 1) * outputs;
            groups.push(Group {
                panels: rows.start / LANES..rows.end.div_ceil(LANES),
                rows,
                products: products.len(),
                tiles: before..tiles.len(),
            });
            first += products.len();
        }
        Self { order, tiles, groups }
    }

    fn quantize(
        &self,
        team: &Team,
        isa: Isa,
        product: &ExpertProduct<'_>,
        mut words: &mut [u32],
    ) -> Result<()> {
        let row_words = row_words(product.weight.cols());
        let mut jobs = Vec::with_capacity(self.tiles.len());
        for tile in self.tiles.iter().filter(|tile| !tile.shared) {
            let (mine, rest) = words.split_at_mut(tile.products.len() * row_words);
            words = rest;
            jobs.push((&self.order[tile.products.clone()], mine));
        }
        team.for_each(&mut jobs, |(products, words)| {
            let mut rows = [&[][..]; HIGHEST];
            for (row, &index) in rows.iter_mut().zip(*products) {
                *row = product.row(index);
            }
            isa.run(QuantizeTile {
                rows: &rows[..products.len()],
                words,
            });
        })
    }
}

/// What all threads read, and the outputs that are open to them.
struct Job<'a> {
    isa: Isa,
    plan: &'a Plan,
    product: &'a ExpertProduct<'a>,
    words: &'a [u32],
    out: Shared<f32>,
}

impl Job<'_> {
    /// Computes the outputs of a group that lie in `panels`.
    ///
    /// # Safety
    /// No other thread computes any of them at the same time.
    unsafe fn run(&self, group: &Group, panels: Range<usize>) {
        let weight = self.product.weight;
        let block = (BLOCK_BYTES / weight.panel_bytes()).max(1);
        for start in panels.clone().step_by(block) {
            for tile in &self.plan.tiles[group.tiles.clone()] {
                let products = &self.plan.order[tile.products.clone()];
                let mut rows = [&[][..]; HIGHEST];
                for (row, &product) in rows.iter_mut().zip(products) {
                    *row = self.product.row(product);
                }
                for panel in start..panels.end.min(start + block) {
                    let mut results = [[0.0; LANES]; HIGHEST];
                    let results = &mut results[..products.len()];
                    let inputs = Inputs {
                        rows: &rows[..products.len()],
                        words: self.words,
                        first: tile.quantized,
                    };
                    multiply(self.isa, weight, panel, inputs, results);
                    // SAFETY: the caller's promise.
                    unsafe { self.finish(group, panel, products, results) };
                }
            }
        }
    }

    /// Writes a tile's results, as far as they belong to the group.
    ///
    /// # Safety
    /// As for [`Job::run`].
    unsafe fn finish(&self, group: &Group, panel: usize, products: &[u32], results: &[[f32; LANES]]) {
        let first = panel * LANES;
        let rows = group.rows.start.max(first)..group.rows.end.min(first + LANES);
        for (&product, results) in products.iter().zip(results) {
            let results = &results[rows.start - first..rows.end - first];
            // SAFETY: `check` has compared all lengths, so these outputs of the product are inside; no other thread
            // uses them by the caller's promise.
            unsafe {
                let out = product as usize * self.product.outputs + rows.start - group.rows.start;
                std::ptr::copy_nonoverlapping(results.as_ptr(), self.out.get().add(out), results.len());
            }
        }
    }
}
