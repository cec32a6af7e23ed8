//! What a call through the boundary costs beyond its work: the same backend called directly, linked in
//! behind the boundary, and in a library.

use criterion::{Criterion, criterion_group, criterion_main};
use met_backend_api::{
    Batch, ModelSpec, NO_SLOT, OpenSpec, Row, RowOutput, Sampling, Want,
    abi_stable::std_types::{ROption, RSlice},
    sdk::{self, BackendModel, Output},
};
use met_host::loader::{BackendSource, Builtins, Library, Services};
use met_tests::plugins;

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
    for (name, source) in [
        ("built-in", "builtin:echo"),
        ("library", library.to_str().expect("a plain path")),
    ] {
        let source = BackendSource::parse(source, &builtins).expect("a source");
        // This thread is the engine thread. It ends with the process, so the library is not closed.
        let library = Library::load(&source).expect("it loads");
        let opened = library.opener().open(&OpenSpec::default(), &Services::default());
        let mut backend = opened.expect("it opens");
        criterion.bench_function(&format!("memory, {name}"), |bench| {
            bench.iter(|| backend.memory())
        });
        let mut model = backend.load_model(&ModelSpec::default()).expect("it loads");
        criterion.bench_function(&format!("step of 8 rows, {name}"), |bench| {
            bench.iter(|| {
                step(|batch, out| {
                    let ticket = model.submit(batch)?;
                    model.collect(ticket, out)
                })
            });
        });
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
