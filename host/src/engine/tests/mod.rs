//! The engine thread with a fake device.

mod moves;
mod sessions;
mod shutdown;

use super::{
    testing::{FakeControls, FakeDevice, error},
    *,
};
use crate::{
    kept::Kept,
    request::{Event, Failure, FinishReason, Stage},
};
use met_backend_api::ErrorKind;

/// The steps of a teardown, in their order.
const STEPS: [&str; 15] = [
    "drain pipeline",
    "end sessions",
    "finish requests",
    "give up requests",
    "delete parked copies",
    "free state slots",
    "memory before",
    "synchronize default stream",
    "synchronize prefill stream",
    "release pools",
    "drop model",
    "sweep unreleased",
    "ledger",
    "memory after",
    "drop backend",
];

fn start(
    device: impl FnOnce() -> FakeDevice + Send + 'static,
    options: EngineOptions,
) -> (Engine, FakeControls) {
    let (sender, controls) = mpsc::channel();
    let engine = Engine::start("test", options, move || {
        let device = device();
        let _ = sender.send(device.controls());
        Ok(Box::new(device))
    });
    (
        engine.expect("a fake device opens"),
        controls.recv().expect("the device was made"),
    )
}

fn request(prompt: &[u32], max_tokens: u32) -> Request {
    Request {
        prompt: prompt.to_vec(),
        max_tokens,
        ..Request::default()
    }
}

/// Lets one request in.
fn enter(inbox: &Arc<super::inbox::Inbox>) -> Result<EventStream, Refused> {
    let streams = inbox
        .submit(vec![request(&[1], 1)])
        .map_err(|(refused, _)| refused)?;
    Ok(streams.into_iter().next().expect("one for each request"))
}

/// Counts up from the last token.
fn counting() -> FakeDevice {
    FakeDevice::new(64, 4, 4).sampling(|seen| (seen[seen.len() - 1] + 1) % 256)
}

/// Everything that a stream gives.
fn all(mut stream: EventStream) -> Vec<Event> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut events = Vec::new();
        while let Some(event) = tokio::time::timeout(LONG, stream.next()).await.expect("an event") {
            events.push(event);
        }
        events
    })
}

fn ids(events: &[Event]) -> Vec<u32> {
    let id = |event: &Event| match event {
        Event::Token(token) => Some(token.id),
        _ => None,
    };
    events.iter().filter_map(id).collect()
}

/// Waits until the engine's state is as wanted.
fn wait_for(engine: &Engine, wanted: impl Fn(&Snapshot) -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !wanted(&engine.snapshot()) {
        assert!(Instant::now() < end, "{:?}", engine.snapshot());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Shuts down with the deadline past, while a call hangs.
fn cut(engine: &Engine, controls: &FakeControls) -> TeardownReport {
    let stopping = engine.clone();
    let thread = std::thread::spawn(move || stopping.shutdown(Duration::ZERO));
    let end = Instant::now() + LONG;
    while engine.is_open() {
        assert!(Instant::now() < end, "it never closed");
        std::thread::yield_now();
    }
    controls.release();
    thread.join().expect("the shutdown returned")
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_request_streams_its_tokens_and_ends() {
    let (engine, _) = start(counting, EngineOptions::default());
    let events = all(engine.submit(request(&[7, 8], 3)).expect("room"));
    assert_eq!(ids(&events), [9, 10, 11]);
    assert_eq!(events.last(), Some(&Event::Finished(FinishReason::Length)));
    let stopped = Request {
        stop_tokens: vec![11],
        ..request(&[7, 8], 30)
    };
    let events = all(engine.submit(stopped).expect("room"));
    assert_eq!(ids(&events), [9, 10]);
    assert_eq!(events.last(), Some(&Event::Finished(FinishReason::Stop)));
    assert!(engine.shutdown(LONG).is_clean());
}

#[test]
fn a_stream_that_is_dropped_is_cancelled_within_one_step() {
    let (engine, controls) = start(counting, EngineOptions::default());
    controls.hold("collect");
    let stream = engine.submit(request(&[1; 20], 200)).expect("room");
    wait_for(&engine, |snapshot| {
        snapshot.call.is_some_and(|(name, _)| name == "collect")
    });
    assert!(engine.snapshot().counts.blocks_used > 0);
    drop(stream);
    controls.release();
    wait_for(&engine, |snapshot| snapshot.counts.blocks_used == 0);
    // The step that was on the device came back; no other was made.
    assert_eq!(engine.snapshot().counts.generated_tokens, 1);
    assert!(engine.shutdown(LONG).is_clean());
}

#[test]
fn a_request_that_never_fits_is_refused_and_a_full_line_too() {
    let (engine, controls) = start(
        counting,
        EngineOptions {
            max_waiting: 2,
            ..EngineOptions::default()
        },
    );
    assert!(matches!(
        engine.submit(request(&[1; 250], 7)),
        Err(Refused::TooLong { context: 256, .. })
    ));
    assert!(matches!(
        engine.submit(request(&[256], 7)),
        Err(Refused::Invalid(_))
    ));
    controls.hold("collect");
    let running = engine.submit(request(&[1], 9)).expect("room");
    wait_for(&engine, |snapshot| {
        snapshot.call.is_some_and(|(name, _)| name == "collect")
    });
    let waiting: Vec<_> = (0..2)
        .map(|_| engine.submit(request(&[1], 9)).expect("room in the line"))
        .collect();
    assert!(matches!(
        engine.submit(request(&[1], 9)),
        Err(Refused::Full { retry_after_s: 1.. })
    ));
    controls.release();
    for stream in waiting.into_iter().chain([running]) {
        assert_eq!(ids(&all(stream)), (2..11).collect::<Vec<_>>());
    }
    assert!(engine.shutdown(LONG).is_clean());
}

#[test]
fn requests_on_their_way_to_the_scheduler_are_in_the_line() {
    let inbox = Arc::new(Inbox::new(2, 8));
    let _streams: Vec<_> = (0..2).map(|_| enter(&inbox).expect("room")).collect();
    let mut mail = inbox::Mail::default();
    inbox.take(&mut mail, Duration::ZERO);
    assert_eq!(mail.arrivals.len(), 2);
    assert!(matches!(enter(&inbox), Err(Refused::Full { .. })));
    inbox.set_line(1, 7);
    assert!(enter(&inbox).is_ok());
    assert!(matches!(enter(&inbox), Err(Refused::Full { retry_after_s: 7 })));
}

#[test]
fn a_slow_client_pauses_alone_and_misses_nothing() {
    let (engine, _) = start(
        counting,
        EngineOptions {
            channel: 8,
            ..EngineOptions::default()
        },
    );
    let slow = engine.submit(request(&[1], 100)).expect("room");
    wait_for(&engine, |snapshot| snapshot.counts.paused == 1);
    let before = engine.snapshot().counts.generated_tokens;
    assert!(before <= 8);
    assert_eq!(
        ids(&all(engine.submit(request(&[3], 100)).expect("room"))),
        (4..104).collect::<Vec<_>>()
    );
    assert_eq!(engine.snapshot().counts.generated_tokens, before + 100);
    assert_eq!(ids(&all(slow)), (2..102).collect::<Vec<_>>());
    assert!(engine.shutdown(LONG).is_clean());
}

#[test]
fn a_client_that_stays_slow_is_given_up() {
    let options = EngineOptions {
        channel: 8,
        slow_client: Duration::from_millis(20),
        ..EngineOptions::default()
    };
    let (engine, _) = start(counting, options);
    let slow = engine.submit(request(&[1], 100)).expect("room");
    wait_for(&engine, |snapshot| {
        snapshot.counts.generated_tokens > 0 && snapshot.counts.active == 0
    });
    assert_eq!(engine.snapshot().counts.blocks_used, 0);
    assert_eq!(all(slow).last(), Some(&Event::Failed(Failure::SlowClient)));
    assert!(engine.shutdown(LONG).is_clean());
}

#[test]
fn a_fault_fails_every_request_and_fences_the_engine() {
    let (engine, controls) = start(counting, EngineOptions::default());
    controls.hold("collect");
    let streams: Vec<_> = (0..6)
        .map(|_| engine.submit(request(&[1], 9)).expect("room"))
        .collect();
    controls.fail(
        "collect",
        [error(ErrorKind::Fault, "the device fell off the bus")],
    );
    controls.release();
    for stream in streams {
        let failure = Failure::Backend("the device fell off the bus".into());
        assert_eq!(all(stream), [Event::Failed(failure)]);
    }
    wait_for(&engine, |snapshot| {
        matches!(snapshot.state, EngineState::Fenced(_))
    });
    assert!(!engine.is_open());
    assert!(matches!(engine.submit(request(&[1], 9)), Err(Refused::Draining)));
    let report = engine.shutdown(LONG);
    assert_eq!(report.left, Some(Vec::new()));
    assert_eq!(report.pools.len(), 3);
}

#[test]
fn a_shutdown_finishes_what_runs_and_reports_every_step() {
    let (engine, controls) = start(counting, EngineOptions::default());
    controls.set_step_time(Duration::from_millis(1));
    controls.leak("scratch", 77);
    let stream = engine.submit(request(&[1], 50)).expect("room");
    let report = engine.shutdown(LONG);
    assert_eq!(ids(&all(stream)).len(), 50);
    assert!(matches!(engine.submit(request(&[1], 9)), Err(Refused::Draining)));
    assert!(report.is_clean(), "{report:?}");
    let steps: Vec<&str> = report.steps.iter().map(|step| step.name).collect();
    assert_eq!(steps, STEPS);
    let order = [
        "synchronize 0",
        "synchronize 1",
        "release_pools",
        "drop_model",
        "sweep_unreleased",
    ];
    assert_eq!(controls.calls(), order);
    assert!(controls.is_dropped());
    assert_eq!((report.swept.count, report.swept.bytes), (1, 77));
    assert_eq!(report.swept.entries[0].owner, "scratch");
    assert_eq!(
        report.memory_before.map(|memory| memory.ledger_bytes),
        Some(4096 + 1024 + 65536 + 77)
    );
    assert_eq!(report.memory_after.map(|memory| memory.ledger_bytes), Some(0));
    assert_eq!(engine.snapshot().state, EngineState::Stopped);
    assert_eq!(engine.shutdown(LONG), report);
}

#[test]
fn a_deadline_gives_up_the_rest_and_failed_steps_do_not_stop_a_teardown() {
    let (engine, controls) = start(counting, EngineOptions::default());
    controls.hold("collect");
    controls.fail("synchronize 0", [error(ErrorKind::Fault, "lost")]);
    controls.fail("release_pools", [error(ErrorKind::Bug, "panicked")]);
    let streams = engine.submit_all(vec![request(&[1], 250); 6]).expect("room");
    controls.pass();
    assert_eq!(engine.snapshot().counts.active, 4);
    let report = cut(&engine, &controls);
    let mut stages = Vec::new();
    for stream in streams {
        let Some(Event::Failed(Failure::Cut(stage))) = all(stream).pop() else {
            panic!("it was cut")
        };
        stages.push(stage);
    }
    stages.sort();
    assert_eq!(
        stages,
        [[Stage::Waiting; 2].as_slice(), &[Stage::Generating; 4]].concat()
    );
    assert_eq!((report.given_up.active, report.given_up.waiting), (4, 2));
    let failed: Vec<&str> = report
        .steps
        .iter()
        .filter(|step| step.error.is_some())
        .map(|step| step.name)
        .collect();
    assert_eq!(failed, ["synchronize default stream", "release pools"]);
    assert_eq!(report.first_error(), Some(("synchronize default stream", "lost")));
    // What the pools kept was swept, with its owners.
    assert_eq!(report.swept.count, 3);
    assert_eq!(report.left, Some(Vec::new()));
    assert!(!report.is_clean());
}

#[test]
fn a_call_that_hangs_is_reported_as_stuck() {
    let options = EngineOptions {
        teardown: Duration::from_millis(50),
        ..EngineOptions::default()
    };
    let (engine, controls) = start(counting, options);
    controls.hold("collect");
    let stream = engine.submit(request(&[1], 9)).expect("room");
    wait_for(&engine, |snapshot| {
        snapshot.call.is_some_and(|(name, _)| name == "collect")
    });
    assert_eq!(engine.snapshot().counts.blocks_total, 64);
    let report = engine.shutdown(Duration::ZERO);
    assert_eq!(report.stuck.as_deref(), Some("collect"));
    assert!(!report.is_clean());
    controls.release();
    assert!(engine.shutdown(LONG).is_clean());
    assert_eq!(
        all(stream).last(),
        Some(&Event::Failed(Failure::Cut(Stage::Generating)))
    );
}

#[test]
fn a_device_that_is_given_up_for_what_it_says_has_a_reason() {
    let babbling = || FakeDevice::new(64, 4, 4).sampling(|_| 9999);
    let (engine, _controls) = start(babbling, EngineOptions::default());
    let events = all(engine.submit(request(&[1], 9)).expect("room"));
    assert!(matches!(&events[..], [Event::Failed(Failure::Backend(why))] if why.contains("token 9999")));
    let state = engine.snapshot().state;
    assert!(
        matches!(&state, EngineState::Fenced(why) if why.contains("token 9999")),
        "{state:?}"
    );
    engine.shutdown(LONG);
}

#[test]
fn a_backend_that_does_not_open_leaves_nothing() {
    let failed = Engine::start("test", EngineOptions::default(), || {
        Err(error(ErrorKind::Invalid, "no such file").into())
    });
    assert_eq!(failed.err(), Some(error(ErrorKind::Invalid, "no such file")));
    let panicked = Engine::start("test", EngineOptions::default(), || panic!("in open"));
    assert_eq!(panicked.err().map(|error| error.kind), Some(ErrorKind::Bug));
    let (sender, controls) = mpsc::channel();
    let unusable = Engine::start("test", EngineOptions::default(), move || {
        let mut device = counting();
        device.model_mut().block_size = 0;
        let _ = sender.send(device.controls());
        Ok(Box::new(device))
    });
    assert!(
        unusable
            .err()
            .is_some_and(|error| error.message.contains("block_size"))
    );
    assert!(controls.recv().expect("it was made").is_dropped());
}

#[test]
fn an_engine_that_is_dropped_tears_itself_down() {
    let (engine, controls) = start(counting, EngineOptions::default());
    drop(engine);
    wait_for_drop(&controls);
    let (sender, controls) = mpsc::channel();
    let starting = Engine::begin("test", EngineOptions::default(), move || {
        let device = counting();
        let _ = sender.send(device.controls());
        Ok(Box::new(device))
    });
    drop(starting);
    wait_for_drop(&controls.recv().expect("the device was made"));
}

fn wait_for_drop(controls: &FakeControls) {
    let end = Instant::now() + LONG;
    while !controls.is_dropped() {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(controls.calls().len(), 5);
}
