//! The operations on a card: they check shapes and start kernels on one stream.

mod attention;
mod calls;
mod common;
mod experts;
mod linear;
mod recurrent;
mod tensor;

pub use tensor::{Tensor, Vector};

use crate::{
    context::{Context, Stream},
    graph::Graphs,
    launch::{Arg, Launches},
    memory::Allocator,
    modules::{Kernel, Modules},
    pool::Pool,
    sample::Slots,
    upload::Staging,
    workspace::Workspace,
};
use common::Common;
use met_kernels::{Error, Ledger, Result, Serial};
use std::rc::Rc;
use tensor::same;

/// The CUDA implementation of [`Ops`](met_kernels::Ops), on one card and thread.
#[derive(Debug)]
pub struct CudaOps {
    staging: Option<Staging>,
    slots: Slots,
    kernels: Common,
    modules: Modules,
    workspace: Rc<Workspace>,
    graphs: Graphs,
    /// The launches of a decode's layers, while they are noted.
    noted: Option<Launches>,
    prefill: Rc<Stream>,
    stream: Rc<Stream>,
    allocator: Allocator,
}

impl CudaOps {
    /// On the `ordinal`-th card.
    pub fn new(ordinal: u32, ledger: &Ledger) -> Result<Self> {
        Self::on(Context::open(ordinal, ledger)?, ledger)
    }

    pub(crate) fn on(context: Rc<Context>, ledger: &Ledger) -> Result<Self> {
        let pool = context
            .has_pool
            .then(|| Pool::new(&context, ledger))
            .transpose()?;
        let stream = Rc::new(Stream::new(ledger)?);
        let prefill = Rc::new(Stream::new(ledger)?);
        let mut modules = Modules::new(ledger);
        Ok(Self {
            kernels: Common::new(&mut modules)?,
            staging: Some(Staging::new(ledger)?),
            slots: Slots::default(),
            allocator: Allocator {
                pool: pool.map(Rc::new),
                stream: stream.clone(),
                ledger: ledger.clone(),
                context,
            },
            modules,
            workspace: Rc::default(),
            graphs: Graphs::new(ledger),
            noted: None,
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
        let released = self.release_workspace().map(|_| ());
        let unloaded = self.modules.unload_but(&[]);
        let closed = [self.stream.close(), self.prefill.close()];
        waited
            .and(released)
            .and(unloaded)
            .and(closed.into_iter().collect())
    }

    /// Gives the memory pool back, and the context where nothing is left in it. What failed comes with its error, and
    /// stays on the ledger. A second call does what the first one could not.
    pub(crate) fn close(&mut self) -> Vec<(Serial, Error)> {
        let Allocator {
            pool,
            context,
            ledger,
            ..
        } = &self.allocator;
        let mut failed = Vec::new();
        if let Some(pool) = pool
            && ledger.holds(pool.serial())
        {
            // What was freed in the order of a stream must be; whether it is, the pool knows.
            let waited = context.synchronize();
            let closed = pool.close().map_err(|e| waited.err().unwrap_or(e));
            failed.extend(closed.err().map(|e| (pool.serial(), e)));
        }
        let is_empty = ledger
            .entries()
            .iter()
            .all(|entry| entry.serial == context.serial());
        if is_empty {
            failed.extend(context.close().err().map(|e| (context.serial(), e)));
        }
        failed
    }

    /// Of the memory pool and the context: what [`close`](Self::close) gives back.
    pub(crate) fn serials(&self) -> Vec<Serial> {
        let Allocator { context, pool, .. } = &self.allocator;
        let pool = pool.as_ref().map(|pool| pool.serial());
        pool.into_iter().chain([context.serial()]).collect()
    }

    /// Unloads the kernels that were loaded for models. There must be no model.
    pub(crate) fn forget_models(&mut self) -> Result<()> {
        self.modules.unload_but(&Common::FILES)
    }

    /// Starts a kernel, or notes that it is to be.
    fn launch(&mut self, kernel: Kernel, grid: [usize; 2], block: u32, args: &[Arg]) -> Result<()> {
        if let Some(noted) = &mut self.noted {
            noted.push(kernel, grid, block, args);
            return Ok(());
        }
        // SAFETY: every caller below gives what the kernel's source takes, of sizes that were checked; what is freed
        // is freed in the order of the stream.
        unsafe { kernel.launch(&self.stream, grid, block, args) }
    }

    /// Does work whose launches may be started as one. Until then nothing that they use is freed: what the work takes
    /// is the step's.
    fn as_one(&mut self, work: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.noted = Some(Launches::default());
        let worked = work(self);
        let noted = self.noted.take().unwrap_or_default();
        worked?;
        // SAFETY: as in `launch`.
        unsafe { self.graphs.start(noted, &self.stream) }
    }

    /// Gives back what is there for the sake of activations, of which there are none. Returns the bytes.
    fn release_workspace(&mut self) -> Result<u64> {
        let graphs = self.graphs.release();
        let bytes = self.workspace.release()?;
        graphs.map(|()| bytes)
    }

    /// Starts a kernel of one thread an element.
    fn each(&mut self, kernel: Kernel, n: usize, args: &[Arg]) -> Result<()> {
        self.launch(kernel, [n.div_ceil(256), 1], 256, args)
    }
}
