//! [`Ops`] on a card: checks shapes and starts kernels on one stream.

use crate::{
    context::{Context, Stream},
    kv::KvCache,
    memory::{Allocator, DeviceBuffer, as_bytes, as_bytes_mut},
    modules::{Arg, Kernel, Modules, args},
    sample::{Choices, Slots},
    step::{self, Places, Step},
    upload::Staging,
    weight::{self, Kernels, Weight},
};
use cudarc::driver::sys::CUdeviceptr;
use met_kernels::{
    Activation, AttentionShape, Error, Ledger, Linear, Ops, Progress, Result, RopeTable, StepRows, Taken,
    WeightFootprint, WeightSource,
    ledger::owner,
    sample::{Choice, Request, Scratch},
};
use std::rc::Rc;

/// The CUDA implementation of [`Ops`], on one card and thread.
#[derive(Debug)]
pub struct CudaOps {
    staging: Option<Staging>,
    slots: Slots,
    kernels: Common,
    modules: Modules,
    prefill: Rc<Stream>,
    stream: Rc<Stream>,
    allocator: Allocator,
}

/// The kernels that every model uses.
#[derive(Debug)]
struct Common {
    rms_norm: Kernel,
    add_rms_norm: Kernel,
    gated_silu: Kernel,
    gated_gelu: Kernel,
    scale: Kernel,
    softcap: Kernel,
    add: Kernel,
    gather: Kernel,
    rope_angles: Kernel,
    rope_kv_write: Kernel,
    sample: Kernel,
    take: Kernel,
}

/// An activation.
#[derive(Debug)]
pub struct Tensor {
    rows: usize,
    cols: usize,
    data: DeviceBuffer,
}

/// A short vector.
#[derive(Debug)]
pub struct Vector {
    len: usize,
    data: DeviceBuffer,
}

impl CudaOps {
    /// On the `ordinal`-th card.
    pub fn new(ordinal: u32, ledger: &Ledger) -> Result<Self> {
        Self::on(Context::open(ordinal)?, ledger)
    }

    pub(crate) fn on(context: Rc<Context>, ledger: &Ledger) -> Result<Self> {
        let stream = Rc::new(Stream::new(ledger)?);
        let prefill = Rc::new(Stream::new(ledger)?);
        let mut modules = Modules::new(ledger);
        Ok(Self {
            kernels: Common::new(&mut modules)?,
            staging: Some(Staging::new(ledger)?),
            slots: Slots::default(),
            allocator: Allocator {
                context,
                stream: stream.clone(),
                ledger: ledger.clone(),
            },
            modules,
            prefill,
            stream,
        })
    }

    /// Waits for a stream: 0 is that of steps, 1 that of weights on their way.
    pub fn wait(&self, stream: u32) -> Result<()> {
        match stream {
            0 => self.stream.synchronize(),
            1 => self.prefill.synchronize(),
            _ => Err(Error::invalid(format!(
                "there is no stream {stream}; there are 0 and 1"
            ))),
        }
    }

    /// Gives back what it has beside the models, each step attempted; the first failure is returned, and what failed
    /// stays on the ledger. Afterwards only releases have an effect.
    pub fn shutdown(&mut self) -> Result<()> {
        let waited = self.stream.synchronize().and(self.prefill.synchronize());
        self.staging = None;
        self.slots = Slots::default();
        let unloaded = self.modules.unload_but(&[]);
        let closed = [self.stream.close(), self.prefill.close()];
        waited.and(unloaded).and(closed.into_iter().collect())
    }

    /// Unloads the kernels that were loaded for models. There must be no model.
    pub(crate) fn forget_models(&mut self) -> Result<()> {
        self.modules.unload_but(&Common::FILES)
    }

    fn launch(&self, kernel: Kernel, grid: [usize; 2], block: u32, args: &[Arg]) -> Result<()> {
        // SAFETY: every caller below gives what the kernel's source takes, of sizes that were checked; what is freed
        // is freed in the order of the stream.
        unsafe { kernel.launch(&self.stream, grid, block, args) }
    }

    /// Starts a kernel of one thread an element.
    fn each(&self, kernel: Kernel, n: usize, args: &[Arg]) -> Result<()> {
        self.launch(kernel, [n.div_ceil(256), 1], 256, args)
    }

    fn release_buffers(&self, buffers: impl IntoIterator<Item = DeviceBuffer>) -> Result<u64> {
        buffers.into_iter().map(DeviceBuffer::release).sum()
    }

    /// The angles of a step by a table, made when they are first asked for.
    fn angles(&self, step: &Step, rope: &RopeTable) -> Result<CUdeviceptr> {
        let mut tables = step.angles.borrow_mut();
        if let Some((_, angles)) = tables.iter().find(|(of, _)| of == rope) {
            return Ok(angles.address());
        }
        let (tokens, pairs) = (step.host.tokens().len(), rope.inverse_frequencies.len());
        let angles = self
            .allocator
            .scratch(step::OWNER, tokens * pairs * 2 * size_of::<f32>())?;
        let frequencies = self.allocator.upload(step::OWNER, &rope.inverse_frequencies)?;
        let args = args![
            step.positions(),
            frequencies.address(),
            angles.address(),
            pairs as u32,
            rope.magnitude
        ];
        if pairs > 0 {
            self.launch(self.kernels.rope_angles, [tokens, 1], 128, args)?;
        }
        let address = angles.address();
        tables.push((rope.clone(), angles));
        Ok(address)
    }

    /// Makes a step's places for this cache and shape unless they are there.
    fn place(&self, step: &Step, kv: &KvCache, shape: &AttentionShape) -> Result<()> {
        let mut places = step.places.borrow_mut();
        if !places.as_ref().is_some_and(|places| places.are_of(kv, shape)) {
            *places = Some(Places::new(&self.allocator, &step.host, kv, shape)?);
        }
        Ok(())
    }
}

impl Common {
    const FILES: [&str; 4] = ["norm", "elementwise", "rope", "sample"];

    fn new(modules: &mut Modules) -> Result<Self> {
        Ok(Self {
            rms_norm: modules.kernel("norm", "rms_norm")?,
            add_rms_norm: modules.kernel("norm", "add_rms_norm")?,
            gated_silu: modules.kernel("elementwise", "gated_silu")?,
            gated_gelu: modules.kernel("elementwise", "gated_gelu")?,
            scale: modules.kernel("elementwise", "scale")?,
            softcap: modules.kernel("elementwise", "softcap")?,
            add: modules.kernel("elementwise", "add")?,
            gather: modules.kernel("elementwise", "gather")?,
            rope_angles: modules.kernel("rope", "rope_angles")?,
            rope_kv_write: modules.kernel("rope", "rope_kv_write")?,
            sample: modules.kernel("sample", "sample")?,
            take: modules.kernel("sample", "take")?,
        })
    }
}

impl Tensor {
    /// Checks that `rows` rows are there.
    fn at(&self, rows: usize) -> Result<CUdeviceptr> {
        if rows > self.rows {
            return Err(Error::invalid(format!(
                "{rows} rows are wanted of an activation that has room for {}",
                self.rows
            )));
        }
        Ok(self.data.address())
    }

    /// The same, with the number of their elements, which kernels count in 32 bits.
    fn elements(&self, rows: usize) -> Result<(CUdeviceptr, u32)> {
        let count = u32::try_from(rows.saturating_mul(self.cols));
        let count =
            count.map_err(|_| Error::invalid(format!("a step of {rows} rows of {} elements", self.cols)))?;
        Ok((self.at(rows)?, count))
    }
}

impl Ops for CudaOps {
    type Tensor = Tensor;
    type Weight = Weight;
    type Vector = Vector;
    type KvCache = KvCache;
    type State = ();
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
        Ok(Tensor {
            rows,
            cols,
            data: self.allocator.zeroed::<f32>(owner, len)?,
        })
    }

    fn release_tensor(&mut self, tensor: Tensor) -> Result<u64> {
        self.release_buffers([tensor.data])
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

    fn begin(&mut self, step: &StepRows<'_>) -> Result<Step> {
        Step::new(&self.allocator, step)
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
                    // A function of the columns alone, as linear.cu asks.
                    let segment = (cols / 32).div_ceil(8) * 32;
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
        kv.check(layer, shape, &step.host)?;
        same(q.cols, shape.heads * shape.head_dim)?;
        same(k.cols, shape.kv_heads * shape.head_dim)?;
        same(v.cols, k.cols)?;
        rope.check(shape.head_dim)?;
        let tokens = step.host.tokens().len();
        let angles = self.angles(step, rope)?;
        self.place(step, kv, shape)?;
        let places = step.places.borrow();
        let slots = places.as_ref().map_or(0, Places::slots);
        let args = args![
            q.at(tokens)?,
            k.at(tokens)?,
            v.at(tokens)?,
            kv.data.address(),
            angles,
            slots,
            shape.heads as u32,
            shape.kv_heads as u32,
            shape.head_dim as u32,
            rope.inverse_frequencies.len() as u32,
            u32::from(rope.half_split),
            kv.layers as u32,
            layer as u32,
            kv.block_size as u32
        ];
        self.launch(self.kernels.rope_kv_write, [tokens, 1], 256, args)
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
        kv.check(layer, shape, &step.host)?;
        same(q.cols, shape.heads * shape.head_dim)?;
        same(out.cols, q.cols)?;
        let tokens = step.host.tokens().len();
        let (q, out) = (q.at(tokens)?, out.at(tokens)?);
        self.place(step, kv, shape)?;
        let places = step.places.borrow();
        let Some(places) = places.as_ref() else {
            return Err(Error::bug("a step's places just made are gone"));
        };
        let sizes = [
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            kv.layers,
            layer,
            kv.block_size,
            // A window that no position fills is none.
            if shape.window < 1 << 30 { shape.window } else { 0 },
        ];
        // `Shape` of attention.cu.
        let mut words = [0; 9];
        words[..7].copy_from_slice(&sizes.map(|size| size as u32));
        words[7..].copy_from_slice(&[shape.scale, shape.softcap].map(f32::to_bits));
        let [partials, states] = places.partials();
        let args = args![
            q,
            kv.data.address(),
            out,
            places.item_list(),
            places.tables(),
            partials,
            states,
            words
        ];
        self.launch(kv.attention, [places.items, shape.kv_heads], 128, args)?;
        let args = args![
            partials,
            states,
            places.merge_list(),
            out,
            shape.heads as u32,
            shape.head_dim as u32
        ];
        self.launch(kv.merge, [places.merges, shape.heads], kv.padded_dim as u32, args)
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
            Activation::Sigmoid => {
                return Err(Error::invalid(
                    "this backend lacks the gate of the model; load it with another backend",
                ));
            }
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
        let to = out.at(rows.len())?;
        let list = self.allocator.upload(step::OWNER, rows)?;
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
        let sources = self.allocator.upload(step::OWNER, &words)?;
        let args = args![step.tokens(), sources.address(), inputs.len() as u32];
        self.launch(self.kernels.take, [inputs.len().div_ceil(128), 1], 128, args)
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

fn same(a: usize, b: usize) -> Result<()> {
    if a == b {
        Ok(())
    } else {
        Err(Error::invalid(format!("shapes disagree: {a} and {b}")))
    }
}
