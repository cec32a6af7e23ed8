//! Loads: weights in pieces through pinned memory, a host that cancels, a limit, memory for the cache by what is free,
//! and a card without a memory pool. One test, since the process has one simulated card.

mod support;

use met_backend_api::{
    ErrorKind, ModelSpec, OpenSpec, Sampling,
    abi::{BackendBox, HostServices, HostServices_TO, LogLevel, LogRecord},
    abi_stable::{
        sabi_trait::TD_Opaque,
        std_types::{RArc, RStr},
    },
    sdk::Host,
};
use met_cuda::CudaOps;
use met_kernels::{Error, ErrorKind as OpsErrorKind, Ledger, Ops, TensorType, WeightSource, optest};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};
use support::{
    Simulator,
    life::{generate, load_spec, model_spec, on_the_ledger},
    simulator,
};

const MODEL: &str = "tiny-q4_0.gguf";
/// Of a weight, what is copied at a time.
const PIECE: usize = 4 << 20;

#[test]
fn a_load_is_whole_or_nothing() {
    let simulator = simulator();
    a_weight_of_several_pieces(simulator);
    a_host_may_cancel_at_any_question(simulator);
    a_limit_is_kept();
    the_cache_fits_what_is_free(simulator);
    a_card_without_a_pool_gives_the_same(simulator);
    simulator.assert_empty("in the end");
}

fn a_weight_of_several_pieces(simulator: &Simulator) {
    const COLS: usize = 128;
    const ROWS: usize = 2 * PIECE / (4 * COLS) + 1000;
    let ledger = Ledger::default();
    let mut ops = CudaOps::new(0, &ledger).unwrap();
    let value = |row: usize, col: usize| (row * COLS + col) as f32;
    let values = (0..ROWS).flat_map(|row| (0..COLS).flat_map(move |col| value(row, col).to_le_bytes()));
    let source = WeightSource {
        name: "table".into(),
        ty: TensorType::F32,
        rows: ROWS,
        cols: COLS,
        data: values.collect::<Vec<_>>().into(),
    };
    // Copies wait as long as they may, so that pinned memory that is used again too early shows.
    simulator.set("lazy", 1);
    let mut told = Vec::new();
    let mut progress = |done| {
        told.push(done);
        Ok(())
    };
    let table = ops.load_weight(&source, &mut progress).unwrap();
    assert_eq!(told, [0, PIECE as u64, 2 * PIECE as u64]);
    let border = PIECE / (4 * COLS);
    let rows = [0, border - 1, border, 2 * border - 1, 2 * border, ROWS - 1];
    let step = optest::one_row(&mut ops, &rows.map(|row| row as u32));
    let mut out = ops.alloc_tensor("test", rows.len(), COLS).unwrap();
    ops.embed(&table, &step, &mut out).unwrap();
    let actual = optest::take(&mut ops, out, rows.len(), COLS);
    let expected: Vec<f32> = rows
        .into_iter()
        .flat_map(|row| (0..COLS).map(move |col| value(row, col)))
        .collect();
    assert!(actual == expected, "rows at the borders of pieces");
    drop(step);
    ops.release_weight(table).unwrap();
    simulator.set("lazy", 0);

    let before = (ledger.entries(), simulator.alive());
    let mut stop = |done| match done {
        0 => Ok(()),
        _ => Err(Error::new(OpsErrorKind::Cancelled, "enough")),
    };
    let error = ops.load_weight(&source, &mut stop).unwrap_err();
    assert_eq!(error.kind, OpsErrorKind::Cancelled);
    assert_eq!((ledger.entries(), simulator.alive()), before);
    ops.shutdown().unwrap();
}

/// A host that is asked whether it cancels, and told how far the load is.
#[derive(Clone, Default)]
struct Asked {
    /// At which question it does.
    cancels_at: usize,
    questions: Arc<AtomicUsize>,
    told: Arc<Mutex<Vec<(u64, u64)>>>,
}

impl HostServices for Asked {
    fn log_enabled(&self, _level: LogLevel, _target: RStr<'_>) -> bool {
        false
    }
    fn log(&self, _record: &LogRecord<'_>) {}
    fn progress(&self, _stage: RStr<'_>, done: u64, total: u64) {
        self.told.lock().unwrap().push((done, total));
    }
    fn cancelled(&self) -> bool {
        self.questions.fetch_add(1, Ordering::Relaxed) + 1 == self.cancels_at
    }
}

fn open_for(host: &Asked, spec: &OpenSpec) -> BackendBox {
    let services: Host = HostServices_TO::from_ptr(RArc::new(host.clone()), TD_Opaque);
    met_cuda::root_module().open()(services, spec).unwrap()
}

fn a_host_may_cancel_at_any_question(simulator: &Simulator) {
    for cancels_at in 1.. {
        let host = Asked {
            cancels_at,
            ..Asked::default()
        };
        let mut backend = open_for(&host, &OpenSpec::default());
        let before = on_the_ledger(&backend);
        match load_spec(&mut backend, &model_spec(MODEL)) {
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::Cancelled, "{error}");
                assert_eq!(on_the_ledger(&backend), before, "question {cancels_at}");
                assert_eq!(simulator.alive(), before, "question {cancels_at}");
            }
            Ok(mut model) => {
                assert!(
                    cancels_at > 15,
                    "it is asked at each weight, not {cancels_at} times"
                );
                let told = host.told.lock().unwrap();
                assert!(told.is_sorted() && told.iter().all(|(_, total)| *total == told[0].1));
                assert!(told.last().is_some_and(|(done, total)| done == total), "{told:?}");
                model.release_pools().unwrap();
                return;
            }
        }
    }
}

fn a_limit_is_kept() {
    let limited = |memory_limit: u64| {
        let spec = OpenSpec {
            memory_limit,
            ..OpenSpec::default()
        };
        open_for(&Asked::default(), &spec)
    };
    // Besides what is pinned, too little for the weights.
    let mut backend = limited((8 << 20) + (100 << 10));
    assert_eq!(backend.memory().unwrap().free, 100 << 10);
    let spec = ModelSpec {
        kv_bytes: 32 << 10,
        ..model_spec(MODEL)
    };
    let error = load_spec(&mut backend, &spec).map(drop).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Exhausted, "{error}");
    assert!(error.message.contains("bytes more, but"), "{error}");
    assert!(error.message.contains("8491008 allowed"), "{error}");
    drop(backend);
    let mut backend = limited(16 << 20);
    let mut model = load_spec(&mut backend, &model_spec(MODEL)).unwrap();
    assert!(backend.memory().unwrap().ledger_bytes <= 16 << 20);
    model.release_pools().unwrap();
}

/// A cache whose size nobody says takes a part of what is free.
fn the_cache_fits_what_is_free(simulator: &Simulator) {
    let caches = [19, 1024].map(|size: u64| {
        simulator.set("memory", size << 20);
        let mut backend = open_for(&Asked::default(), &OpenSpec::default());
        let spec = ModelSpec {
            kv_bytes: 0,
            ..model_spec(MODEL)
        };
        let mut model = load_spec(&mut backend, &spec).unwrap();
        let cache = model.resources().unwrap();
        let cache = cache
            .iter()
            .find(|pool| pool.label == "kv cache")
            .map(|pool| pool.bytes);
        model.release_pools().unwrap();
        cache.unwrap()
    });
    assert!(caches[0] > 0 && caches[0] < 1 << 20, "{caches:?}");
    assert_eq!(
        caches[1],
        4 * 2048 * 512,
        "four whole contexts of two layers with a head of 64"
    );
}

/// Where the card has no memory in stream order, all is taken and given back at once.
fn a_card_without_a_pool_gives_the_same(simulator: &Simulator) {
    let given = [1, 0].map(|pools| {
        simulator.reset();
        simulator.set("pools", pools);
        let mut backend = open_for(&Asked::default(), &OpenSpec::default());
        let mut model = load_spec(&mut backend, &model_spec(MODEL)).unwrap();
        let tokens = generate(&mut model, &[vec![5, 200, 31]], Sampling::default(), None, 6);
        assert_eq!(on_the_ledger(&backend), simulator.alive());
        assert_eq!(simulator.calls_of("cuMemAllocFromPoolAsync") > 0, pools > 0);
        model.release_pools().unwrap();
        tokens[0].iter().map(|drawn| drawn.token).collect::<Vec<_>>()
    });
    assert_eq!(given[0], given[1]);
    simulator.set("pools", 1);
}
