//! The CPU backend.
//!
//! All memory, threads included, is on one ledger. A sweep first joins the threads, then releases the pools of
//! models whose object was never dropped, which puts those objects out of use, then frees what is left.

mod system;

use met_backend_api::{
    DeviceInfo, Error, LedgerEntry, MemoryInfo, ModelSpec, OpenSpec, ProbeReport, SweepReport, SweptEntry,
    abi_stable::std_types::Tuple2,
    sdk::{Backend, BackendModel, Host},
};
use met_kernels::{
    Kind, Ledger,
    cpu::{CpuOps, Isa},
};
use met_model::{LoadedModel, convert};
use std::{
    cell::RefCell,
    rc::{Rc, Weak},
};

type Model = LoadedModel<CpuOps>;

/// More threads than any machine has cores.
const MAX_THREADS: u32 = 1024;

/// The opened CPU.
pub struct CpuBackend {
    host: Host,
    ops: Rc<RefCell<CpuOps>>,
    ledger: Ledger,
    limit: u64,
    models: Vec<Weak<RefCell<Model>>>,
}

impl Backend for CpuBackend {
    type Model = Rc<RefCell<Model>>;
    const NAME: &'static str = "cpu";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");

    fn probe(_: &Host) -> Result<ProbeReport, Error> {
        Ok(match system::memory() {
            Ok(_) => ProbeReport {
                devices: vec![device(Isa::best())].into(),
                ..ProbeReport::default()
            },
            Err(problem) => ProbeReport {
                problem: problem.message,
                ..ProbeReport::default()
            },
        })
    }

    /// Options: `isa` names the instruction set (`portable`, `avx2`, `avx512`) in place of the best one.
    fn open(host: Host, spec: &OpenSpec) -> Result<Self, Error> {
        if spec.device != 0 {
            return Err(Error::invalid(format!(
                "there is no device {}; the CPU is device 0",
                spec.device
            )));
        }
        if spec.threads > MAX_THREADS {
            return Err(Error::invalid(format!(
                "{} threads are asked for, but at most {MAX_THREADS} are possible",
                spec.threads
            )));
        }
        let isa = isa(spec)?;
        let threads = match spec.threads {
            0 => system::cores(),
            n => n as usize,
        };
        let ledger = Ledger::with_limit(spec.memory_limit);
        let ops = CpuOps::with_isa(threads, ledger.clone(), isa).map_err(convert::error)?;
        Ok(Self {
            host,
            ops: Rc::new(RefCell::new(ops)),
            ledger,
            limit: spec.memory_limit,
            models: Vec::new(),
        })
    }

    fn info(&self) -> Result<DeviceInfo, Error> {
        Ok(device(self.ops.borrow().isa()))
    }

    fn memory(&self) -> Result<MemoryInfo, Error> {
        let (ledger_bytes, ledger_count) = self.ledger.total();
        let system = system::memory()?;
        let allowed = match self.limit {
            0 => u64::MAX,
            limit => limit.saturating_sub(ledger_bytes),
        };
        Ok(MemoryInfo {
            free: system.free.min(allowed),
            total: system.total,
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
        let model = Rc::new(RefCell::new(model.map_err(convert::error)?));
        self.models.retain(|model| model.strong_count() > 0);
        self.models.push(Rc::downgrade(&model));
        Ok(model)
    }

    fn synchronize(&mut self, _stream: u32) -> Result<(), Error> {
        // Nothing runs between two calls.
        Ok(())
    }

    fn sweep_unreleased(&mut self) -> Result<SweepReport, Error> {
        let threads = self.ops.borrow_mut().shutdown();
        let found = self.ledger.entries();
        for model in self.models.drain(..).filter_map(|model| model.upgrade()) {
            // What it fails to release is swept below.
            model.borrow_mut().release_pools()?;
        }
        let failed: Vec<_> = self
            .ledger
            .sweep()
            .into_iter()
            .filter_map(|swept| Some((swept.entry.serial, swept.error?)))
            .collect();
        let entries = found.into_iter().map(|entry| {
            let error = failed.iter().find(|(serial, _)| *serial == entry.serial);
            // A thread that couldn't be joined says why.
            let error = match (entry.kind, &threads) {
                (Kind::Thread, Err(e)) => Some(e.clone()),
                _ => error.map(|(_, e)| e.clone()),
            };
            SweptEntry {
                entry: convert::entry(entry),
                error: error.map(convert::error).into(),
            }
        });
        let entries: Vec<_> = entries.collect();
        Ok(SweepReport {
            count: entries.len() as u64,
            bytes: entries.iter().map(|swept| swept.entry.bytes).sum(),
            failures: entries.iter().filter(|swept| swept.error.is_some()).count() as u64,
            entries: entries.into(),
        })
    }
}

impl Drop for CpuBackend {
    /// Joins the threads, also where a model's object outlives the backend: none may run code of a library that
    /// is about to be closed.
    fn drop(&mut self) {
        if let Err(e) = self.ops.borrow_mut().shutdown() {
            met_backend_api::event!(Error, "the CPU backend's threads: {e}");
        }
    }
}

fn isa(spec: &OpenSpec) -> Result<Isa, Error> {
    let mut isa = Isa::detect().map_err(convert::error)?;
    for Tuple2(name, value) in &spec.options {
        match name.as_str() {
            "isa" => isa = Isa::named(value).map_err(convert::error)?,
            _ => {
                return Err(Error::invalid(format!(
                    "the CPU backend has no option `{name}`; it has `isa`"
                )));
            }
        }
    }
    Ok(isa)
}

fn device(isa: Isa) -> DeviceInfo {
    DeviceInfo {
        index: 0,
        kind: "cpu".into(),
        name: system::processor().into(),
        features: isa.name().into(),
        total_memory: system::memory().map_or(0, |memory| memory.total),
        compute_units: system::cores() as u32,
    }
}

met_backend_api::export_backend!(CpuBackend);
