//! A backend that computes nothing: the next token is the last one plus one. The option `behaviour`
//! makes it misbehave in the ways that a loader must survive.

use met_backend_api::{
    Batch, DeviceInfo, Error, LedgerEntry, MemoryInfo, ModelInfo, ModelSpec, OpenSpec, ProbeReport,
    ReleaseReport, ReleaseStep, ResourceKind, ResourceReport, RowOutput, SweepReport, Ticket, TokenLogprob,
    Want,
    abi_stable::std_types::ROption,
    event, export_backend,
    sdk::{Backend, BackendModel, Host, Output},
};
use std::{cell::RefCell, collections::VecDeque, path::PathBuf, sync::mpsc, time::Duration};

const VOCABULARY: u32 = 256;
const WEIGHTS: u64 = 4096;
/// A path that ends in this cannot be loaded.
const NO_MODEL: &str = "missing.gguf";

export_backend!(Echo);

/// The device.
pub struct Echo {
    host: Host,
    panics_in: Option<&'static str>,
}

impl Backend for Echo {
    type Model = EchoModel;
    const NAME: &'static str = "echo";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");

    fn probe(_host: &Host) -> Result<ProbeReport, Error> {
        Ok(ProbeReport {
            devices: vec![device()].into(),
            ..ProbeReport::default()
        })
    }

    fn open(host: Host, spec: &OpenSpec) -> Result<Self, Error> {
        if spec.device != 0 {
            return Err(Error::invalid(format!(
                "there is no device {}; use 0",
                spec.device
            )));
        }
        let mut panics_in = None;
        for option in &spec.options {
            let (name, value) = (option.0.as_str(), option.1.as_str());
            match (name, value) {
                ("behaviour", "panic in open") => panic!("echo was told to panic"),
                ("behaviour", "panic in submit") => panics_in = Some("submit"),
                ("behaviour", "panic in drop") => panics_in = Some("drop"),
                ("behaviour", "thread-local with a destructor") => {
                    KEPT.with_borrow_mut(|kept| kept.push(1));
                }
                ("behaviour", "key with a destructor") => take_key()?,
                ("behaviour", "tell of a function") => {
                    let touch: extern "C" fn() = touch_thread_local;
                    return Err(Error::invalid(format!("{:x}", touch as usize)));
                }
                ("thread until", path) => keep_a_thread(PathBuf::from(path))?,
                _ => {
                    return Err(Error::invalid(format!("unknown option {name} = {value:?}")));
                }
            }
        }
        event!(Info, "opened device {}", spec.device);
        Ok(Self { host, panics_in })
    }

    fn info(&self) -> Result<DeviceInfo, Error> {
        Ok(device())
    }

    fn memory(&self) -> Result<MemoryInfo, Error> {
        Ok(MemoryInfo {
            free: 3,
            total: 7,
            ledger_bytes: 0,
            ledger_count: 0,
        })
    }

    fn ledger(&self) -> Result<Vec<LedgerEntry>, Error> {
        Ok(vec![LedgerEntry {
            serial: 1,
            kind: ResourceKind::Memory,
            owner: "weights".into(),
            bytes: WEIGHTS,
        }])
    }

    fn load_model(&mut self, spec: &ModelSpec) -> Result<EchoModel, Error> {
        if spec.path.ends_with(NO_MODEL) {
            return Err(Error::invalid(format!("{} does not exist", spec.path)));
        }
        for done in [0, WEIGHTS / 2, WEIGHTS] {
            if self.host.cancelled() {
                return Err(Error::cancelled());
            }
            self.host.progress("weights".into(), done, WEIGHTS);
        }
        Ok(EchoModel {
            panics: self.panics_in == Some("submit"),
            ..EchoModel::new()
        })
    }

    fn synchronize(&mut self, _stream: u32) -> Result<(), Error> {
        Ok(())
    }

    fn sweep_unreleased(&mut self) -> Result<SweepReport, Error> {
        Ok(SweepReport::default())
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        assert!(self.panics_in != Some("drop"), "echo was told to panic");
    }
}

/// The model.
pub struct EchoModel {
    panics: bool,
    released: bool,
    last: Ticket,
    steps: VecDeque<(Ticket, Vec<RowOutput>)>,
    spare: Vec<Vec<RowOutput>>,
}

impl EchoModel {
    /// A model, without the way through a device.
    pub fn new() -> Self {
        Self {
            panics: false,
            released: false,
            last: 0,
            steps: VecDeque::with_capacity(2),
            spare: Vec::new(),
        }
    }
}

impl Default for EchoModel {
    fn default() -> Self {
        Self::new()
    }
}

impl BackendModel for EchoModel {
    fn info(&self) -> Result<ModelInfo, Error> {
        Ok(ModelInfo {
            architecture: "echo".into(),
            name: "Echo".into(),
            vocab_size: VOCABULARY,
            context_length: 1024,
            block_size: 16,
            block_count: 64,
            max_rows: 64,
            max_batch_tokens: 512,
            max_in_flight: 2,
            ..ModelInfo::default()
        })
    }

    fn resources(&self) -> Result<Vec<ResourceReport>, Error> {
        Ok(vec![ResourceReport {
            label: "weights".into(),
            bytes: if self.released { 0 } else { WEIGHTS },
            allocations: u64::from(!self.released),
        }])
    }

    fn submit(&mut self, batch: &Batch<'_>) -> Result<Ticket, Error> {
        assert!(!self.panics, "echo was told to panic");
        let mut outputs = self.spare.pop().unwrap_or_default();
        outputs.clear();
        for row in batch.rows.iter() {
            let Some(last) = row.tokens.last() else {
                return Err(Error::invalid("a row without tokens"));
            };
            outputs.push(match row.want {
                Want::Token => RowOutput {
                    sampled: TokenLogprob {
                        token: (last + 1) % VOCABULARY,
                        logprob: 0.0,
                    },
                    ..RowOutput::default()
                },
                _ => RowOutput::default(),
            });
        }
        self.last += 1;
        self.steps.push_back((self.last, outputs));
        Ok(self.last)
    }

    fn collect(&mut self, ticket: Ticket, out: &mut Output<'_>) -> Result<(), Error> {
        match self.steps.pop_front() {
            Some((oldest, rows)) if oldest == ticket && rows.len() <= out.rows.len() => {
                out.rows[..rows.len()].copy_from_slice(&rows);
                self.spare.push(rows);
                Ok(())
            }
            _ => Err(Error::invalid(format!("{ticket} is not the oldest step"))),
        }
    }

    fn copy_blocks_out(&mut self, blocks: &[u32], data: &mut [u8]) -> Result<(), Error> {
        data.fill(blocks.len() as u8);
        Ok(())
    }

    fn copy_blocks_in(&mut self, _blocks: &[u32], _data: &[u8]) -> Result<(), Error> {
        Ok(())
    }

    fn release_pools(&mut self) -> Result<ReleaseReport, Error> {
        if std::mem::replace(&mut self.released, true) {
            return Ok(ReleaseReport::default());
        }
        Ok(ReleaseReport {
            steps: vec![ReleaseStep {
                label: "weights".into(),
                bytes: WEIGHTS,
                error: ROption::RNone,
            }]
            .into(),
        })
    }
}

fn device() -> DeviceInfo {
    DeviceInfo {
        index: 0,
        kind: "echo".into(),
        name: "Echo".into(),
        features: "none".into(),
        total_memory: 7,
        compute_units: 1,
    }
}

thread_local! {
    static KEPT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// For a thread that the loader does not know of.
extern "C" fn touch_thread_local() {
    KEPT.with_borrow_mut(|kept| kept.push(1));
}

/// Starts a thread that nobody joins, which ends when the file `until` appears.
fn keep_a_thread(until: PathBuf) -> Result<(), Error> {
    let (started, wait) = mpsc::channel();
    std::thread::Builder::new()
        .name("echo-kept".to_owned())
        .spawn(move || {
            drop(started);
            while !until.exists() {
                std::thread::sleep(Duration::from_millis(2));
            }
        })
        .map_err(|e| Error::exhausted(format!("no thread: {e}")))?;
    let _: Result<(), mpsc::RecvError> = wait.recv();
    Ok(())
}

/// A key of the C library whose destructor lies in this library, with a value on this thread.
fn take_key() -> Result<(), Error> {
    unsafe extern "C" fn destructor(_value: *mut libc::c_void) {}
    let mut key = 0;
    // SAFETY: `key` is written before it is used; the value is never read.
    let failed = unsafe {
        libc::pthread_key_create(&mut key, Some(destructor)) != 0
            || libc::pthread_setspecific(key, std::ptr::dangling()) != 0
    };
    if failed {
        return Err(Error::exhausted("no key is left"));
    }
    Ok(())
}
