//! [`Ops`] on the CPU: checks shapes, cuts the work, and hands it to the kernels.

use super::{
    Buffer, Isa, Region, Team,
    attention::{Attention, Partial},
    elementwise::{Add, Gated, RmsNorm, Scale, SoftCap},
    kv::{KvCache, Layout},
    linear::{self, PackedWeight, Product, QuantizedRows},
    rope::{Angles, MAX_HEAD_DIM, Store, Turn},
};
use crate::{
    Activation, AttentionShape, Error, HostStep, Ledger, Linear, Ops, Progress, Result, RopeTable, StepRows,
    WeightFootprint, WeightSource,
    ledger::owner,
    sample::{Choice, Request, Scratch},
};
use std::cell::RefCell;

/// Elements that a task of cheap work takes: some microseconds, many times what handing it out costs.
const GRAIN: usize = 16 << 10;

/// The CPU implementation of [`Ops`].
#[derive(Debug)]
pub struct CpuOps {
    team: Team,
    isa: Isa,
    ledger: Ledger,
    /// Where packed weights are.
    region: Region,
    /// Activations that are alive.
    tensors: usize,
    /// Room for a product's quantised input; it lives as long as any activation.
    quantized: Option<QuantizedRows>,
}

impl CpuOps {
    /// On `threads` threads, the caller's included, with the instruction set of [`Isa::detect`].
    pub fn new(threads: usize, ledger: Ledger) -> Result<Self> {
        Self::with_isa(threads, ledger, Isa::detect()?)
    }

    /// With a given instruction set.
    pub fn with_isa(threads: usize, ledger: Ledger, isa: Isa) -> Result<Self> {
        Ok(Self {
            team: Team::new(threads, &ledger)?,
            isa,
            ledger,
            region: Region::default(),
            tensors: 0,
            quantized: None,
        })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// How many threads work, the caller's included.
    pub fn threads(&self) -> usize {
        self.team.size()
    }

    /// Joins the threads and frees what is left of the workspace. A second call does nothing.
    pub fn shutdown(&mut self) -> Result<()> {
        let freed = self.release_workspace();
        self.region = Region::default();
        self.team.shutdown().and(freed.map(|_| ()))
    }

    fn release_workspace(&mut self) -> Result<u64> {
        self.quantized.take().map_or(Ok(0), QuantizedRows::release)
    }
}

/// An activation.
#[derive(Debug)]
pub struct Tensor {
    cols: usize,
    data: Buffer<f32>,
}

impl Tensor {
    fn rows(&self, rows: usize) -> Result<&[f32]> {
        let len = self.checked(rows)?;
        Ok(&self.data[..len])
    }

    fn rows_mut(&mut self, rows: usize) -> Result<&mut [f32]> {
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
    fn grain(&self) -> usize {
        (GRAIN / self.cols).max(1)
    }
}

/// A step's metadata, and what is computed from it once for all layers.
#[derive(Debug)]
pub struct CpuStep {
    step: HostStep,
    /// One for each table that the model's layers use.
    angles: RefCell<Vec<Angles>>,
    /// Room for attention's partial results.
    partials: RefCell<Vec<Partial>>,
}

impl Ops for CpuOps {
    type Tensor = Tensor;
    type Weight = PackedWeight;
    type Vector = Buffer<f32>;
    type KvCache = KvCache;
    type State = ();
    type Step = CpuStep;
    type Choices = Vec<Choice>;
    const IN_FLIGHT: u32 = 1;

    fn load_weight(&mut self, source: &WeightSource, progress: &mut Progress<'_>) -> Result<PackedWeight> {
        PackedWeight::load(source, &self.ledger, &mut self.region, &self.team, progress)
    }

    fn footprint(&self, weight: &PackedWeight) -> WeightFootprint {
        weight.footprint()
    }

    fn release_derived(&mut self, weight: &mut PackedWeight) -> Result<u64> {
        weight.release_derived()
    }

    fn release_weight(&mut self, mut weight: PackedWeight) -> Result<u64> {
        weight.release()
    }

    fn load_vector(&mut self, values: &[f32]) -> Result<Buffer<f32>> {
        let mut vector = Buffer::zeroed(&self.ledger, owner::WEIGHTS, values.len())?;
        vector.copy_from_slice(values);
        Ok(vector)
    }

    fn release_vector(&mut self, vector: Buffer<f32>) -> Result<u64> {
        vector.release()
    }

    fn alloc_tensor(&mut self, owner: &str, rows: usize, cols: usize) -> Result<Tensor> {
        let len = rows.checked_mul(cols).filter(|_| cols > 0);
        let len = len.ok_or_else(|| Error::invalid(format!("{owner}: an activation of {rows} × {cols}")))?;
        let data = Buffer::zeroed(&self.ledger, owner, len)?;
        self.tensors += 1;
        Ok(Tensor { cols, data })
    }

    fn release_tensor(&mut self, tensor: Tensor) -> Result<u64> {
        self.tensors = self.tensors.saturating_sub(1);
        let workspace = match self.tensors {
            0 => self.release_workspace(),
            _ => Ok(0),
        };
        Ok(tensor.data.release()? + workspace?)
    }

    fn alloc_kv(
        &mut self,
        layers: usize,
        kv_heads: usize,
        head_dim: usize,
        block_size: usize,
        blocks: usize,
    ) -> Result<KvCache> {
        if head_dim > MAX_HEAD_DIM {
            return Err(Error::invalid(format!(
                "heads of {head_dim} dimensions: the CPU kernels take {MAX_HEAD_DIM} at most"
            )));
        }
        let layout = Layout {
            kv_heads,
            head_dim,
            block_size,
            blocks,
        };
        KvCache::new(&self.ledger, layers, layout)
    }

    fn release_kv(&mut self, kv: KvCache) -> Result<u64> {
        kv.release()
    }

    fn read_block(&mut self, kv: &KvCache, block: u32, data: &mut [u8]) -> Result<()> {
        kv.read_block(block, data)
    }

    fn write_block(&mut self, kv: &mut KvCache, block: u32, data: &[u8]) -> Result<()> {
        kv.write_block(block, data)
    }

    fn begin(&mut self, step: &StepRows<'_>) -> Result<CpuStep> {
        Ok(CpuStep {
            step: HostStep::new(step)?,
            angles: RefCell::default(),
            partials: RefCell::default(),
        })
    }

    fn embed(&mut self, table: &PackedWeight, step: &CpuStep, out: &mut Tensor) -> Result<()> {
        let tokens = step.step.tokens();
        same(table.cols(), out.cols)?;
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= table.rows()) {
            return Err(Error::invalid(format!(
                "token {token} isn't one of the {} embedded",
                table.rows()
            )));
        }
        let (grain, cols) = (out.grain(), out.cols);
        let out = out.rows_mut(tokens.len())?;
        let mut tasks: Vec<_> = tokens
            .chunks(grain)
            .zip(out.chunks_mut(grain * cols))
            .map(|x| (x, Ok(())))
            .collect();
        self.team.for_each(&mut tasks, |((tokens, out), result)| {
            let mut rows = tokens.iter().zip(out.chunks_exact_mut(cols));
            *result = rows.try_for_each(|(&token, out)| table.row_into(token as usize, out));
        })?;
        tasks.into_iter().try_for_each(|(_, result)| result)
    }

    fn rms_norm(
        &mut self,
        x: &Tensor,
        weight: &Buffer<f32>,
        eps: f32,
        rows: usize,
        out: &mut Tensor,
    ) -> Result<()> {
        same(x.cols, out.cols)?;
        groups(x.cols, weight.len())?;
        let grain = x.grain() * x.cols;
        let (x, out) = (x.rows(rows)?, out.rows_mut(rows)?);
        let mut tasks: Vec<_> = x.chunks(grain).zip(out.chunks_mut(grain)).collect();
        self.team.for_each(&mut tasks, |(x, out)| {
            self.isa.run(RmsNorm { x, weight, eps, out })
        })
    }

    fn add_rms_norm(
        &mut self,
        residual: &mut Tensor,
        x: &Tensor,
        weight: &Buffer<f32>,
        eps: f32,
        rows: usize,
        out: &mut Tensor,
    ) -> Result<()> {
        same(residual.cols, x.cols)?;
        same(residual.cols, out.cols)?;
        same(residual.cols, weight.len())?;
        let grain = x.grain() * x.cols;
        let (residual, x, out) = (residual.rows_mut(rows)?, x.rows(rows)?, out.rows_mut(rows)?);
        let inputs = residual.chunks_mut(grain).zip(x.chunks(grain));
        let mut tasks: Vec<_> = inputs.zip(out.chunks_mut(grain)).collect();
        self.team.for_each(&mut tasks, |((residual, x), out)| {
            self.isa.run(Add { x: residual, y: x });
            self.isa.run(RmsNorm {
                x: residual,
                weight,
                eps,
                out,
            });
        })
    }

    fn linear(&mut self, x: &Tensor, rows: usize, products: &mut [Linear<'_, Self>]) -> Result<()> {
        let inputs = x.rows(rows)?;
        let mut kernels = Vec::with_capacity(products.len());
        for Linear { weight, bias, out } in products {
            same(weight.cols(), x.cols)?;
            same(weight.rows(), out.cols)?;
            kernels.push(Product {
                weight,
                bias: bias.map(|bias| &**bias),
                out: out.rows_mut(rows)?,
            });
        }
        let quantized = match self
            .quantized
            .take()
            .filter(|scratch| scratch.holds(rows, x.cols))
        {
            Some(scratch) => scratch,
            None => QuantizedRows::new(&self.ledger, owner::WORKSPACE, rows, x.cols)?,
        };
        let quantized = self.quantized.insert(quantized);
        linear::linear(&self.team, self.isa, quantized, inputs, rows, &mut kernels)
    }

    fn rope_kv_write(
        &mut self,
        q: &mut Tensor,
        k: &mut Tensor,
        v: &Tensor,
        rope: &RopeTable,
        shape: &AttentionShape,
        kv: &mut KvCache,
        layer: usize,
        step: &CpuStep,
    ) -> Result<()> {
        let &AttentionShape {
            heads,
            kv_heads,
            head_dim,
            ..
        } = shape;
        kv.check(layer, shape, &step.step)?;
        same(q.cols, heads * head_dim)?;
        same(k.cols, kv_heads * head_dim)?;
        same(v.cols, k.cols)?;
        rope.check(head_dim)?;
        let tokens = step.step.tokens().len();
        let (grain, stride) = (q.grain(), k.cols);
        let (q_grain, k_grain) = (grain * q.cols, grain * k.cols);
        let (q, k, v) = (q.rows_mut(tokens)?, k.rows_mut(tokens)?, v.rows(tokens)?);

        let mut tables = step.angles.borrow_mut();
        let known = tables.iter().position(|table| table.is_of(rope));
        let index = known.unwrap_or_else(|| {
            tables.push(Angles::new(rope, &step.step));
            tables.len() - 1
        });
        let angles = &tables[index];
        let (isa, step) = (self.isa, &step.step);
        let parts = q.chunks_mut(q_grain).zip(k.chunks_mut(k_grain)).enumerate();
        let mut tasks: Vec<_> = parts.collect();
        self.team.for_each(&mut tasks, |(i, (q, k))| {
            for (x, heads) in [(&mut **q, heads), (&mut **k, kv_heads)] {
                isa.run(Turn {
                    angles,
                    first: *i * grain,
                    x,
                    heads,
                    head_dim,
                });
            }
        })?;

        let mut caches: Vec<_> = kv.heads_mut(layer).enumerate().collect();
        let heads_a_task = (GRAIN / (tokens * head_dim).max(1)).clamp(1, kv_heads);
        let mut tasks: Vec<_> = caches.chunks_mut(heads_a_task).collect();
        self.team.for_each(&mut tasks, |caches| {
            for (head, cache) in caches.iter_mut() {
                isa.run(Store {
                    step,
                    keys: k,
                    values: v,
                    stride,
                    offset: *head * head_dim,
                    head_dim,
                    cache,
                });
            }
        })
    }

    fn attention(
        &mut self,
        q: &Tensor,
        kv: &KvCache,
        layer: usize,
        shape: &AttentionShape,
        step: &CpuStep,
        out: &mut Tensor,
    ) -> Result<()> {
        kv.check(layer, shape, &step.step)?;
        same(q.cols, shape.heads * shape.head_dim)?;
        same(out.cols, q.cols)?;
        let tokens = step.step.tokens().len();
        let attention = Attention {
            isa: self.isa,
            cache: kv,
            layer,
            shape,
            step: &step.step,
            q: q.rows(tokens)?,
        };
        attention.run(&self.team, out.rows_mut(tokens)?, &mut step.partials.borrow_mut())
    }

    fn gated(
        &mut self,
        activation: Activation,
        gate: &Tensor,
        up: &Tensor,
        rows: usize,
        out: &mut Tensor,
    ) -> Result<()> {
        same(gate.cols, up.cols)?;
        same(gate.cols, out.cols)?;
        let inputs = gate.rows(rows)?.chunks(GRAIN).zip(up.rows(rows)?.chunks(GRAIN));
        let mut tasks: Vec<_> = inputs.zip(out.rows_mut(rows)?.chunks_mut(GRAIN)).collect();
        self.team.for_each(&mut tasks, |((gate, up), out)| {
            self.isa.run(Gated {
                activation,
                gate,
                up,
                out,
            });
        })
    }

    fn scale(&mut self, x: &mut Tensor, rows: usize, factor: f32) -> Result<()> {
        let mut tasks: Vec<_> = x.rows_mut(rows)?.chunks_mut(GRAIN).collect();
        self.team
            .for_each(&mut tasks, |x| self.isa.run(Scale { x, factor }))
    }

    fn softcap(&mut self, x: &mut Tensor, rows: usize, cap: f32) -> Result<()> {
        let mut tasks: Vec<_> = x.rows_mut(rows)?.chunks_mut(GRAIN).collect();
        self.team
            .for_each(&mut tasks, |x| self.isa.run(SoftCap { x, cap }))
    }

    fn add(&mut self, residual: &mut Tensor, x: &Tensor, rows: usize) -> Result<()> {
        same(residual.cols, x.cols)?;
        let parts = residual
            .rows_mut(rows)?
            .chunks_mut(GRAIN)
            .zip(x.rows(rows)?.chunks(GRAIN));
        let mut tasks: Vec<_> = parts.collect();
        self.team
            .for_each(&mut tasks, |(x, y)| self.isa.run(Add { x, y }))
    }

    fn gather(&mut self, x: &Tensor, rows: &[u32], out: &mut Tensor) -> Result<()> {
        same(x.cols, out.cols)?;
        let cols = x.cols;
        for (&row, out) in rows.iter().zip(out.rows_mut(rows.len())?.chunks_exact_mut(cols)) {
            let from = x.data.chunks_exact(cols).nth(row as usize);
            out.copy_from_slice(from.ok_or_else(|| Error::invalid(format!("there is no row {row}")))?);
        }
        Ok(())
    }

    fn sample(
        &mut self,
        logits: &Tensor,
        vocab: usize,
        requests: &[Request<'_>],
        scratch: &mut Scratch,
    ) -> Result<Vec<Choice>> {
        scratch.choose(vocab, requests, |values| {
            self.download(logits, requests.len(), values)
        })
    }

    fn collect(&mut self, choices: Vec<Choice>) -> Result<Vec<Choice>> {
        Ok(choices)
    }

    fn download(&mut self, x: &Tensor, rows: usize, data: &mut [f32]) -> Result<()> {
        let from = x.rows(rows)?;
        same(from.len(), data.len())?;
        data.copy_from_slice(from);
        Ok(())
    }

    fn synchronize(&mut self) -> Result<()> {
        Ok(())
    }
}

fn same(a: usize, b: usize) -> Result<()> {
    if a == b {
        Ok(())
    } else {
        Err(Error::invalid(format!("shapes disagree: {a} and {b}")))
    }
}

/// Checks that a row of `cols` is a whole number of groups of `len`.
fn groups(cols: usize, len: usize) -> Result<()> {
    match len > 0 && cols.is_multiple_of(len) {
        true => Ok(()),
        false => Err(Error::invalid(format!("{cols} columns aren't groups of {len}"))),
    }
}
