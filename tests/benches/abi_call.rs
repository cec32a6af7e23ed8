//! What a call through the boundary costs beyond its work: the same backend called directly, linked in
//! behind the boundary, and in a library.

use criterion::{Criterion, criterion_group, criterion_main};
use met_backend_api::{
    Batch, ModelSpec, NO_SLOT, OpenSpec, Row, RowOutput, Sampling, Want,
    abi_stable::std_types::{ROption, RSlice},
    sdk::{self, BackendModel, Output},
};
use met_host::loader::{BackendSource, Builtins, Library, Model, Services};
use met_tests::plugins;
use std::time::Duration;

#[path = "../plugins/echo.rs"]
mod echo;

fn calls(criterion: &mut Criterion) {
    let mut direct = EchoModel::new();
    criterion.bench_function("step of 8 rows, direct", |bench| {
        bench.iter(|| {
            step(|batch, out| {
                let ticket = direct.submit(&batch)?;
                direct.collect(ticket, &mut { out })
            })
        });
    });
    let builtins = Builtins::default().with("echo", echo::root_module);
    let library = plugins::plugin("echo").expect("echo is built");
    for (name, source) in [("built-in", "builtin:echo"), ("library", library.to_str().expect("a plain path"))] {
        let source = BackendSource::parse(source, &builtins).expect("a source");
        let mut library = Library::load(&source).expect("it loads");
        // The engine thread, so that the library can be closed.
        let opener = library.opener();
        std::thread::scope(|scope| {
            let criterion = &mut *criterion;
            scope.spawn(move || {
                let mut backend = opener.open(&OpenSpec::default(), &Services::default()).expect("it opens");
                criterion.bench_function(&format!("memory, {name}"), |bench| bench.iter(|| backend.memory()));
                let mut model: Model = backend.load_model(&ModelSpec::default()).expect("it loads");
                criterion.bench_function(&format!("step of 8 rows, {name}"), |bench| {
                    bench.iter(|| {
                        step(|batch, out| {
                            let ticket = model.submit(batch)?;
                            model.collect(ticket, out)
                        })
                    });
                });
            });
        });
        library.close(Duration::from_secs(10));
    }
}

type EchoModel = <echo::Echo as sdk::Backend>::Model;

fn step(run: impl FnOnce(Batch<'_>, Output<'_>) -> Result<(), met_backend_api::Error>) -> [RowOutput; 8] {
    let row = Row {
        tokens: RSlice::from_slice(&[1]),
        input: ROption::RNone,
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
    let mut rows = [RowOutput::default(); 8];
    let out = Output {
        rows: &mut rows,
        top: &mut [],
        logits: &mut [],
    };
    run(
        Batch {
            rows: RSlice::from_slice(&[row; 8]),
        },
        out,
    )
    .expect("a step");
    rows
}

criterion_group!(benches, calls);
criterion_main!(benches);
