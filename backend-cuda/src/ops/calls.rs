//! The calls of [`Ops`].

use super::{CudaOps, Tensor, Vector, same};
use crate::{
    kv::KvCache,
    launch::args,
    memory::{as_bytes, as_bytes_mut},
    sample::Choices,
    state::State,
    step::Step,
    weight::{self, Kernels, Weight},
    workspace::STEP,
};
use met_kernels::{
    Activation, AttentionShape, DeltaWeights, Error, Linear, Ops, Place, Progress, Result, RopeTable,
    ScanWeights, StepRows, Taken, WeightFootprint, WeightSource,
    ledger::owner,
    sample::{Choice, Request, Scratch},
};

impl Ops for CudaOps {
    type Tensor = Tensor;
    type Weight = Weight;
    type Vector = Vector;
    type KvCache = KvCache;
    type State = State;
    type Step = Step;
    type Choices = Choices;
    const IN_FLIGHT: u32 = 2;

    fn load_weight(&mut self, source: &WeightSource, progress: &mut Progress<'_>) -> Result<Weight> {
        let bytes = weight::check(source)?;
        let kernels = Kernels::of(source.ty, source.cols, &mut self.modules)?;
        let data = self.allocator.memory(owner::WEIGHTS, bytes)?;
        let staging = self
            .staging
            .as_mut()
            .ok_or_else(|| Error::invalid("the backend was swept; open it again"))?;
        staging.upload(source, &data, &self.prefill, &self.stream, progress)?;
        Ok(Weight {
            name: source.name.clone(),
            rows: source.rows,
            cols: source.cols,
            data,
            kernels,
        })
    }

    fn footprint(&self, weight: &Weight) -> WeightFootprint {
        WeightFootprint {
            store: weight.data.bytes() as u64,
            derived: 0,
        }
    }

    fn release_derived(&mut self, _weight: &mut Weight) -> Result<u64> {
        Ok(0)
    }

    fn release_weight(&mut self, weight: Weight) -> Result<u64> {
        weight.data.release()
    }

    fn load_vector(&mut self, values: &[f32]) -> Result<Vector> {
        let data = self.allocator.memory(owner::WEIGHTS, size_of_val(values))?;
        data.write(0, as_bytes(values), &self.stream)?;
        Ok(Vector {
            len: values.len(),
            data,
        })
    }

    fn release_vector(&mut self, vector: Vector) -> Result<u64> {
        vector.data.release()
    }

    fn alloc_tensor(&mut self, owner: &str, rows: usize, cols: usize) -> Result<Tensor> {
        let len = rows
            .checked_mul(cols)
            .filter(|_| cols > 0 && u32::try_from(cols).is_ok());
        let len = len.ok_or_else(|| Error::invalid(format!("{owner}: an activation of {rows} × {cols}")))?;
        let data = self.allocator.zeroed::<f32>(owner, len)?;
        self.workspace.enter();
        Ok(Tensor { rows, cols, data })
    }

    fn release_tensor(&mut self, tensor: Tensor) -> Result<u64> {
        let workspace = match self.workspace.leave() {
            true => self.release_workspace(),
            false => Ok(0),
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
        let sizes = [layers, kv_heads, head_dim, block_size, blocks];
        KvCache::new(&self.allocator, &mut self.modules, sizes)
    }

    fn release_kv(&mut self, kv: KvCache) -> Result<u64> {
        kv.data.release()
    }

    fn read_block(&mut self, kv: &KvCache, block: u32, data: &mut [u8]) -> Result<()> {
        kv.read_block(block, data, &self.stream)
    }

    fn write_block(&mut self, kv: &mut KvCache, block: u32, data: &[u8]) -> Result<()> {
        kv.write_block(block, data, &self.stream)
    }

    fn alloc_state(&mut self, owner: &str, slots: usize, values: usize) -> Result<State> {
        State::new(&self.allocator, owner, slots, values)
    }

    fn release_state(&mut self, state: State) -> Result<u64> {
        state.data.release()
    }

    fn copy_state(&mut self, from: &State, slot: u32, to: &mut State, to_slot: u32) -> Result<()> {
        to.copy_from(to_slot, from, slot, &self.stream)
    }

    fn read_state(&mut self, state: &State, slot: u32, data: &mut [u8]) -> Result<()> {
        state.read(slot, data, &self.stream)
    }

    fn write_state(&mut self, state: &mut State, slot: u32, data: &[u8]) -> Result<()> {
        state.write(slot, data, &self.stream)
    }

    fn begin(&mut self, step: &StepRows<'_>) -> Result<Step> {
        Step::new(&self.allocator, &self.workspace, step)
    }

    fn embed(&mut self, table: &Weight, step: &Step, out: &mut Tensor) -> Result<()> {
        let tokens = step.host.tokens();
        same(table.cols, out.cols)?;
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= table.rows) {
            return Err(Error::invalid(format!(
                "token {token} isn't one of the {} embedded in {}",
                table.rows, table.name
            )));
        }
        let (Kernels::Tiled { embed, .. } | Kernels::Plain { embed, .. }) = table.kernels;
        let args = args![
            table.data.address(),
            step.tokens(),
            out.at(tokens.len())?,
            table.cols as u32
        ];
        self.launch(embed, [tokens.len(), 1], 128, args)
    }

    fn rms_norm(
        &mut self,
        x: &Tensor,
        weight: &Vector,
        eps: f32,
        rows: usize,
        out: &mut Tensor,
    ) -> Result<()> {
        same(x.cols, out.cols)?;
        if weight.len == 0 || !x.cols.is_multiple_of(weight.len) {
            return Err(Error::invalid(format!(
                "{} columns aren't groups of {}",
                x.cols, weight.len
            )));
        }
        let args = args![
            x.at(rows)?,
            weight.data.address(),
            out.at(rows)?,
            weight.len as u32,
            eps
        ];
        self.launch(
            self.kernels.rms_norm,
            [rows * (x.cols / weight.len), 1],
            256,
            args,
        )
    }

    fn add_rms_norm(
        &mut self,
        residual: &mut Tensor,
        x: &Tensor,
        weight: &Vector,
        eps: f32,
        rows: usize,
        out: &mut Tensor,
    ) -> Result<()> {
        same(residual.cols, x.cols)?;
        same(x.cols, out.cols)?;
        same(x.cols, weight.len)?;
        let args = args![
            residual.at(rows)?,
            x.at(rows)?,
            weight.data.address(),
            out.at(rows)?,
            x.cols as u32,
            eps
        ];
        self.launch(self.kernels.add_rms_norm, [rows, 1], 256, args)
    }

    fn linear(&mut self, x: &Tensor, rows: usize, products: &mut [Linear<'_, Self>]) -> Result<()> {
        self.multiply(x, rows, products)
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
        step: &Step,
    ) -> Result<()> {
        self.rope_and_write([q, k, v], rope, shape, kv, layer, step)
    }

    fn attention(
        &mut self,
        q: &Tensor,
        kv: &KvCache,
        layer: usize,
        shape: &AttentionShape,
        step: &Step,
        out: &mut Tensor,
    ) -> Result<()> {
        self.attend(q, kv, layer, shape, step, out)
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
        let (gate, n) = gate.elements(rows)?;
        let kernel = match activation {
            Activation::Silu => self.kernels.gated_silu,
            Activation::GeluTanh => self.kernels.gated_gelu,
            Activation::Sigmoid => self.kernels.gated_sigmoid,
        };
        self.each(kernel, n as usize, args![gate, up.at(rows)?, out.at(rows)?, n])
    }

    fn scale(&mut self, x: &mut Tensor, rows: usize, factor: f32) -> Result<()> {
        let (x, n) = x.elements(rows)?;
        self.each(self.kernels.scale, n as usize, args![x, factor, n])
    }

    fn softcap(&mut self, x: &mut Tensor, rows: usize, cap: f32) -> Result<()> {
        let (x, n) = x.elements(rows)?;
        self.each(self.kernels.softcap, n as usize, args![x, cap, n])
    }

    fn gate_rows(&mut self, x: &mut Tensor, gate: &Tensor, rows: usize) -> Result<()> {
        same(gate.cols, 1)?;
        let ((data, n), gate) = (x.elements(rows)?, gate.at(rows)?);
        let args = args![data, gate, x.cols as u32, n];
        self.each(self.kernels.gate_rows, n as usize, args)
    }

    fn conv(
        &mut self,
        x: &Tensor,
        weight: &Vector,
        bias: Option<&Vector>,
        taps: usize,
        place: Place<'_, State>,
        step: &Step,
        out: &mut Tensor,
    ) -> Result<()> {
        self.convolve(x, (weight, bias, taps), place, step, out)
    }

    fn scan(
        &mut self,
        xbc: &Tensor,
        dt: &Tensor,
        weights: &ScanWeights<'_, Vector>,
        place: Place<'_, State>,
        step: &Step,
        out: &mut Tensor,
    ) -> Result<()> {
        self.selective_scan(xbc, dt, weights, place, step, out)
    }

    fn delta_rule(
        &mut self,
        qkv: &Tensor,
        alpha: &Tensor,
        beta: &Tensor,
        weights: &DeltaWeights<'_, Vector>,
        place: Place<'_, State>,
        step: &Step,
        out: &mut Tensor,
    ) -> Result<()> {
        self.gated_delta_rule([qkv, alpha, beta], weights, place, step, out)
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
        self.choose_experts(logits, rows, [experts, chosen], normalised, routing)
    }

    fn expert_linear(
        &mut self,
        x: &Tensor,
        spread: bool,
        rows: usize,
        weight: &Weight,
        experts: usize,
        routing: &Tensor,
        out: &mut Tensor,
    ) -> Result<()> {
        self.multiply_by_experts((x, spread, rows), (weight, experts), routing, out)
    }

    fn combine(&mut self, x: &Tensor, routing: &Tensor, rows: usize, out: &mut Tensor) -> Result<()> {
        self.combine_experts(x, routing, rows, out)
    }

    fn add(&mut self, residual: &mut Tensor, x: &Tensor, rows: usize) -> Result<()> {
        same(residual.cols, x.cols)?;
        let (residual, n) = residual.elements(rows)?;
        self.each(self.kernels.add, n as usize, args![residual, x.at(rows)?, n])
    }

    fn gather(&mut self, x: &Tensor, rows: &[u32], out: &mut Tensor) -> Result<()> {
        same(x.cols, out.cols)?;
        if let Some(row) = rows.iter().find(|&&row| row as usize >= x.rows) {
            return Err(Error::invalid(format!("there is no row {row}")));
        }
        if self.noted.is_some() {
            return Err(Error::bug("a choice of rows among a step's layers"));
        }
        let to = out.at(rows.len())?;
        let list = self.allocator.upload(STEP, rows)?;
        let args = args![x.at(0)?, list.address(), to, x.cols as u32];
        self.launch(self.kernels.gather, [rows.len(), 1], 256, args)
    }

    fn sample(
        &mut self,
        logits: &Tensor,
        vocab: usize,
        requests: &[Request<'_>],
        _scratch: &mut Scratch,
    ) -> Result<Choices> {
        same(logits.cols, vocab)?;
        let logits = logits.at(requests.len())?;
        let mut choices = Choices::new(&self.allocator, vocab, requests)?;
        let args = choices.args(logits, vocab);
        self.launch(self.kernels.sample, [requests.len(), 1], 1024, &args)?;
        choices.send(&mut self.slots, &self.allocator.ledger, &self.stream)?;
        Ok(choices)
    }

    fn collect(&mut self, choices: Choices) -> Result<Vec<Choice>> {
        self.slots.collect(choices)
    }

    fn take(&mut self, step: &mut Step, inputs: &[Taken<'_, Choices>]) -> Result<()> {
        let mut words = Vec::with_capacity(4 * inputs.len());
        for input in inputs {
            if input.token >= step.host.tokens().len() {
                return Err(Error::bug("an input is no token of its step"));
            }
            words.extend(input.choices.place_of(input.request)?);
            words.extend([input.token as u32, 0]);
        }
        let sources = self.allocator.upload(STEP, &words)?;
        let args = args![step.tokens(), sources.address(), inputs.len() as u32];
        self.launch(self.kernels.take, [inputs.len().div_ceil(128), 1], 128, args)
    }

    fn layers(&mut self, step: &Step, work: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<()> {
        match step.is_decode() && self.noted.is_none() {
            true => self.as_one(work),
            false => work(self),
        }
    }

    fn download(&mut self, x: &Tensor, rows: usize, data: &mut [f32]) -> Result<()> {
        x.at(rows)?;
        same(rows * x.cols, data.len())?;
        x.data.read(0, as_bytes_mut(data), &self.stream)
    }

    fn synchronize(&mut self) -> Result<()> {
        self.stream.synchronize()
    }
}
