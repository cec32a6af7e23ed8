//! [`Ops`] on the CPU: checks shapes, cuts the work, and hands it to the kernels.

use super::{
    Buffer, Isa, Region, Team, Workers,
    attention::{Attention, Partial},
    conv::{self, Taps},
    delta,
    elementwise::{self, Add, Scale, SoftCap},
    kv::{KvCache, Layout},
    linear::{self, ExpertProduct, PackedWeight, Product, QuantizedRows},
    rope::{self, Angles, MAX_HEAD_DIM},
    routing, scan,
    state::State,
    tensor::{GRAIN, Tensor, same},
};
use crate::{
    Activation, AttentionShape, DeltaWeights, Error, HostStep, Ledger, Linear, Ops, Place, Progress, Result,
    RopeTable, ScanWeights, StepRows, WeightFootprint, WeightSource, chosen_experts,
    ledger::owner,
    sample::{Choice, Request, Scratch},
};
use std::cell::RefCell;

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

    fn workers(&self) -> Workers<'_> {
        Workers {
            team: &self.team,
            isa: self.isa,
        }
    }

    /// The scratch of a product, with room for `rows` rows of `cols`.
    fn scratch(&mut self, rows: usize, cols: usize) -> Result<QuantizedRows> {
        match self.quantized.take().filter(|scratch| scratch.holds(rows, cols)) {
            Some(scratch) => Ok(scratch),
            None => QuantizedRows::new(&self.ledger, owner::WORKSPACE, rows, cols),
        }
    }

    fn release_workspace(&mut self) -> Result<u64> {
        self.quantized.take().map_or(Ok(0), QuantizedRows::release)
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
    type State = State;
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

    fn alloc_state(&mut self, owner: &str, slots: usize, values: usize) -> Result<State> {
        State::new(&self.ledger, owner, slots, values)
    }

    fn release_state(&mut self, state: State) -> Result<u64> {
        state.release()
    }

    fn copy_state(&mut self, from: &State, slot: u32, to: &mut State, to_slot: u32) -> Result<()> {
        to.copy(to_slot, from, slot)
    }

    fn read_state(&mut self, state: &State, slot: u32, data: &mut [u8]) -> Result<()> {
        state.read(slot, data)
    }

    fn write_state(&mut self, state: &mut State, slot: u32, data: &[u8]) -> Result<()> {
        state.write(slot, data)
    }

    fn begin(&mut self, step: &StepRows<'_>) -> Result<CpuStep> {
        Ok(CpuStep {
            step: HostStep::new(step)?,
            angles: RefCell::default(),
            partials: RefCell::default(),
        })
    }

    fn embed(&mut self, table: &PackedWeight, step: &CpuStep, out: &mut Tensor) -> Result<()> {
        table.embed(step.step.tokens(), &self.team, out)
    }

    fn rms_norm(
        &mut self,
        x: &Tensor,
        weight: &Buffer<f32>,
        eps: f32,
        rows: usize,
        out: &mut Tensor,
    ) -> Result<()> {
        elementwise::rms_norm(self.workers(), x, weight, eps, rows, out)
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
        elementwise::add_rms_norm(self.workers(), residual, x, weight, eps, rows, out)
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
        let scratch = self.scratch(rows, x.cols)?;
        let scratch = self.quantized.insert(scratch);
        linear::linear(&self.team, self.isa, scratch, inputs, rows, &mut kernels)
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
        kv.check(layer, shape, &step.step)?;
        let mut tables = step.angles.borrow_mut();
        let known = tables.iter().position(|table| table.is_of(rope));
        rope.check(shape.head_dim)?;
        let index = known.unwrap_or_else(|| {
            tables.push(Angles::new(rope, &step.step));
            tables.len() - 1
        });
        rope::rope_kv_write(
            self.workers(),
            &tables[index],
            shape,
            [q, k],
            v,
            kv.heads_mut(layer),
            &step.step,
        )
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
        elementwise::gated(self.workers(), activation, gate, up, rows, out)
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

    fn gate_rows(&mut self, x: &mut Tensor, gate: &Tensor, rows: usize) -> Result<()> {
        routing::gate_rows(self.workers(), x, gate, rows)
    }

    fn conv(
        &mut self,
        x: &Tensor,
        weight: &Buffer<f32>,
        bias: Option<&Buffer<f32>>,
        taps: usize,
        place: Place<'_, State>,
        step: &CpuStep,
        out: &mut Tensor,
    ) -> Result<()> {
        let bias = bias.map(|bias| &**bias);
        let taps = Taps { weight, bias, taps };
        conv::conv(self.workers(), x, &taps, place, &step.step, out)
    }

    fn scan(
        &mut self,
        xbc: &Tensor,
        dt: &Tensor,
        weights: &ScanWeights<'_, Buffer<f32>>,
        place: Place<'_, State>,
        step: &CpuStep,
        out: &mut Tensor,
    ) -> Result<()> {
        scan::scan(self.workers(), xbc, dt, weights, place, &step.step, out)
    }

    fn delta_rule(
        &mut self,
        qkv: &Tensor,
        alpha: &Tensor,
        beta: &Tensor,
        weights: &DeltaWeights<'_, Buffer<f32>>,
        place: Place<'_, State>,
        step: &CpuStep,
        out: &mut Tensor,
    ) -> Result<()> {
        delta::delta_rule(
            self.workers(),
            qkv,
            [alpha, beta],
            weights,
            place,
            &step.step,
            out,
        )
    }

    fn route(
        &mut self,
        logits: &Tensor,
        rows: usize,
        experts: usize,
        chosen: usize,
        normalised: bool,
        routing: &mut Tensor,
    ) -> Result<()> {
        same(logits.cols, experts)?;
        routing::route(&self.team, logits, rows, chosen, normalised, routing)
    }

    fn expert_linear(
        &mut self,
        x: &Tensor,
        spread: bool,
        rows: usize,
        weight: &PackedWeight,
        experts: usize,
        routing: &Tensor,
        out: &mut Tensor,
    ) -> Result<()> {
        let chosen = chosen_experts(routing.cols)?;
        let products = rows.saturating_mul(chosen);
        let numbers = routing::numbers(routing, rows, experts)?;
        same(weight.cols(), x.cols)?;
        same(weight.rows(), experts.saturating_mul(out.cols))?;
        let scratch = self.scratch(products, x.cols)?;
        let scratch = self.quantized.insert(scratch);
        let product = ExpertProduct {
            weight,
            outputs: out.cols,
            numbers: &numbers,
            x: x.rows(if spread { products } else { rows })?,
            each: if spread { 1 } else { chosen },
        };
        linear::expert_linear(&self.team, self.isa, scratch, &product, out.rows_mut(products)?)
    }

    fn combine(&mut self, x: &Tensor, routing: &Tensor, rows: usize, out: &mut Tensor) -> Result<()> {
        routing::combine(self.workers(), x, routing, rows, out)
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
