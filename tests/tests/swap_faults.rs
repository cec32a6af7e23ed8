//! Every boundary call of a swap fails, hangs and panics in turn, under both plans and every in-flight policy.
//!
//! The calls are counted in a swap that nothing disturbs; then one of them goes wrong at a time. Whatever it is: the
//! slot serves the old or the new generation, every stream has its end, and what did not come back is in the report.

use futures_util::StreamExt;
use met_backend_api::{ModelSpec, OpenSpec, abi_stable::std_types::Tuple2};
use met_host::{
    engine::EngineOptions,
    loader::{BackendSource, Builtins},
    request::{Event, Request, Sampling},
    slot::{
        Hold, LoadSpec, RequestStream, Slots,
        swap::{InFlight, Order, Outcome, Plan, Subject, Supervisor, SwapOrder, SwapReport},
    },
};
use met_scripted::record;
use met_tests::{Bytes, PanicsTwice};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::runtime::Runtime;

/// Tokens of each client's answer; long enough to be under way when the swap begins and when it switches.
const TOKENS: u32 = 60;
const CLIENTS: u32 = 3;
/// How long any single thing may take before the test says that it hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// A hang is longer than the load's deadline and the teardown's patience together.
const HANG_MS: u64 = 3000;
const LOAD_DEADLINE: Duration = Duration::from_millis(1000);
const TEARDOWN: Duration = Duration::from_millis(500);
/// Cases that run at a time: most of them sleep.
const AT_A_TIME: usize = 24;
/// Of calls that are made again and again, the first so many go wrong.
const MOST_OF_A_KIND: u64 = 4;

const PLANS: [Plan; 2] = [Plan::SideBySide, Plan::DrainFirst];
const POLICIES: [InFlight; 3] = [InFlight::Finish, InFlight::Carry, InFlight::Cancel];

/// One swap in which something goes wrong, or nothing.
#[derive(Clone, Debug)]
struct Case {
    plan: Plan,
    in_flight: InFlight,
    trouble: Option<Trouble>,
}

#[derive(Clone, Debug)]
struct Trouble {
    of: Subject,
    call: &'static str,
    n: u64,
    what: &'static str,
}

/// What came of it.
struct Seen {
    report: SwapReport,
    streams: Vec<Vec<Event>>,
    /// The answer of what serves after the swap, or why there was none.
    after: Result<Vec<u32>, String>,
    /// Whether what serves takes requests.
    open: bool,
    incumbent: u64,
    candidate: u64,
    /// Calls of the incumbent before the swap.
    before: BTreeMap<&'static str, u64>,
}

#[test]
fn whatever_goes_wrong_the_slot_serves_and_the_report_is_true() {
    let runtime = runtime();
    let expected = expected(&runtime);
    let mut cases = Vec::new();
    for plan in PLANS {
        for in_flight in POLICIES {
            let case = Case {
                plan,
                in_flight,
                trouble: None,
            };
            let seen = run(&runtime, &case);
            check(&case, &seen, &expected).unwrap_or_else(|problem| panic!("{case:?}: {problem}"));
            assert_eq!(seen.report.outcome, Outcome::Swapped);
            cases.extend(troubles(&seen).into_iter().map(|trouble| Case {
                trouble: Some(trouble),
                ..case.clone()
            }));
        }
    }
    assert!(
        cases.len() > 400,
        "only {} cases: the calls are not counted",
        cases.len()
    );
    let (work, problems) = (Mutex::new(cases.iter()), Mutex::new(Vec::new()));
    let summaries = Mutex::new(BTreeMap::<String, u32>::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                let take = || work.lock().expect("no panic").next();
                while let Some(case) = take() {
                    let seen = run(&runtime, case);
                    if let Err(problem) = check(case, &seen, &expected) {
                        let problem = format!("{case:?}\n    {problem}\n    {:?}", seen.report);
                        problems.lock().expect("no panic").push(problem);
                    }
                    let summary = format!(
                        "{:?}, clean: {}, open: {}",
                        seen.report.outcome,
                        seen.report.is_clean(),
                        seen.open
                    );
                    *summaries.lock().expect("no panic").entry(summary).or_insert(0) += 1;
                }
            });
        }
    });
    let problems = problems.into_inner().expect("no panic");
    assert!(
        problems.is_empty(),
        "{} of {}:\n{}",
        problems.len(),
        cases.len(),
        problems.join("\n")
    );
    println!("{} cases: {:#?}", cases.len(), summaries.into_inner());
}

#[test]
fn a_swap_that_panics_leaves_the_slot_as_it_was() {
    let runtime = runtime();
    let supervisor: Arc<Supervisor<PanicsTwice>> = Supervisor::new(Arc::new(Slots::new()));
    let begin = |order| supervisor.begin("chat", order).expect("the slot is not busy");
    let order = || SwapOrder::new(spec(""));
    let loaded = runtime
        .block_on(begin(Order::Load(order())).report)
        .expect("a report");
    assert_eq!(loaded.outcome, Outcome::Loaded);
    for _ in 0..2 {
        let panicked = runtime.block_on(begin(Order::Swap(order())).report);
        assert!(panicked.is_err(), "{panicked:?}");
        let end = Instant::now() + LIMIT;
        while supervisor.busy("chat").is_some() {
            assert!(Instant::now() < end, "the slot stays busy");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let serving = runtime
        .block_on(supervisor.slots().enter("chat"))
        .map(|lease| lease.number());
    assert_eq!(serving, Ok(1));
    let ends = supervisor.shutdown(LIMIT);
    assert!(ends.len() == 1 && ends[0].1.teardown.is_clean(), "{ends:?}");
}

/// Each call of the candidate, and each of the incumbent from the beginning of the swap on, gone wrong each way.
fn troubles(seen: &Seen) -> Vec<Trouble> {
    let of_candidate = record::of(seen.candidate)
        .calls
        .into_iter()
        .map(|(call, n)| (Subject::Candidate, call, 0, n));
    let of_incumbent = record::of(seen.incumbent).calls.into_iter().map(|(call, n)| {
        let before = seen.before.get(call).copied().unwrap_or_default();
        (Subject::Incumbent, call, before, n)
    });
    let mut troubles = Vec::new();
    for (of, call, before, n) in of_candidate.chain(of_incumbent) {
        for n in before + 1..=n.min(before + MOST_OF_A_KIND) {
            for what in ["fail fault gone", "panic", "hang"] {
                troubles.push(Trouble { of, call, n, what });
            }
        }
    }
    troubles
}

fn check(case: &Case, seen: &Seen, expected: &BTreeMap<u32, Vec<u32>>) -> Result<(), String> {
    let Seen { report, streams, .. } = seen;
    for (client, events) in streams.iter().enumerate() {
        let client = client as u32;
        let tokens = tokens(events);
        let (last, finished) = (events.last(), matches!(events.last(), Some(Event::Finished(_))));
        if !finished && !matches!(last, Some(Event::Failed(_))) {
            return Err(format!("client {client} has no end: {last:?}"));
        }
        if !expected[&client].starts_with(&tokens) || (finished && tokens.len() != TOKENS as usize) {
            return Err(format!(
                "client {client} got {} wrong tokens, {last:?}",
                tokens.len()
            ));
        }
        if case.trouble.is_none() && case.in_flight != InFlight::Cancel && !finished {
            return Err(format!("client {client} was cut: {last:?}"));
        }
    }
    let serving = match report.outcome {
        Outcome::Swapped => Subject::Candidate,
        Outcome::Failed | Outcome::RolledBack => Subject::Incumbent,
        outcome => return Err(format!("{outcome:?}")),
    };
    if report.is_as_asked() == report.error.is_some() && report.steps.iter().all(|step| step.error.is_none())
    {
        return Err("the report does not say why".to_owned());
    }
    match &seen.after {
        Ok(tokens) if expected[&0].starts_with(tokens) && !tokens.is_empty() => {}
        Ok(tokens) => return Err(format!("afterwards it answers {tokens:?}")),
        // It broke after it had begun to serve: that is no matter of the swap's any more.
        Err(_) if !seen.open && case.trouble.as_ref().is_some_and(|trouble| trouble.of == serving) => {}
        Err(problem) => return Err(format!("afterwards it does not answer: {problem}")),
    }
    // What the ledgers held when the last of each was dropped, which no report can have invented.
    let left = record::of(seen.incumbent).left + record::of(seen.candidate).left;
    if left > 0 && report.is_clean() {
        return Err(format!("{left} bytes were left, and the report does not say so"));
    }
    if case.trouble.is_none() && !report.is_clean() {
        return Err("nothing went wrong, but something was left".to_owned());
    }
    Ok(())
}

/// Makes a slot with running clients, swaps it, and asks it again.
fn run(runtime: &Runtime, case: &Case) -> Seen {
    static LABELS: AtomicU64 = AtomicU64::new(1);
    let (incumbent, candidate) = (
        LABELS.fetch_add(1, Ordering::Relaxed),
        LABELS.fetch_add(1, Ordering::Relaxed),
    );
    let rule = |of: Subject| match &case.trouble {
        Some(trouble) if trouble.of == of => {
            let what = match trouble.what {
                "hang" => format!("hang {HANG_MS}"),
                what => what.to_owned(),
            };
            format!("at {} {} {what}", trouble.call, trouble.n)
        }
        _ => String::new(),
    };
    let script = |label: u64, of| format!("set label {label}\nset step_us 1500\n{}", rule(of));
    let supervisor = Supervisor::new(Arc::new(Slots::new()));
    let first = SwapOrder::new(spec(&script(incumbent, Subject::Incumbent)));
    let loaded = wait(runtime, supervisor.begin("chat", Order::Load(first)));
    assert_eq!(loaded.outcome, Outcome::Loaded, "{loaded:?}");

    let (begun, ready) = std::sync::mpsc::channel();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (supervisor, begun) = (supervisor.clone(), begun.clone());
            runtime.spawn(async move {
                let mut stream = ask(&supervisor, client).await.expect("it serves");
                let mut events = Vec::new();
                while let Some(event) = stream.next().await {
                    events.push(event);
                    if events.len() == 3 {
                        begun.send(()).expect("it is waited for");
                    }
                }
                events
            })
        })
        .collect();
    for _ in 0..CLIENTS {
        ready.recv_timeout(LIMIT).expect("every client gets tokens");
    }
    let before = record::of(incumbent).calls;
    let order = SwapOrder {
        plan: Some(case.plan),
        in_flight: case.in_flight,
        drain_deadline: Duration::from_millis(1000),
        hold: Hold {
            deadline: LIMIT,
            ..Hold::default()
        },
        ..SwapOrder::new(spec(&script(candidate, Subject::Candidate)))
    };
    let report = wait(runtime, supervisor.begin("chat", Order::Swap(order)));
    let streams = clients
        .into_iter()
        .map(|client| {
            let ended = runtime.block_on(async { tokio::time::timeout(LIMIT, client).await });
            ended.expect("every stream ends").expect("no panic")
        })
        .collect();
    let after = runtime.block_on(async {
        let mut stream = ask(&supervisor, 0).await?;
        let mut events = Vec::new();
        while let Some(event) = tokio::time::timeout(LIMIT, stream.next()).await.expect("it ends") {
            events.push(event);
            if events.len() == 5 {
                break;
            }
        }
        match events.last() {
            Some(Event::Token(_) | Event::Finished(_)) => Ok(tokens(&events)),
            last => Err(format!("{last:?}")),
        }
    });
    let slot = supervisor.slots().get("chat").expect("it is there");
    let open = slot.current().is_some_and(|serving| serving.engine().is_open());
    end(&supervisor, [incumbent, candidate], &report);
    Seen {
        report,
        streams,
        after,
        open,
        incumbent,
        candidate,
        before,
    }
}

/// Ends what serves, and waits for what hangs: then every backend has been dropped.
fn end(supervisor: &Supervisor<Bytes>, labels: [u64; 2], report: &SwapReport) {
    supervisor.shutdown(LIMIT);
    let began = Instant::now();
    let opened = |label| {
        let record = record::of(label);
        (
            record.calls.get("info").copied().unwrap_or_default(),
            record.dropped,
        )
    };
    while labels.iter().any(|label| opened(*label).0 > opened(*label).1) {
        assert!(began.elapsed() < LIMIT, "a backend was never dropped: {report:?}");
        supervisor.stuck();
        std::thread::sleep(Duration::from_millis(5));
    }
    while !supervisor.stuck().is_empty() {
        assert!(
            began.elapsed() < LIMIT,
            "a generation is stuck for ever: {report:?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What each client is told where nothing goes wrong.
fn expected(runtime: &Runtime) -> BTreeMap<u32, Vec<u32>> {
    let supervisor = Supervisor::new(Arc::new(Slots::new()));
    let loaded = wait(
        runtime,
        supervisor.begin("chat", Order::Load(SwapOrder::new(spec("")))),
    );
    assert_eq!(loaded.outcome, Outcome::Loaded, "{loaded:?}");
    let answers = (0..CLIENTS).map(|client| {
        let events: Vec<Event> =
            runtime.block_on(async { ask(&supervisor, client).await.expect("it serves").collect().await });
        (client, tokens(&events))
    });
    let answers: BTreeMap<u32, Vec<u32>> = answers.collect();
    assert!(answers.values().all(|tokens| tokens.len() == TOKENS as usize));
    supervisor.shutdown(LIMIT);
    answers
}

async fn ask(supervisor: &Supervisor<Bytes>, client: u32) -> Result<RequestStream<Bytes>, String> {
    let lease = supervisor
        .slots()
        .enter("chat")
        .await
        .map_err(|error| error.to_string())?;
    let request = Request {
        prompt: (0..20 + client).map(|at| (at + 7 * client) % 300).collect(),
        max_tokens: TOKENS,
        sampling: Sampling {
            presence_penalty: 0.5,
            ..Sampling::default()
        },
        ..Request::default()
    };
    let streams = lease.submit(vec![request]).map_err(|error| error.to_string())?;
    streams.into_iter().next().ok_or_else(|| "no stream".to_owned())
}

fn wait(
    runtime: &Runtime,
    begun: Result<met_host::slot::swap::Begun, met_host::slot::swap::Refusal>,
) -> SwapReport {
    let begun = begun.expect("the slot is not busy");
    let report = runtime.block_on(async { tokio::time::timeout(LIMIT, begun.report).await });
    report.expect("a swap ends").expect("a swap reports")
}

fn spec(script: &str) -> LoadSpec {
    let builtins = Builtins::default().with("scripted", met_scripted::root_module);
    LoadSpec {
        backend: BackendSource::parse("builtin:scripted", &builtins).expect("it is linked in"),
        device: OpenSpec {
            options: vec![Tuple2("script".into(), script.into())].into(),
            ..OpenSpec::default()
        },
        model: ModelSpec {
            path: met_tests::fixture("vocab-spm.gguf")
                .to_str()
                .expect("a plain path")
                .into(),
            max_rows: 4,
            max_batch_tokens: 64,
            ..ModelSpec::default()
        },
        engine: EngineOptions {
            teardown: TEARDOWN,
            ..EngineOptions::default()
        },
        deadline: LOAD_DEADLINE,
    }
}

fn tokens(events: &[Event]) -> Vec<u32> {
    let token = |event: &Event| match event {
        Event::Token(token) => Some(token.id),
        _ => None,
    };
    events.iter().filter_map(token).collect()
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}
