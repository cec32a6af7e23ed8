//! The backend behind the boundary: what it refuses, what it leaves behind, and its threads. One test, in a process
//! of its own, since it looks at the process's threads.

use met_backend_api::{
    Batch, BatchOutput, Error, ErrorKind, ModelSpec, NO_SLOT, OpenSpec, ResourceKind, Row, RowOutput,
    Sampling, Want,
    abi::{BackendBox, HostServices, HostServices_TO, LogLevel, LogRecord, ModelBox},
    abi_stable::{
        sabi_trait::TD_Opaque,
        std_types::{RArc, RNone, RSlice, RSliceMut, RStr, Tuple2},
    },
    sdk::Host,
};

use std::{
    panic::catch_unwind,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/tiny-q4_1.gguf");

#[test]
fn from_probe_to_close() {
    probe_finds_the_processor();
    wrong_options_are_refused();
    a_clean_life_leaves_nothing();
    a_lost_model_is_swept();
    a_model_that_is_still_held_is_fenced_by_the_sweep();
    the_memory_limit_is_kept();
    a_panic_that_drops_a_backend_gives_the_hook_back();
    assert_eq!(threads_settle_at(0), 0, "every thread was joined");
}

fn probe_finds_the_processor() {
    let report = met_cpu::root_module().probe()(host()).unwrap();
    assert_eq!(report.devices.len(), 1);
    assert!(report.problem.is_empty());
    assert!(report.devices[0].total_memory > 0 && report.devices[0].compute_units > 0);
}

fn wrong_options_are_refused() {
    let option = |name: &str, value: &str| OpenSpec {
        options: vec![Tuple2(name.into(), value.into())].into(),
        ..OpenSpec::default()
    };
    let portable = open(&option("isa", "portable")).unwrap();
    assert_eq!(portable.info().unwrap().features, "portable");
    for (spec, part) in [
        (option("isa", "sse9"), "sse9"),
        (option("speed", "high"), "speed"),
        (
            OpenSpec {
                device: 1,
                ..OpenSpec::default()
            },
            "device 1",
        ),
        (
            OpenSpec {
                threads: u32::MAX,
                ..OpenSpec::default()
            },
            "threads",
        ),
    ] {
        let error = open(&spec).map(drop).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid);
        assert!(error.message.contains(part), "{}", error.message);
    }
}

fn a_clean_life_leaves_nothing() {
    let (mut backend, mut model) = loaded();
    assert_eq!(threads_settle_at(2), 2, "three threads, the caller included");
    let resources = model.resources().unwrap();
    let memory = backend.memory().unwrap();
    let held: u64 = resources.iter().map(|r| r.bytes).sum();
    assert_eq!(memory.ledger_bytes, held);
    let ledger = backend.ledger().unwrap();
    assert_eq!(ledger.len() as u64, memory.ledger_count);
    assert_eq!(
        ledger.iter().filter(|e| e.kind == ResourceKind::Thread).count(),
        2
    );
    step(&mut model).unwrap();
    assert_eq!(model.release_pools().unwrap().first_error(), None);
    assert_eq!(backend.memory().unwrap().ledger_bytes, 0);
    drop(model);
    assert_eq!(backend.sweep_unreleased().unwrap().count, 0);
    assert_eq!(threads_settle_at(0), 0);
    assert!(backend.ledger().unwrap().is_empty());
}

fn a_panic_that_drops_a_backend_gives_the_hook_back() {
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {
        SEEN.fetch_add(1, Ordering::Relaxed);
    }));
    let dropped = catch_unwind(|| {
        let _life = loaded();
        panic!("on purpose");
    });
    let again = catch_unwind(|| panic!("again"));
    std::panic::set_hook(usual);
    assert!(dropped.is_err() && again.is_err());
    assert_eq!(
        SEEN.load(Ordering::Relaxed),
        2,
        "the second panic reaches the hook that was there"
    );
}

fn a_lost_model_is_swept() {
    let (mut backend, model) = loaded();
    let held = backend.memory().unwrap().ledger_bytes;
    std::mem::forget(model);
    let report = backend.sweep_unreleased().unwrap();
    assert_eq!((report.bytes, report.failures), (held, 0));
    assert_eq!(report.count, report.entries.len() as u64);
    for owner in ["derived weights", "kv cache", "buffer arena", "weight store"] {
        assert!(report.entries.iter().any(|e| e.entry.owner == owner), "{owner}");
    }
    assert!(backend.ledger().unwrap().is_empty());
    assert_eq!(
        backend.sweep_unreleased().unwrap().count,
        0,
        "a second sweep finds nothing"
    );
}

fn a_model_that_is_still_held_is_fenced_by_the_sweep() {
    let (mut backend, mut model) = loaded();
    assert!(backend.sweep_unreleased().unwrap().count > 0);
    assert_eq!(step(&mut model).unwrap_err().kind, ErrorKind::Invalid);
    assert!(model.release_pools().unwrap().steps.is_empty());
    drop(backend);
    drop(model);
}

fn the_memory_limit_is_kept() {
    let spec = OpenSpec {
        memory_limit: 1 << 18,
        threads: 1,
        ..OpenSpec::default()
    };
    let mut backend = open(&spec).unwrap();
    assert!(backend.memory().unwrap().free <= 1 << 18);
    let error = backend
        .load_model(&model_spec())
        .into_result()
        .map(drop)
        .unwrap_err();
    assert_eq!(error.kind, ErrorKind::Exhausted);
    assert!(backend.ledger().unwrap().is_empty());
}

fn loaded() -> (BackendBox, ModelBox) {
    let spec = OpenSpec {
        threads: 3,
        ..OpenSpec::default()
    };
    let mut backend = open(&spec).unwrap();
    let model = backend.load_model(&model_spec()).unwrap();
    (backend, model)
}

fn open(spec: &OpenSpec) -> Result<BackendBox, Error> {
    met_cpu::root_module().open()(host(), spec).into_result()
}

fn model_spec() -> ModelSpec {
    ModelSpec {
        path: MODEL.into(),
        context: 0,
        max_rows: 2,
        max_batch_tokens: 16,
        kv_bytes: 1 << 20,
        ..ModelSpec::default()
    }
}

fn step(model: &mut ModelBox) -> Result<RowOutput, Error> {
    let row = Row {
        tokens: RSlice::from_slice(&[1, 2, 3]),
        input: RNone,
        position: 0,
        blocks: RSlice::from_slice(&[0]),
        state_slot: NO_SLOT,
        want: Want::Token,
        top_logprobs: 0,
        sampling: Sampling::default(),
        counts: RSlice::EMPTY,
        bias: RSlice::EMPTY,
        mask: RSlice::EMPTY,
    };
    let mut out = [RowOutput::default()];
    let ticket = model
        .submit(Batch {
            rows: RSlice::from_slice(&[row]),
        })
        .into_result()?;
    let output = BatchOutput {
        rows: RSliceMut::from_mut_slice(&mut out),
        top: RSliceMut::from_mut_slice(&mut []),
        logits: RSliceMut::from_mut_slice(&mut []),
    };
    model.collect(ticket, output).into_result()?;
    Ok(out[0])
}

/// The threads there are, once they are as many as expected: one that was joined is listed a moment longer, and one
/// that begins takes its name a moment later.
fn threads_settle_at(expected: usize) -> usize {
    let began = Instant::now();
    while threads() != expected && began.elapsed() < Duration::from_secs(10) {
        std::thread::yield_now();
    }
    threads()
}

/// Threads of the backend that are alive.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.starts_with("met-cpu-"))
        .count()
}

#[derive(Clone)]
struct Quiet;

impl HostServices for Quiet {
    fn log_enabled(&self, _level: LogLevel, _target: RStr<'_>) -> bool {
        false
    }
    fn log(&self, _record: &LogRecord<'_>) {}
    fn progress(&self, _stage: RStr<'_>, _done: u64, _total: u64) {}
    fn cancelled(&self) -> bool {
        false
    }
}

fn host() -> Host {
    HostServices_TO::from_ptr(RArc::new(Quiet), TD_Opaque)
}
