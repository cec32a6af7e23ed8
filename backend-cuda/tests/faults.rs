//! What failures of the driver leave behind: nothing, whichever call fails. One test, since it watches the process's one
//! simulated card.

mod support;

use met_backend_api::{
    Error, ErrorKind, ResourceKind, Sampling,
    abi::{BackendBox, ModelBox},
    abi_stable::std_types::{RSlice, RSliceMut},
};
use support::{
    Simulator,
    life::{Part, load, on_the_ledger, open, step},
    simulator,
};

const MODEL: &str = "tiny-q4_0.gguf";
const INVALID_VALUE: i32 = 1;
const LAUNCH_FAILED: i32 = 719;

#[test]
fn failures_leave_nothing_behind() {
    let simulator = simulator();
    ledger_and_card_agree(simulator);
    memory_runs_out_anywhere_in_a_load(simulator);
    every_call_fails_once(simulator, INVALID_VALUE);
    a_lost_context_is_a_fault(simulator);
    errors_are_told_apart_by_code(simulator);
    what_the_driver_keeps_is_told(simulator);
}

/// Device memory on the backend's ledger.
fn ledger_bytes(backend: &BackendBox) -> u64 {
    bytes_where(backend, |_| true)
}

fn bytes_where(backend: &BackendBox, is_wanted: impl Fn(&str) -> bool) -> u64 {
    let entries = backend.ledger().unwrap();
    let memory = entries.iter().filter(|entry| entry.kind == ResourceKind::Memory);
    let wanted = memory.filter(|entry| is_wanted(&entry.owner));
    wanted.map(|entry| entry.bytes).sum()
}

fn prompt() -> Part {
    Part {
        tokens: vec![1, 5, 9, 200, 31],
        position: 0,
        blocks: vec![1, 0],
        slot: 0,
        sampling: Sampling {
            temperature: 1.0,
            top_p: 0.9,
            ..Sampling::default()
        },
    }
}

/// Decodes after which a graph was captured and started again; tests/graphs.rs has its failures.
const DECODES: u32 = 3;

/// A prompt and some decodes, and a block out and in.
fn use_model(model: &mut ModelBox, decodes: u32) -> Result<(), Error> {
    step(model, &[prompt()])?;
    for position in 5..5 + decodes {
        let next = Part {
            tokens: vec![3],
            position,
            ..prompt()
        };
        step(model, &[next])?;
    }
    let mut block = vec![0; model.info().into_result()?.block_bytes as usize];
    let blocks = [1];
    model
        .copy_blocks_out(RSlice::from_slice(&blocks), RSliceMut::from_mut_slice(&mut block))
        .into_result()?;
    model
        .copy_blocks_in(RSlice::from_slice(&blocks), RSlice::from_slice(&block))
        .into_result()
}

/// A generation from its opening to its close, whatever fails; after each call of the boundary the ledger and the card
/// agree, and the card holds in the end what is still on the ledger. Returns the first error.
fn life(simulator: &Simulator) -> Result<(), Error> {
    let mut backend = open(met_cuda::root_module())?;
    let agree = |backend: &BackendBox, after: &str| {
        let held = on_the_ledger(backend);
        assert_eq!(simulator.alive(), held, "ledger and card after {after}");
        held
    };
    let opened = agree(&backend, "opening");
    let loaded = load(&mut backend, MODEL);
    let held = agree(&backend, "loading");
    let mut first = loaded.as_ref().err().cloned();
    if let Ok(mut model) = loaded {
        first = first.or(use_model(&mut model, 1).err());
        agree(&backend, "steps");
        let released = model.release_pools().into_result();
        agree(&backend, "the release");
        first = first.or(released.as_ref().err().cloned());
        let step = released
            .ok()
            .and_then(|report| report.first_error().map(|(_, e)| e.clone()));
        first = first.or(step);
    } else if first.as_ref().is_none_or(|error| error.kind != ErrorKind::Fault) {
        assert_eq!(
            held, opened,
            "a load that failed has given back everything: {first:?}"
        );
    }
    // What failed the first time is found the second time.
    for _ in 0..2 {
        let swept = backend.sweep_unreleased().into_result()?;
        agree(&backend, "a sweep");
        first = first.or(swept
            .entries
            .iter()
            .find_map(|swept| swept.error.clone().into_option()));
    }
    let left = agree(&backend, "everything");
    drop(backend);
    assert_eq!(
        simulator.left(),
        left.in_the_context(),
        "at the context's end: {first:?}"
    );
    assert_eq!(simulator.objects("contexts"), 0, "{first:?}");
    first.map_or(Ok(()), Err)
}

fn ledger_and_card_agree(simulator: &Simulator) {
    let mut backend = open(met_cuda::root_module()).unwrap();
    assert_eq!(ledger_bytes(&backend), 0);
    let mut model = load(&mut backend, MODEL).unwrap();
    let held: u64 = model.resources().unwrap().iter().map(|pool| pool.bytes).sum();
    assert_eq!(simulator.live().0, held);
    assert_eq!(ledger_bytes(&backend), held);
    use_model(&mut model, DECODES).unwrap();
    // Steps keep nothing but what the next decode takes again.
    let workspace = bytes_where(&backend, |owner| owner == "workspace");
    assert!(workspace > 0 && workspace < held / 4, "{workspace}");
    assert_eq!(bytes_where(&backend, |owner| owner != "workspace"), held);
    assert_eq!(simulator.live().0, held + workspace);
    assert_eq!(simulator.objects("executables"), 1);
    let released = model.release_pools().unwrap();
    let released: u64 = released.steps.iter().map(|step| step.bytes).sum();
    assert_eq!(released, held + workspace);
    assert_eq!(
        simulator.objects("executables"),
        0,
        "it goes with the activations"
    );
    assert_eq!((simulator.live(), ledger_bytes(&backend)), ((0, 0), 0));
    drop(model);
    assert_eq!(backend.sweep_unreleased().unwrap().count, 0);
    drop(backend);
    simulator.assert_empty("after a life");
}

/// The pool and the context are tried twice, and then named.
fn what_the_driver_keeps_is_told(simulator: &Simulator) {
    let keeps: [(&str, &[&str]); 2] = [
        ("cuMemPoolDestroy", &["context", "memory pool"]),
        ("cuDevicePrimaryCtxRelease_v2", &["context"]),
    ];
    for (function, left) in keeps {
        simulator.reset();
        let mut backend = open(met_cuda::root_module()).unwrap();
        let free = backend.memory().unwrap().free;
        (1..=2).for_each(|n| simulator.fail_of(function, n, INVALID_VALUE));
        let swept = backend.sweep_unreleased().unwrap();
        assert_eq!((swept.count, swept.failures), (1, 1), "{function}: {swept:?}");
        let told = &swept.entries[0];
        assert!(
            left.contains(&told.entry.owner.as_str()) && told.error.is_some(),
            "{told:?}"
        );
        let on_ledger: Vec<_> = backend.ledger().unwrap().into_iter().map(|e| e.owner).collect();
        assert_eq!(on_ledger, left, "{function}");
        assert_eq!(simulator.objects("contexts"), 1, "{function}");

        assert_eq!(backend.sweep_unreleased().unwrap().failures, 0, "{function}");
        assert_eq!(backend.ledger().unwrap(), [], "{function}");
        assert_eq!(simulator.objects("contexts"), 0, "{function}");
        assert!(
            backend.memory().unwrap().free >= free,
            "it is what the card said last"
        );
        drop(backend);
        simulator.assert_empty(function);
    }
}

fn memory_runs_out_anywhere_in_a_load(simulator: &Simulator) {
    let mut backend = open(met_cuda::root_module()).unwrap();
    let before = backend.ledger().unwrap();
    let mut refused = 0;
    for size in (64u64..).map(|n| n << 14) {
        simulator.set("memory", size);
        match load(&mut backend, MODEL) {
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::Exhausted, "{error}");
                assert!(
                    error.message.contains("free of") || error.message.contains("KV cache"),
                    "{error}"
                );
                assert_eq!(backend.ledger().unwrap(), before);
                assert_eq!(simulator.live(), (0, 0));
                refused += 1;
            }
            Ok(mut model) => {
                model.release_pools().unwrap();
                break;
            }
        }
    }
    assert!(refused > 10, "{refused}");
    simulator.set("memory", 1 << 30);
    backend.sweep_unreleased().unwrap();
    drop(backend);
    simulator.assert_empty("after loads without memory");
}

fn every_call_fails_once(simulator: &Simulator, code: i32) {
    simulator.reset();
    life(simulator).unwrap();
    let calls = simulator.calls();
    assert!(calls > 100, "{calls}");
    for n in 1..=calls {
        simulator.reset();
        simulator.fail(n, code);
        eprintln!("call {n} of {calls} fails with {code}");
        // It may have been made up for.
        let _ = life(simulator);
        assert!(!simulator.is_armed(), "call {n} of {calls}");
        simulator.assert_empty("afterwards");
    }
    simulator.reset();
    life(simulator).unwrap();
}

fn a_lost_context_is_a_fault(simulator: &Simulator) {
    simulator.reset();
    let mut backend = open(met_cuda::root_module()).unwrap();
    let mut model = load(&mut backend, MODEL).unwrap();
    let before = simulator.calls();
    simulator.fail(30, LAUNCH_FAILED);
    let error = use_model(&mut model, DECODES).unwrap_err();
    assert!(simulator.calls() - before >= 30);
    assert_eq!(error.kind, ErrorKind::Fault, "{error}");
    assert!(error.message.contains("replace the generation"), "{error}");
    assert_eq!(step(&mut model, &[prompt()]).unwrap_err().kind, ErrorKind::Fault);
    // Its memory is the lost context's: what can't be freed is named, and goes with the context.
    let report = model.release_pools().unwrap();
    assert!(report.first_error().is_some());
    drop(model);
    let swept = backend.sweep_unreleased().unwrap();
    assert_eq!(swept.failures, swept.count);
    assert!(swept.entries.iter().any(|e| e.entry.owner == "weight store"));
    drop(backend);
    simulator.reset();
    simulator.assert_empty("after a lost context");
    life(simulator).unwrap();
}

/// Who is to act on an error follows from the driver's number, not from its text.
fn errors_are_told_apart_by_code(simulator: &Simulator) {
    let kinds: [(ErrorKind, &[i32]); 4] = [
        (ErrorKind::Exhausted, &[2]),
        // No device, PTX that is too new, no code for this card.
        (ErrorKind::Invalid, &[100, 222, 209]),
        (ErrorKind::Bug, &[1, 400, 801]),
        // A memory error that no code corrects, then what a kernel did, a lost context, and what nobody knows.
        (
            ErrorKind::Fault,
            &[214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999],
        ),
    ];
    for (kind, codes) in kinds {
        for &code in codes {
            let mut backend = open(met_cuda::root_module()).unwrap();
            let mut model = load(&mut backend, MODEL).unwrap();
            simulator.fail_of("cuLaunchKernel", 1, code);
            let error = use_model(&mut model, 1).unwrap_err();
            assert_eq!(error.kind, kind, "{code}: {error}");
        }
    }
}
