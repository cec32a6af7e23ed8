//! The engine of a generation: one thread that owns the device, the scheduler and every request's channel.
//!
//! ```text
//!  Engine (any thread) ── inbox ──▶ engine thread: Runner { Scheduler, DeviceIo } ── EventStream ──▶ client
//!                      ◀── board ──
//! ```
//!
//! - The engine thread alone calls the backend, from the load to the drop; it is joined by
//!   [`Engine::shutdown`], after which the library may be closed.
//! - Nobody waits for the engine thread but `shutdown` and `drain`, and these not for ever.

mod device;
mod inbox;
mod meter;
mod parked;
mod perform;
mod report;
mod run;
mod snapshot;
mod stream;
mod teardown;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use device::{DeviceIo, OpenFailure};
pub use report::{GivenUp, LedgerItem, Memory, ReleasedPool, Swept, TeardownReport, TeardownStep};
pub use snapshot::{EngineState, Snapshot};
pub use stream::EventStream;

use crate::{
    request::{Refused, Request},
    scheduler::{self, Limits, Scheduler},
};
use inbox::Inbox;
use met_backend_api::{DeviceInfo, Error, ErrorKind, ModelInfo};
use meter::Meter;
use run::Runner;
use snapshot::Board;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// The bounds of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Most requests in the line; the next one is refused.
    pub max_waiting: u32,
    /// Events that a request's channel holds; at least 8.
    pub channel: usize,
    /// How long a client may leave its channel full before its request is given up.
    pub slow_client: Duration,
    /// Bytes of host memory for the blocks of parked sequences.
    pub park_memory: u64,
    /// Bytes of temporary files for those that don't fit there.
    pub park_disk: u64,
    /// How long a session is kept after its last turn.
    pub session_ttl: Duration,
    /// Most sessions that are kept at a time.
    pub max_sessions: u32,
    /// How long the calls of a teardown may take together before it is reported as stuck.
    pub teardown: Duration,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            max_waiting: 512,
            channel: 256,
            slow_client: Duration::from_secs(30),
            park_memory: 1 << 30,
            park_disk: 4 << 30,
            session_ttl: scheduler::SESSION_TTL,
            max_sessions: scheduler::MAX_SESSIONS,
            teardown: Duration::from_secs(10),
        }
    }
}

/// What an engine serves. Constant for its life.
#[derive(Clone, Debug)]
pub struct EngineInfo {
    /// The served name.
    pub name: String,
    /// The device.
    pub device: DeviceInfo,
    /// The model.
    pub model: ModelInfo,
    /// What a request may be.
    pub limits: Limits,
}

/// How often whoever waits for a load is asked whether it still does.
const POLL: Duration = Duration::from_millis(10);

/// A handle on an engine; clones share it.
#[derive(Clone)]
pub struct Engine(Arc<Shared>);

struct Shared {
    info: EngineInfo,
    options: EngineOptions,
    inbox: Arc<Inbox>,
    board: Arc<Board>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// An engine whose device is being opened.
#[must_use = "without it, the engine is torn down as soon as it is loaded"]
pub struct Starting {
    outcome: mpsc::Receiver<Result<EngineInfo, StartFailure>>,
    options: EngineOptions,
    inbox: Arc<Inbox>,
    board: Arc<Board>,
    thread: JoinHandle<()>,
}

/// An engine that did not start.
#[derive(Debug)]
pub struct StartFailure {
    /// Why.
    pub error: Error,
    /// What became of what was opened; where patience ran out, it names the call that is `stuck`.
    pub teardown: Option<Box<TeardownReport>>,
}

impl From<Error> for StartFailure {
    fn from(error: Error) -> Self {
        Self {
            error,
            teardown: None,
        }
    }
}

impl Starting {
    /// Waits for the outcome for as long as `patient` says so, which is asked every few milliseconds. Where patience
    /// ran out the call is left to itself, on its thread, and what it takes is given back if it ever returns.
    pub fn wait_while(self, mut patient: impl FnMut() -> bool) -> Result<Engine, StartFailure> {
        let Self {
            outcome,
            options,
            inbox,
            board,
            thread,
        } = self;
        let outcome = loop {
            match outcome.recv_timeout(POLL) {
                Ok(outcome) => break outcome,
                Err(RecvTimeoutError::Disconnected) => {
                    break Err(Error::bug("opening the backend panicked").into());
                }
                Err(RecvTimeoutError::Timeout) if patient() => {}
                Err(RecvTimeoutError::Timeout) => {
                    let call = board.snapshot().call.map_or("load", |(call, _)| call);
                    let message = format!("the backend's call `{call}` did not come back");
                    return Err(StartFailure {
                        error: Error::new(ErrorKind::Cancelled, message),
                        teardown: Some(Box::new(TeardownReport {
                            stuck: Some(call.to_owned()),
                            ..TeardownReport::default()
                        })),
                    });
                }
            }
        };
        match outcome {
            Ok(info) => {
                let thread = Mutex::new(Some(thread));
                Ok(Engine(Arc::new(Shared {
                    info,
                    options,
                    inbox,
                    board,
                    thread,
                })))
            }
            Err(error) => {
                // It has given back what it had, and ends; its panic, where there was one, is the error.
                let _ = thread.join();
                Err(error)
            }
        }
    }
}

impl Engine {
    /// Starts an engine thread, opens and loads the device on it with `open`, and waits for the outcome.
    pub fn start(
        name: &str,
        options: EngineOptions,
        open: impl FnOnce() -> Result<Box<dyn DeviceIo>, OpenFailure> + Send + 'static,
    ) -> Result<Self, Error> {
        let started = Self::begin(name, options, open)?.wait_while(|| true);
        started.map_err(|failure| failure.error)
    }

    /// Starts an engine thread, which opens and loads the device with `open`. Progress and cancellation of the
    /// load are between `open` and whoever made it.
    pub fn begin(
        name: &str,
        options: EngineOptions,
        open: impl FnOnce() -> Result<Box<dyn DeviceIo>, OpenFailure> + Send + 'static,
    ) -> Result<Starting, Error> {
        let inbox = Arc::new(Inbox::new(options.max_waiting, options.channel.max(8)));
        let board = Arc::new(Board::default());
        let (loaded, outcome) = mpsc::sync_channel(1);
        let life = Life {
            name: name.into(),
            options,
            inbox: Arc::clone(&inbox),
            board: Arc::clone(&board),
        };
        let thread = std::thread::Builder::new()
            .name(format!("engine {name}"))
            .spawn(move || life.run(open, &loaded))
            .map_err(|error| Error::exhausted(format!("no thread for the engine of {name:?}: {error}")))?;
        Ok(Starting {
            outcome,
            options,
            inbox,
            board,
            thread,
        })
    }

    /// What it serves.
    pub fn info(&self) -> &EngineInfo {
        &self.0.info
    }

    /// Takes a request in, or says at once why not. Never waits.
    pub fn submit(&self, request: Request) -> Result<EventStream, Refused> {
        let streams = self.submit_all(vec![request]).map_err(|(refused, _)| refused)?;
        // One for each request.
        streams.into_iter().next().ok_or(Refused::Draining)
    }

    /// Takes requests in, all of them or none, and gives a stream for each; or says at once why not, and gives
    /// them back. Never waits.
    pub fn submit_all(&self, requests: Vec<Request>) -> Result<Vec<EventStream>, (Refused, Vec<Request>)> {
        let checked = requests
            .iter()
            .try_for_each(|request| self.0.info.limits.check(request));
        match checked {
            Ok(()) => self.0.inbox.submit(requests),
            Err(refused) => Err((refused, requests)),
        }
    }

    /// Whether it takes requests. Never waits for the engine thread.
    pub fn is_open(&self) -> bool {
        !self.0.inbox.is_closed()
    }

    /// Whether the engine thread makes no call of the backend any more.
    pub fn has_ended(&self) -> bool {
        self.0.board.has_ended()
    }

    /// Refuses new requests, and ends each that it has with [`Event::Moved`](crate::request::Event::Moved):
    /// it is to go on in another generation. Does not wait for that.
    pub fn move_out(&self) {
        self.0.inbox.move_out();
    }

    /// Its present state. Never waits for the engine thread.
    pub fn snapshot(&self) -> Snapshot {
        self.0.board.snapshot()
    }

    /// Refuses new requests and waits, for at most `deadline`, until no request is left. Returns whether
    /// that is so. Blocks the calling thread.
    pub fn drain(&self, deadline: Duration) -> bool {
        self.0.inbox.close();
        self.0.board.wait_empty(deadline)
    }

    /// Refuses new requests, finishes those it has until `deadline`, gives up the rest, tears the device
    /// down and joins the engine thread. A second call returns the same report. Blocks the calling thread.
    ///
    /// Where a call of the backend doesn't come back, the report says which is `stuck`; the thread is left
    /// to itself then, and the library must stay mapped.
    pub fn shutdown(&self, deadline: Duration) -> TeardownReport {
        let now = Instant::now();
        let patience = deadline.saturating_add(self.0.options.teardown);
        self.0.inbox.stop(now.checked_add(deadline).unwrap_or(now));
        let report = self.0.board.wait_report(patience);
        if report.stuck.is_none()
            && let Some(thread) = self
                .0
                .thread
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take()
            && thread.join().is_err()
        {
            tracing::error!(
                engine = self.0.info.name,
                "the engine thread panicked after its teardown"
            );
        }
        report
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner);
        if thread.is_some() {
            tracing::warn!(
                engine = self.info.name,
                "dropped without a shutdown; it tears itself down"
            );
            self.inbox.stop(Instant::now());
        }
    }
}

/// What the engine thread starts with.
struct Life {
    name: String,
    options: EngineOptions,
    inbox: Arc<Inbox>,
    board: Arc<Board>,
}

impl Life {
    fn run(
        self,
        open: impl FnOnce() -> Result<Box<dyn DeviceIo>, OpenFailure>,
        loaded: &mpsc::SyncSender<Result<EngineInfo, StartFailure>>,
    ) {
        let opened = self.board.calling("load", open);
        let checked = opened.and_then(|device| match Limits::of(device.model()) {
            Ok(mut limits) => {
                limits.session_ttl = self.options.session_ttl;
                limits.max_sessions = self.options.max_sessions;
                Ok((device, limits))
            }
            Err(problem) => Err(OpenFailure {
                error: Error::bug(problem),
                device: Some(device),
            }),
        });
        let (device, limits) = match checked {
            Ok(checked) => checked,
            Err(OpenFailure { error, device }) => {
                let torn_down = device.map(|device| teardown::tear_down(device, &self.board));
                self.board.set_ended();
                let teardown = torn_down.map(|()| Box::new(self.board.wait_report(Duration::ZERO)));
                told(loaded, Err(StartFailure { error, teardown }));
                return;
            }
        };
        let info = EngineInfo {
            name: self.name.clone(),
            device: device.device().clone(),
            model: device.model().clone(),
            limits,
        };
        let meter = Meter::new(&self.name);
        let mut runner = Runner::new(
            device,
            Scheduler::new(limits),
            &self.inbox,
            &self.board,
            meter,
            self.options,
        );
        runner.begin();
        if !told(loaded, Ok(info)) {
            self.inbox.stop(Instant::now());
        }
        let served = catch_unwind(AssertUnwindSafe(|| runner.serve()));
        self.inbox.close();
        teardown::shut_down(&mut runner, served.is_ok());
        teardown::tear_down(runner.device, &self.board);
        self.board.set_ended();
    }
}

/// Tells whoever waits for the load. False where nobody does any more.
fn told(
    loaded: &mpsc::SyncSender<Result<EngineInfo, StartFailure>>,
    outcome: Result<EngineInfo, StartFailure>,
) -> bool {
    loaded.send(outcome).is_ok()
}
