//! A slot that goes to the simulated card and back, and the clients that stream from it.

use crate::{
    libraries::stripped,
    model::{TempFile, VOCAB, one_layer},
    simulator::{Holdings, Simulator, simulator},
};
use futures_util::StreamExt;
use met_backend_api::{ModelSpec, OpenSpec};
use met_host::{
    engine::EngineOptions,
    loader::{BackendSource, Builtins},
    request::{Event, Request},
    slot::{
        LoadSpec, RequestStream, Slots,
        swap::{Order, Outcome, Subject, Supervisor, SwapEvent, SwapOrder, SwapReport, Verb},
    },
};
use met_tests::Bytes;
use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::{runtime::Runtime, sync::watch, task::JoinHandle};

/// How long any single thing may take before the test says that it hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// Of an answer: more than a client's channel and the steps under way hold, so that it lasts until its client reads on.
pub const TOKENS: u32 = 16;
const CLIENTS: u32 = 2;
/// Events that a client's channel holds.
const CHANNEL: usize = 8;

/// Where a generation computes.
#[derive(Clone, Copy)]
pub enum On {
    /// By the backend that is built in.
    Cpu,
    /// By the CUDA backend's library.
    Card,
}

/// A slot, and the card that it is swapped to.
pub struct World {
    runtime: Runtime,
    supervisor: Arc<Supervisor<Bytes>>,
    pub simulator: &'static Simulator,
    model: TempFile,
    /// The CUDA backend's.
    library: PathBuf,
    _folder: TempDir,
}

pub type Client = JoinHandle<Vec<Event>>;

impl World {
    /// A slot that the CPU backend serves.
    pub fn new() -> Self {
        let simulator = simulator();
        assert_eq!(simulator.alive(), Holdings::default(), "what was there before");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let folder = tempfile::tempdir().expect("a folder");
        let world = Self {
            runtime,
            supervisor: Supervisor::new(Arc::new(Slots::new())),
            simulator,
            model: one_layer(),
            library: stripped("libmet_cuda.so", folder.path()),
            _folder: folder,
        };
        let loaded = world.perform(Order::Load(world.order(On::Cpu)));
        assert_eq!(loaded.outcome, Outcome::Loaded, "{loaded:?}");
        world
    }

    /// To load its model.
    pub fn order(&self, on: On) -> SwapOrder {
        let builtins = Builtins::default().with("cpu", met_cpu::root_module);
        let source = match on {
            On::Cpu => "builtin:cpu".into(),
            On::Card => self.library.to_string_lossy(),
        };
        SwapOrder::new(LoadSpec {
            backend: BackendSource::parse(&source, &builtins).expect("a backend"),
            device: OpenSpec {
                threads: 1,
                ..OpenSpec::default()
            },
            model: ModelSpec {
                path: self.model.path().into(),
                max_rows: 4,
                max_batch_tokens: 64,
                kv_bytes: 1 << 20,
                ..ModelSpec::default()
            },
            engine: EngineOptions {
                channel: CHANNEL,
                ..EngineOptions::default()
            },
            deadline: LIMIT,
        })
    }

    fn perform(&self, order: Order) -> SwapReport {
        let begun = self
            .supervisor
            .begin("chat", order)
            .expect("the slot is not busy");
        let report = self
            .runtime
            .block_on(async { tokio::time::timeout(LIMIT, begun.report).await });
        report.expect("a swap ends").expect("a swap reports")
    }

    /// Swaps it.
    pub fn swap(&self, order: SwapOrder) -> SwapReport {
        self.perform(Order::Swap(order))
    }

    /// Swaps while clients' answers are under way: each has begun, and reads on once the swap waits for it.
    pub fn swap_under_load(&self, order: SwapOrder) -> (SwapReport, Vec<Client>) {
        let (open, gate) = watch::channel(false);
        let (begun, ready) = std::sync::mpsc::channel();
        let clients = (0..CLIENTS)
            .map(|client| {
                let (supervisor, mut gate, begun) =
                    (Arc::clone(&self.supervisor), gate.clone(), begun.clone());
                self.runtime.spawn(async move {
                    let mut stream = ask(&supervisor, client, TOKENS).await.expect("it serves");
                    let mut events = Vec::new();
                    while let Some(event) = stream.next().await {
                        events.push(event);
                        if events.len() == 3 {
                            begun.send(()).expect("it is waited for");
                            gate.wait_for(|open| *open).await.expect("it is opened");
                        }
                    }
                    events
                })
            })
            .collect();
        for _ in 0..CLIENTS {
            ready.recv_timeout(LIMIT).expect("every client gets tokens");
        }
        let mut events = self.supervisor.subscribe();
        let opener = self.runtime.spawn(async move {
            loop {
                match events.recv().await.expect("a swap ends") {
                    SwapEvent::Ended(_) => break,
                    SwapEvent::StepBegun { step, .. }
                        if step.verb == Verb::Drain && step.of == Subject::Incumbent =>
                    {
                        break;
                    }
                    _ => {}
                }
            }
            open.send(true).expect("clients wait");
            // Kept until every client has looked.
            open
        });
        let report = self.swap(order);
        self.runtime.block_on(opener).expect("no panic");
        (report, clients)
    }

    /// All events of some clients.
    pub fn ends(&self, clients: Vec<Client>) -> Vec<Vec<Event>> {
        let end = |client: Client| {
            let ended = self
                .runtime
                .block_on(async { tokio::time::timeout(LIMIT, client).await });
            ended.expect("every stream ends").expect("no panic")
        };
        clients.into_iter().map(end).collect()
    }

    /// All events of a request to what serves now.
    pub fn answer(&self, tokens: u32) -> Vec<Event> {
        self.runtime.block_on(async {
            let stream = ask(&self.supervisor, 0, tokens).await.expect("it serves");
            tokio::time::timeout(LIMIT, stream.collect())
                .await
                .expect("it ends")
        })
    }

    /// Device memory that is held: what the ledger of what serves now says, and the card as well. The engine reads the
    /// ledger now and then, and may last have read it in the middle of a step; the card has to be idle.
    pub fn agreed_bytes(&self) -> u64 {
        let slot = self.supervisor.slots().get("chat").expect("it is there");
        let serving = slot.current().expect("it serves");
        let began = Instant::now();
        loop {
            let calls = self.simulator.calls();
            let ledger = serving.engine().snapshot().ledger;
            let memory = ledger.iter().filter(|item| item.kind == "memory");
            let held: u64 = memory.map(|item| item.bytes).sum();
            let live = self.simulator.alive().memory;
            std::thread::sleep(Duration::from_millis(20));
            if held == live && self.simulator.calls() == calls {
                return held;
            }
            assert!(
                began.elapsed() < LIMIT,
                "the ledger says {held}, the card {live}: {ledger:?}"
            );
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.supervisor.shutdown(LIMIT);
    }
}

/// Whether an answer has all its tokens and its end.
pub fn is_whole(events: &[Event], tokens: u32) -> Result<(), String> {
    let given = events
        .iter()
        .filter(|event| matches!(event, Event::Token(_)))
        .count();
    match (given as u32, events.last()) {
        (given, Some(Event::Finished(_))) if given == tokens => Ok(()),
        (given, last) => Err(format!("gave {given} of {tokens} tokens and ended with {last:?}")),
    }
}

async fn ask(
    supervisor: &Supervisor<Bytes>,
    client: u32,
    tokens: u32,
) -> Result<RequestStream<Bytes>, String> {
    let entered = supervisor.slots().enter("chat").await;
    let request = Request {
        prompt: (0..20 + client).map(|at| (at + 7 * client) % VOCAB).collect(),
        max_tokens: tokens,
        ..Request::default()
    };
    let streams = entered
        .map_err(|error| error.to_string())?
        .submit(vec![request])
        .map_err(|error| error.to_string())?;
    streams.into_iter().next().ok_or_else(|| "no stream".to_owned())
}
