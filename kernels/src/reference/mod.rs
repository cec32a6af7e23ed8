//! The plain reference: every operation by its definition, in f64, on one thread. Slow; it is the oracle
//! that the backends are compared with.

mod attention;
mod experts;
mod recurrent;
mod tensor;

use crate::{
    Activation, AttentionShape, DeltaWeights, Error, HostStep, Ledger, Linear, Ops, Place, Progress, Result,
    RopeTable, ScanWeights, StepRows, WeightFootprint, WeightSource,
    cpu::Buffer,
    formats,
    ledger::owner,
    sample::{Choice, Request, Scratch},
};

pub use attention::KvCache;
pub use recurrent::State;
pub use tensor::{Tensor, Weight};
use tensor::{first_rows, groups, same};

/// The reference implementation of [`Ops`].
#[derive(Debug, Default)]
pub struct Reference {
    ledger: Ledger,
    kv_as_f16: bool,
}

impl Reference {
    /// One that rounds keys and values to f16, as the cache of a real backend does.
    pub fn new(ledger: Ledger) -> Self {
        Self {
            ledger,
            kv_as_f16: true,
        }
    }

    /// One that keeps keys and values in f64.
    pub fn with_exact_kv(ledger: Ledger) -> Self {
        Self {
            ledger,
            kv_as_f16: false,
        }
    }
}

impl Ops for Reference {
    type Tensor = Tensor;
    type Weight = Weight;
    type Vector = Buffer<f32>;
    type KvCache = KvCache;
    type State = State;
    type Step = HostStep;
    type Choices = Vec<Choice>;
    const IN_FLIGHT: u32 = 1;

    fn load_weight(&mut self, source: &WeightSource, progress: &mut Progress<'_>) -> Result<Weight> {
        let row_bytes = source.row_bytes()?;
        let mut values = Buffer::zeroed(&self.ledger, owner::DERIVED, source.rows * source.cols)?;
        let mut bytes = vec![0; row_bytes];
        for (row, values) in values.chunks_exact_mut(source.cols).enumerate() {
            let start = row * row_bytes;
            progress(start as u64)?;
            source.read(start, &mut bytes)?;
            formats::dequantize(source.ty, &bytes, values)?;
        }
        Ok(Weight {
            rows: source.rows,
            cols: source.cols,
            values: Some(values),
        })
    }

    fn footprint(&self, weight: &Weight) -> WeightFootprint {
        WeightFootprint {
            store: 0,
            derived: weight.values.as_ref().map_or(0, |values| values.bytes() as u64),
        }
    }

    fn release_derived(&mut self, weight: &mut Weight) -> Result<u64> {
        weight.values.take().map_or(Ok(0), Buffer::release)
    }

    fn release_weight(&mut self, mut weight: Weight) -> Result<u64> {
        self.release_derived(&mut weight)
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
        let len = len.ok_or_else(|| Error::invalid(format!("an activation of {rows} × {cols}")))?;
        Ok(Tensor {
            cols,
            data: Buffer::zeroed(&self.ledger, owner, len)?,
        })
    }

    fn release_tensor(&mut self, tensor: Tensor) -> Result<u64> {
        tensor.data.release()
    }

    fn alloc_kv(
        &mut self,
        layers: usize,
        kv_heads: usize,
        head_dim: usize,
        block_size: usize,
        blocks: usize,
    ) -> Result<KvCache> {
        KvCache::new(
            &self.ledger,
            [layers, blocks, block_size, kv_heads, head_dim],
            self.kv_as_f16,
        )
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

    fn begin(&mut self, step: &StepRows<'_>) -> Result<HostStep> {
        HostStep::new(step)
    }

    fn embed(&mut self, table: &Weight, step: &HostStep, out: &mut Tensor) -> Result<()> {
        same(table.cols, out.cols)?;
        let values = table.values()?;
        for (&token, out) in step.tokens().iter().zip(out.rows_mut(step.tokens().len())?) {
            let row = values
                .chunks_exact(table.cols)
                .nth(token as usize)
                .ok_or_else(|| {
                    Error::invalid(format!("token {token} isn't one of the {} embedded", table.rows))
                })?;
            for (out, &value) in out.iter_mut().zip(row) {
                *out = f64::from(value);
            }
        }
        Ok(())
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
        let x = x.rows(rows)?.flat_map(|x| x.chunks_exact(weight.len()));
        let out = out
            .rows_mut(rows)?
            .flat_map(|out| out.chunks_exact_mut(weight.len()));
        for (x, out) in x.zip(out) {
            let mean_square = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
            let factor = 1.0 / (mean_square + f64::from(eps)).sqrt();
            for ((out, x), &weight) in out.iter_mut().zip(x).zip(weight.iter()) {
                *out = x * factor * f64::from(weight);
            }
        }
        Ok(())
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
        self.add(residual, x, rows)?;
        self.rms_norm(residual, weight, eps, rows, out)
    }

    fn linear(&mut self, x: &Tensor, rows: usize, products: &mut [Linear<'_, Self>]) -> Result<()> {
        for Linear { weight, bias, out } in products {
            same(weight.cols, x.cols)?;
            same(weight.rows, out.cols)?;
            if let Some(bias) = bias {
                same(bias.len(), out.cols)?;
            }
            let values = weight.values()?;
            for (x, out) in x.rows(rows)?.zip(out.rows_mut(rows)?) {
                for (i, (out, weight)) in out.iter_mut().zip(values.chunks_exact(weight.cols)).enumerate() {
                    let sum: f64 = x.iter().zip(weight).map(|(x, &w)| x * f64::from(w)).sum();
                    *out = sum + bias.map_or(0.0, |bias| f64::from(bias[i]));
                }
            }
        }
        Ok(())
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
        step: &HostStep,
    ) -> Result<()> {
        same(q.cols, shape.heads * shape.head_dim)?;
        same(k.cols, shape.kv_heads * shape.head_dim)?;
        same(v.cols, k.cols)?;
        rope.check(shape.head_dim)?;
        kv.check(layer, shape, step)?;
        let tokens = step.tokens().len();
        let (q, k, v) = (q.rows_mut(tokens)?, k.rows_mut(tokens)?, v.rows(tokens)?);
        for ((place, (q, k)), v) in attention::places(step).zip(q.zip(k)).zip(v) {
            for head in q
                .chunks_exact_mut(shape.head_dim)
                .chain(k.chunks_exact_mut(shape.head_dim))
            {
                attention::turn(head, rope, place.position);
            }
            kv.write(layer, &place, k, v);
        }
        Ok(())
    }

    fn attention(
        &mut self,
        q: &Tensor,
        kv: &KvCache,
        layer: usize,
        shape: &AttentionShape,
        step: &HostStep,
        out: &mut Tensor,
    ) -> Result<()> {
        same(q.cols, shape.heads * shape.head_dim)?;
        same(out.cols, q.cols)?;
        kv.check(layer, shape, step)?;
        let tokens = step.tokens().len();
        for (place, (q, out)) in attention::places(step).zip(q.rows(tokens)?.zip(out.rows_mut(tokens)?)) {
            let heads = q
                .chunks_exact(shape.head_dim)
                .zip(out.chunks_exact_mut(shape.head_dim));
            for (head, (q, out)) in heads.enumerate() {
                kv.attend(layer, shape, head, &place, q, out);
            }
        }
        Ok(())
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
        for ((gate, up), out) in gate.rows(rows)?.zip(up.rows(rows)?).zip(out.rows_mut(rows)?) {
            for ((gate, up), out) in gate.iter().zip(up).zip(out) {
                *out = activate(activation, *gate) * up;
            }
        }
        Ok(())
    }

    fn scale(&mut self, x: &mut Tensor, rows: usize, factor: f32) -> Result<()> {
        x.rows_mut(rows)?.flatten().for_each(|x| *x *= f64::from(factor));
        Ok(())
    }

    fn softcap(&mut self, x: &mut Tensor, rows: usize, cap: f32) -> Result<()> {
        let cap = f64::from(cap);
        x.rows_mut(rows)?
            .flatten()
            .for_each(|x| *x = cap * (*x / cap).tanh());
        Ok(())
    }

    fn gate_rows(&mut self, x: &mut Tensor, gate: &Tensor, rows: usize) -> Result<()> {
        same(gate.cols, 1)?;
        for (x, gate) in x.rows_mut(rows)?.zip(gate.rows(rows)?) {
            let factor = activate(Activation::Sigmoid, gate[0]);
            x.iter_mut().for_each(|x| *x *= factor);
        }
        Ok(())
    }

    fn conv(
        &mut self,
        x: &Tensor,
        weight: &Buffer<f32>,
        bias: Option<&Buffer<f32>>,
        taps: usize,
        place: Place<'_, State>,
        step: &HostStep,
        out: &mut Tensor,
    ) -> Result<()> {
        recurrent::conv(x, weight, bias.map(|bias| &**bias), taps, place, step, out)
    }

    fn scan(
        &mut self,
        xbc: &Tensor,
        dt: &Tensor,
        weights: &ScanWeights<'_, Buffer<f32>>,
        place: Place<'_, State>,
        step: &HostStep,
        out: &mut Tensor,
    ) -> Result<()> {
        recurrent::scan(xbc, dt, weights, place, step, out)
    }

    fn delta_rule(
        &mut self,
        qkv: &Tensor,
        alpha: &Tensor,
        beta: &Tensor,
        weights: &DeltaWeights<'_, Buffer<f32>>,
        place: Place<'_, State>,
        step: &HostStep,
        out: &mut Tensor,
    ) -> Result<()> {
        recurrent::delta_rule(qkv, [alpha, beta], weights, place, step, out)
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
        experts::route(logits, rows, experts, chosen, normalised, routing)
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
        experts::expert_linear(x, spread, rows, weight, experts, routing, out)
    }

    fn combine(&mut self, x: &Tensor, routing: &Tensor, rows: usize, out: &mut Tensor) -> Result<()> {
        experts::combine(x, routing, rows, out)
    }

    fn add(&mut self, residual: &mut Tensor, x: &Tensor, rows: usize) -> Result<()> {
        same(residual.cols, x.cols)?;
        for (residual, x) in residual.rows_mut(rows)?.flatten().zip(x.rows(rows)?.flatten()) {
            *residual += x;
        }
        Ok(())
    }

    fn gather(&mut self, x: &Tensor, rows: &[u32], out: &mut Tensor) -> Result<()> {
        same(x.cols, out.cols)?;
        for (&row, out) in rows.iter().zip(out.rows_mut(rows.len())?) {
            let from = x.data.chunks_exact(x.cols).nth(row as usize);
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
        let from = first_rows(&x.data, x.cols, rows)?;
        same(from.len(), data.len())?;
        for (to, &from) in data.iter_mut().zip(from) {
            *to = from as f32;
        }
        Ok(())
    }

    fn synchronize(&mut self) -> Result<()> {
        Ok(())
    }
}

fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}
