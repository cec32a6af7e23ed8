//! Driver calls that fail while a CUDA generation is loaded, tried, used and torn down. Whichever it is, the slot
//! serves, every request has its end, the report is true, and the card is empty in the end. One test, since it watches
//! the process's one simulated card.

use crate::simulator::{Code, Simulator, library, simulator};
use futures_util::StreamExt;
use met_backend_api::{ModelSpec, OpenSpec};
use met_host::{
    engine::EngineOptions,
    loader::{BackendSource, Builtins},
    request::{Event, Request, Sampling},
    slot::{
        LoadSpec, RequestStream, Slots,
        swap::{InFlight, Order, Outcome, Plan, Subject, Supervisor, SwapEvent, SwapOrder, SwapReport, Verb},
    },
};
use met_tests::Bytes;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{runtime::Runtime, sync::watch, task::JoinHandle};

/// How long any single thing may take before the test says that it hangs.
const LIMIT: Duration = Duration::from_secs(60);
const TOKENS: u32 = 24;
const CLIENTS: u32 = 2;
/// Events that a client's channel holds: fewer than a request has, so that it lasts until its client reads on.
const CHANNEL: usize = 8;

const CPU: &str = "builtin:cpu";
const CODES: [Code; 3] = [Code::InvalidValue, Code::OutOfMemory, Code::LaunchFailed];

/// When a call fails.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// While the generation is loaded and tried, and takes requests over.
    Arrival,
    /// While it computes a request.
    Service,
    /// While it is torn down.
    Departure,
}

/// One life of a slot in which the `n`-th call of a phase fails.
#[derive(Clone, Copy, Debug)]
struct Case {
    phase: Phase,
    n: u64,
    code: Code,
    plan: Plan,
    in_flight: InFlight,
}

/// A slot, and the card that its second generation is on.
struct World {
    runtime: Runtime,
    supervisor: Arc<Supervisor<Bytes>>,
    simulator: &'static Simulator,
}

type Client = JoinHandle<Vec<Event>>;

#[test]
fn whichever_driver_call_fails_the_slot_serves_and_the_card_is_empty_in_the_end() {
    let calls = [InFlight::Finish, InFlight::Carry].map(undisturbed);
    let [arrival, service, departure] = calls[0];
    assert!(arrival > 100 && service > 20 && departure > 20, "{calls:?}");
    let cases = cases(Phase::Arrival, arrival, 24)
        .chain(cases(Phase::Service, service, 6))
        .chain(cases(Phase::Departure, departure, 18));
    let (mut struck, mut failed) = (0, 0);
    for case in cases {
        let (has_struck, outcome) = disturbed(case);
        struck += u32::from(has_struck);
        failed += u32::from(outcome != Outcome::Swapped);
    }
    assert!(
        struck >= 40 && failed >= 10,
        "{struck} failures struck, {failed} swaps failed"
    );
}

/// Calls of a phase at equal distances, about `count` of them.
fn cases(phase: Phase, calls: u64, count: u64) -> impl Iterator<Item = Case> {
    let numbers = (1..=calls).step_by((calls / count).max(1) as usize);
    numbers.enumerate().map(move |(at, n)| Case {
        phase,
        n,
        code: CODES[at % CODES.len()],
        plan: [Plan::SideBySide, Plan::DrainFirst][at / CODES.len() % 2],
        in_flight: [InFlight::Finish, InFlight::Carry][at % 2],
    })
}

/// A swap to the card and back in which nothing fails. Returns the driver's calls of each phase.
fn undisturbed(in_flight: InFlight) -> [u64; 3] {
    let world = World::new();
    let (simulator, order) = (world.simulator, |to: &str| SwapOrder {
        in_flight,
        ..order(to)
    });
    simulator.reset();
    let (report, clients) = world.swap_under_load(order("libmet_cuda.so"));
    assert_eq!(report.outcome, Outcome::Swapped, "{report:?}");
    assert!(report.is_clean() && report.cancelled == 0, "{report:?}");
    for events in world.ends(clients) {
        is_whole(&events).unwrap_or_else(|problem| panic!("{problem}: {report:?}"));
    }
    let arrival = simulator.calls();
    let held = world.agreed_bytes();
    assert!(held > 0);

    is_whole(&world.answer()).expect("the card answers");
    let service = simulator.calls() - arrival;
    assert_eq!(world.agreed_bytes(), held, "a request keeps nothing");

    let report = world.swap(order(CPU));
    assert_eq!(report.outcome, Outcome::Swapped, "{report:?}");
    assert!(
        report.is_clean() && report.released.swept.count == 0,
        "{report:?}"
    );
    assert_eq!(library_state(&report), "unmapped", "{report:?}");
    let released: u64 = report.released.pools.iter().map(|pool| pool.pool.bytes).sum();
    assert_eq!(released, held, "what was on the card is what was released");
    assert_eq!(simulator.alive(), [], "after the unload");
    is_whole(&world.answer()).expect("the CPU answers");
    [arrival, service, simulator.calls() - service - arrival]
}

/// The same with a call that fails. Returns whether it was made, and how the swap to the card ended.
fn disturbed(case: Case) -> (bool, Outcome) {
    let world = World::new();
    let simulator = world.simulator;
    simulator.reset();
    let arm = |phase: Phase| {
        if std::mem::discriminant(&phase) == std::mem::discriminant(&case.phase) {
            simulator.fail(case.n, case.code);
        }
    };
    arm(Phase::Arrival);
    let arrival = SwapOrder {
        plan: Some(case.plan),
        in_flight: case.in_flight,
        ..order("libmet_cuda.so")
    };
    let (arrived, clients) = world.swap_under_load(arrival);
    let ends = world.ends(clients);
    let fails_while_serving = matches!(case.phase, Phase::Arrival) && arrived.outcome == Outcome::Swapped;
    for events in &ends {
        let is_well = is_whole(events).is_ok()
            || (fails_while_serving && matches!(events.last(), Some(Event::Failed(_))));
        assert!(is_well, "{case:?}: {:?}\n{arrived:?}", events.last());
    }
    is_true(&arrived).unwrap_or_else(|problem| panic!("{case:?}: {problem}: {arrived:?}"));
    if arrived.outcome != Outcome::Swapped {
        assert_eq!(
            simulator.alive(),
            [],
            "{case:?}: after a candidate that failed: {arrived:?}"
        );
        is_whole(&world.answer()).unwrap_or_else(|problem| panic!("{case:?}: the incumbent {problem}"));
    }

    arm(Phase::Service);
    if matches!(case.phase, Phase::Service) {
        // What its client is told is as it comes: the step may be made again, or the generation may be lost.
        let events = world.answer();
        assert!(
            matches!(events.last(), Some(Event::Finished(_) | Event::Failed(_))),
            "{case:?}: {events:?}"
        );
    }

    arm(Phase::Departure);
    let departed = world.swap(order(CPU));
    assert_eq!(departed.outcome, Outcome::Swapped, "{case:?}: {departed:?}");
    is_true(&departed).unwrap_or_else(|problem| panic!("{case:?}: {problem}: {departed:?}"));
    let has_struck = !simulator.is_armed();
    is_whole(&world.answer()).unwrap_or_else(|problem| panic!("{case:?}: the CPU {problem}"));
    assert_eq!(simulator.alive(), [], "{case:?}: in the end: {departed:?}");
    (has_struck, arrived.outcome)
}

fn library_state(report: &SwapReport) -> serde_json::Value {
    serde_json::to_value(&report.library).expect("JSON")["state"].take()
}

/// Whether a report says why something is not as it was asked to be, and names what is left.
fn is_true(report: &SwapReport) -> Result<(), &'static str> {
    let has_error = report.steps.iter().any(|step| step.error.is_some());
    if !report.is_as_asked() && report.error.is_none() {
        return Err("it does not say why");
    }
    if !report.is_clean() && !has_error {
        return Err("something is left, but every step is said to have succeeded");
    }
    if library_state(report) == "retained" {
        return Err("the library stays mapped");
    }
    let left = report
        .released
        .left
        .as_ref()
        .ok_or("the ledger could not be read")?;
    match left.iter().all(|item| !item.owner.is_empty()) {
        true => Ok(()),
        false => Err("something is left without an owner's name"),
    }
}

fn is_whole(events: &[Event]) -> Result<(), String> {
    let tokens = events
        .iter()
        .filter(|event| matches!(event, Event::Token(_)))
        .count();
    match (tokens as u32, events.last()) {
        (TOKENS, Some(Event::Finished(_))) => Ok(()),
        (tokens, last) => Err(format!("gave {tokens} tokens and ended with {last:?}")),
    }
}

impl World {
    /// A slot that the CPU backend serves.
    fn new() -> Self {
        let simulator = simulator();
        assert_eq!(simulator.alive(), [], "what was there before");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let world = Self {
            runtime,
            supervisor: Supervisor::new(Arc::new(Slots::new())),
            simulator,
        };
        let loaded = world.perform(Order::Load(order(CPU)));
        assert_eq!(loaded.outcome, Outcome::Loaded, "{loaded:?}");
        world
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

    fn swap(&self, order: SwapOrder) -> SwapReport {
        self.perform(Order::Swap(order))
    }

    /// Swaps while clients' answers are under way: each has begun, and reads on once the swap waits for it.
    fn swap_under_load(&self, order: SwapOrder) -> (SwapReport, Vec<Client>) {
        let (open, gate) = watch::channel(false);
        let (begun, ready) = std::sync::mpsc::channel();
        let clients = (0..CLIENTS)
            .map(|client| {
                let (supervisor, mut gate, begun) =
                    (Arc::clone(&self.supervisor), gate.clone(), begun.clone());
                self.runtime.spawn(async move {
                    let mut stream = ask(&supervisor, client).await.expect("it serves");
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

    fn ends(&self, clients: Vec<Client>) -> Vec<Vec<Event>> {
        let end = |client: Client| {
            let ended = self
                .runtime
                .block_on(async { tokio::time::timeout(LIMIT, client).await });
            ended.expect("every stream ends").expect("no panic")
        };
        clients.into_iter().map(end).collect()
    }

    /// All events of a request to what serves now.
    fn answer(&self) -> Vec<Event> {
        self.runtime.block_on(async {
            let stream = ask(&self.supervisor, 0).await.expect("it serves");
            tokio::time::timeout(LIMIT, stream.collect())
                .await
                .expect("it ends")
        })
    }

    /// Device memory that is held: what the ledger of what serves now says, and the card as well. The engine reads the
    /// ledger now and then, and may last have read it in the middle of a step; the card has to be idle.
    fn agreed_bytes(&self) -> u64 {
        let slot = self.supervisor.slots().get("chat").expect("it is there");
        let serving = slot.current().expect("it serves");
        let began = Instant::now();
        loop {
            let calls = self.simulator.calls();
            let ledger = serving.engine().snapshot().ledger;
            let memory = ledger.iter().filter(|item| item.kind == "memory");
            let held: u64 = memory.map(|item| item.bytes).sum();
            let live = self.simulator.live_bytes();
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

async fn ask(supervisor: &Supervisor<Bytes>, client: u32) -> Result<RequestStream<Bytes>, String> {
    let entered = supervisor.slots().enter("chat").await;
    let request = Request {
        prompt: (0..20 + client).map(|at| (at + 7 * client) % 300).collect(),
        generated: 0,
        max_tokens: TOKENS,
        sampling: Sampling::default(),
        stop_tokens: Vec::new(),
        top_logprobs: None,
        bias: Vec::new(),
        session: None,
        kept: None,
    };
    let streams = entered
        .map_err(|error| error.to_string())?
        .submit(vec![request])
        .map_err(|error| error.to_string())?;
    streams.into_iter().next().ok_or_else(|| "no stream".to_owned())
}

/// To load the tiny model with a backend: the CPU's, or the library of this name.
fn order(backend: &str) -> SwapOrder {
    let builtins = Builtins::default().with("cpu", met_cpu::root_module);
    let source = match backend {
        CPU => CPU.to_owned(),
        name => library(name).to_string_lossy().into_owned(),
    };
    SwapOrder::new(LoadSpec {
        backend: BackendSource::parse(&source, &builtins).expect("a backend"),
        device: OpenSpec {
            threads: 1,
            ..OpenSpec::default()
        },
        model: ModelSpec {
            path: met_tests::fixture("tiny-q4_0.gguf")
                .to_str()
                .expect("a plain path")
                .into(),
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
