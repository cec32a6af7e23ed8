//! A backend that does as a script says: the tests' main instrument, and the smallest example of a backend.
//!
//! The model file is any GGUF with the metadata text `scripted.script` (see [`script`]); the option `script`
//! of `open` gives the text directly, for calls before a model is loaded. Its "KV cache" holds the tokens
//! themselves, and the next token is a hash of all tokens that the block table leads to: a wrong block,
//! position or repetition shows in the output. With `set state_slots N` it has a "recurrent state" too.

mod model;
pub mod record;
pub mod script;
mod stage;
mod states;

pub use model::ScriptedModel;

use met_backend_api::{
    DeviceInfo, Error, LedgerEntry, MemoryInfo, ModelSpec, OpenSpec, ProbeReport, SweepReport, SweptEntry,
    abi_stable::std_types::{ROption, Tuple2},
    sdk::{Backend, Host},
};
use met_model::{checkpoint::Checkpoint, convert};
use script::Script;
use stage::Stage;

const MEMORY: u64 = 16 << 30;

/// The opened "device".
pub struct ScriptedBackend {
    host: Host,
    stage: Stage,
}

impl Backend for ScriptedBackend {
    type Model = ScriptedModel;
    const NAME: &'static str = "scripted";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");

    fn probe(_: &Host) -> Result<ProbeReport, Error> {
        Ok(ProbeReport {
            devices: vec![device()].into(),
            ..ProbeReport::default()
        })
    }

    fn open(host: Host, spec: &OpenSpec) -> Result<Self, Error> {
        let stage = Stage::default();
        for Tuple2(name, value) in &spec.options {
            match name.as_str() {
                "script" => stage.play(Script::parse(value).map_err(Error::invalid)?),
                _ => {
                    return Err(Error::invalid(format!(
                        "the scripted backend has no option '{name}'"
                    )));
                }
            }
        }
        stage.call("open")?;
        Ok(Self { host, stage })
    }

    fn info(&self) -> Result<DeviceInfo, Error> {
        self.stage.call("info")?;
        Ok(device())
    }

    fn memory(&self) -> Result<MemoryInfo, Error> {
        let nonsense = self.stage.call("memory")?;
        let (ledger_bytes, ledger_count) = self.stage.ledger().total();
        let free = if nonsense {
            u64::MAX
        } else {
            MEMORY.saturating_sub(ledger_bytes)
        };
        Ok(MemoryInfo {
            free,
            total: MEMORY,
            ledger_bytes,
            ledger_count,
        })
    }

    fn ledger(&self) -> Result<Vec<LedgerEntry>, Error> {
        self.stage.call("ledger")?;
        Ok(convert::ledger(&self.stage.ledger()))
    }

    fn load_model(&mut self, spec: &ModelSpec) -> Result<ScriptedModel, Error> {
        let checkpoint = Checkpoint::open(spec.path.as_str()).map_err(convert::error)?;
        if let Some(text) = checkpoint
            .metadata()
            .get::<&str>("scripted.script")
            .map_err(convert::error)?
        {
            self.stage.play(Script::parse(text).map_err(Error::invalid)?);
        }
        let identity = checkpoint.identity().map_err(convert::error)?;
        ScriptedModel::load(self.stage.clone(), &self.host, spec, identity)
    }

    fn synchronize(&mut self, _stream: u32) -> Result<(), Error> {
        self.stage.call("synchronize").map(drop)
    }

    fn sweep_unreleased(&mut self) -> Result<SweepReport, Error> {
        self.stage.call("sweep_unreleased")?;
        let ledger = self.stage.ledger();
        let mut report = SweepReport::default();
        for found in ledger.entries() {
            let error = ledger.strike(found.serial).err().map(convert::error);
            report.count += 1;
            report.bytes += found.bytes;
            report.failures += u64::from(error.is_some());
            report.entries.push(SweptEntry {
                entry: convert::entry(found),
                error: ROption::from(error),
            });
        }
        Ok(report)
    }
}

impl Drop for ScriptedBackend {
    fn drop(&mut self) {
        record::dropped(self.stage.settings().label, self.stage.ledger().total().0);
        dropped(&self.stage, "drop_backend");
    }
}

/// A drop can't return an error: what the script says instead of a panic is only logged.
fn dropped(stage: &Stage, call: &'static str) {
    if let Err(e) = stage.call(call) {
        met_backend_api::event!(Error, "{call}: {e}");
    }
}

fn device() -> DeviceInfo {
    DeviceInfo {
        index: 0,
        kind: "scripted".into(),
        name: "a device that does as a script says".into(),
        features: "".into(),
        total_memory: MEMORY,
        compute_units: 1,
    }
}

met_backend_api::export_backend!(ScriptedBackend);
