//! The CUDA backend: the kernels of `kernels/cuda` on NVIDIA cards, through the driver's own library, which is opened at
//! run time. Nothing of the CUDA toolkit is needed, neither to build nor to run.
//!
//! Everything on the card is on one ledger: the primary context, the memory pool, streams, events, graphs, modules, device
//! and pinned memory. A sweep first releases what the backend has for itself, then the pools of models whose object was
//! never dropped, then what is left, and the context at last, if nothing is left in it; else it goes with the backend.

mod cards;
mod context;
mod error;
mod graph;
mod kv;
mod launch;
mod memory;
mod modules;
mod ops;
mod pool;
pub mod ptx;
mod sample;
mod state;
mod step;
mod upload;
mod weight;
mod work;
mod workspace;

pub use ops::CudaOps;

use context::Context;
use met_backend_api::{
    DeviceInfo, Error, LedgerEntry, MemoryInfo, ModelSpec, OpenSpec, ProbeReport, SweepReport, SweptEntry,
    abi_stable::std_types::Tuple2,
    sdk::{Backend, BackendModel, Host},
};
use met_kernels::Ledger;
use met_model::{LoadedModel, convert};
use std::{
    cell::RefCell,
    rc::{Rc, Weak},
};

type Model = LoadedModel<CudaOps>;

/// An opened card.
pub struct CudaBackend {
    host: Host,
    info: DeviceInfo,
    ops: Rc<RefCell<CudaOps>>,
    ledger: Ledger,
    limit: u64,
    models: Vec<Weak<RefCell<Model>>>,
    context: Rc<Context>,
}

impl Backend for CudaBackend {
    type Model = Rc<RefCell<Model>>;
    const NAME: &'static str = "cuda";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");

    fn probe(_: &Host) -> Result<ProbeReport, Error> {
        Ok(match cards::start_driver().and_then(|()| cards::list()) {
            Ok((devices, others)) => ProbeReport {
                problem: match (devices.is_empty(), others.is_empty()) {
                    (false, _) => String::new(),
                    (true, true) => "the NVIDIA driver finds no card".to_owned(),
                    (true, false) => others.join("; "),
                }
                .into(),
                devices: devices.into(),
            },
            Err(problem) => ProbeReport {
                problem: problem.message.into(),
                ..ProbeReport::default()
            },
        })
    }

    /// There are no options.
    fn open(host: Host, spec: &OpenSpec) -> Result<Self, Error> {
        if let Some(Tuple2(name, _)) = spec.options.first() {
            return Err(Error::invalid(format!("the CUDA backend has no option `{name}`")));
        }
        let ledger = Ledger::with_limit(spec.memory_limit);
        let open = || {
            cards::start_driver()?;
            let info = cards::find(spec.device)?;
            let context = Context::open(spec.device, &ledger)?;
            Ok((info, CudaOps::on(context.clone(), &ledger)?, context))
        };
        let (info, ops, context) = open().map_err(convert::error)?;
        Ok(Self {
            host,
            info,
            ops: Rc::new(RefCell::new(ops)),
            ledger,
            limit: spec.memory_limit,
            models: Vec::new(),
            context,
        })
    }

    fn info(&self) -> Result<DeviceInfo, Error> {
        Ok(self.info.clone())
    }

    fn memory(&self) -> Result<MemoryInfo, Error> {
        let (ledger_bytes, ledger_count) = self.ledger.total();
        let (free, total) = self.context.memory().map_err(convert::error)?;
        let allowed = match self.limit {
            0 => u64::MAX,
            limit => limit.saturating_sub(ledger_bytes),
        };
        Ok(MemoryInfo {
            free: free.min(allowed),
            total,
            ledger_bytes,
            ledger_count,
        })
    }

    fn ledger(&self) -> Result<Vec<LedgerEntry>, Error> {
        Ok(convert::ledger(&self.ledger))
    }

    fn load_model(&mut self, spec: &ModelSpec) -> Result<Self::Model, Error> {
        let model = LoadedModel::load(self.ops.clone(), &self.host, spec, || {
            self.memory().map_or(0, |memory| memory.free)
        });
        self.models.retain(|model| model.strong_count() > 0);
        let model = model.map_err(|error| {
            if self.models.is_empty()
                && let Err(e) = self.ops.borrow_mut().forget_models()
            {
                met_backend_api::event!(Error, "after a failed load: {e}");
            }
            convert::error(error)
        })?;
        let model = Rc::new(RefCell::new(model));
        self.models.push(Rc::downgrade(&model));
        Ok(model)
    }

    fn synchronize(&mut self, stream: u32) -> Result<(), Error> {
        self.ops.borrow().wait(stream).map_err(convert::error)
    }

    fn sweep_unreleased(&mut self) -> Result<SweepReport, Error> {
        if let Err(e) = self.ops.borrow_mut().shutdown() {
            met_backend_api::event!(Error, "the CUDA backend's own resources: {e}");
        }
        let own = self.ops.borrow().serials();
        let mut found = self.ledger.entries();
        found.retain(|entry| !own.contains(&entry.serial));
        for model in self.models.drain(..).filter_map(|model| model.upgrade()) {
            // What it fails to release is swept below.
            model.borrow_mut().release_pools()?;
        }
        let mut report = SweepReport {
            count: found.len() as u64,
            bytes: found.iter().map(|entry| entry.bytes).sum(),
            ..SweepReport::default()
        };
        // The youngest first: what others depend on was made before them.
        for entry in found.into_iter().rev() {
            let is_live = self.ledger.holds(entry.serial);
            let error = is_live.then(|| self.ledger.release(entry.serial).err()).flatten();
            report.failures += u64::from(error.is_some());
            report.entries.push(SweptEntry {
                entry: convert::entry(entry),
                error: error.map(convert::error).into(),
            });
        }
        // What all that was made in goes last, and is told of where it fails.
        let own = self.ledger.entries();
        for (serial, error) in self.ops.borrow_mut().close() {
            let entry = own.iter().find(|entry| entry.serial == serial).cloned();
            report.count += 1;
            report.failures += 1;
            report.entries.extend(entry.map(|entry| SweptEntry {
                entry: convert::entry(entry),
                error: Some(convert::error(error)).into(),
            }));
        }
        Ok(report)
    }
}

impl Drop for CudaBackend {
    /// Gives back what the backend has for itself while the context is there, also where a model's object outlives it.
    fn drop(&mut self) {
        if let Err(e) = self.ops.borrow_mut().shutdown() {
            met_backend_api::event!(Error, "the CUDA backend's own resources: {e}");
        }
    }
}

met_backend_api::export_backend!(CudaBackend);
