//! State slots and snapshots: who holds them, what each call checks, and what a teardown says of them.

use crate::{
    architectures::fixtures,
    support::{Sequence, TestHost, all_logits, load, spec},
};
use met_backend_api::{
    self as abi, Batch, NO_SLOT, Want,
    abi_stable::std_types::RSlice,
    sdk::{BackendModel, Output},
};
use met_kernels::{ErrorKind, Kind, Ledger, cpu::CpuOps};
use met_model::LoadedModel;
use std::{cell::RefCell, rc::Rc};

type Model = LoadedModel<CpuOps>;

fn path() -> String {
    let path = fixtures().join("granitemoehybrid");
    path.to_str().unwrap().to_owned()
}

fn model_on(ledger: Ledger) -> Model {
    load(CpuOps::new(1, ledger).unwrap(), &path())
}

fn sequence(tokens: &[u32], position: u32, slot: u32) -> Sequence {
    // Each slot has a block of its own.
    Sequence::new(tokens, position, &[slot.min(7)], Want::AllLogits).in_slot(slot)
}

fn run(model: &mut Model, tokens: &[u32], position: u32, slot: u32) -> Vec<Vec<f32>> {
    all_logits(model, &[sequence(tokens, position, slot)]).1
}

fn submit(model: &mut Model, sequences: &[Sequence]) -> Result<u64, abi::Error> {
    let rows: Vec<_> = sequences.iter().map(Sequence::row).collect();
    model.submit(&Batch {
        rows: RSlice::from_slice(&rows),
    })
}

/// The message of a call that is refused.
fn refusal<T: std::fmt::Debug>(result: Result<T, abi::Error>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.kind, abi::ErrorKind::Invalid, "{}", error.message);
    error.message.into()
}

#[test]
fn a_row_goes_on_where_its_slot_is_and_a_refused_batch_moves_nothing() {
    let mut model = model_on(Ledger::default());
    assert_eq!(model.info().unwrap().state_slots, 8);
    run(&mut model, &[1, 2, 3], 0, 0);
    let row = |position, slot| sequence(&[4], position, slot);
    for (part, rows) in [
        ("names no state slot", vec![row(3, NO_SLOT)]),
        ("state slot 8 is not one of the 8", vec![row(0, 8)]),
        ("at position 2, but its state slot 0 is at 3", vec![row(2, 0)]),
        ("at position 4, but its state slot 0 is at 3", vec![row(4, 0)]),
        ("state slot 1 is held by no sequence", vec![row(3, 1)]),
        (
            "another row's",
            vec![
                row(3, 0),
                Sequence {
                    blocks: vec![5],
                    ..row(0, 0)
                },
            ],
        ),
        // The first row is right.
        ("outside the vocabulary", vec![row(3, 0), sequence(&[96], 0, 1)]),
    ] {
        let message = refusal(submit(&mut model, &rows));
        assert!(message.contains(part), "expected \"{part}\" in \"{message}\"");
    }
    let message = refusal(submit(&mut model, &[row(3, 1)]));
    assert!(message.contains("held by no"), "{message}");
    let next = run(&mut model, &[4], 3, 0);
    let mut other = model_on(Ledger::default());
    assert!(run(&mut other, &[1, 2, 3, 4], 0, 6)[3..] == next);
    // A row at position 0 begins it anew, whatever it held.
    assert!(run(&mut other, &[1, 2, 3, 4], 0, 0) == run(&mut model, &[1, 2, 3, 4], 0, 0));
}

#[test]
fn copies_of_states_are_checked_and_know_their_position() {
    let mut model = model_on(Ledger::default());
    let bytes = model.info().unwrap().state_bytes as usize;
    let snapshots = model.info().unwrap().snapshot_slots;
    assert_eq!(snapshots, 16, "two a slot");
    run(&mut model, &[1, 2, 3], 0, 0);
    let mut state = vec![0; bytes];
    for (part, message) in [
        ("held by no", refusal(model.save_state(1, &mut state))),
        ("not one of the 8", refusal(model.save_state(8, &mut state))),
        ("a state has", refusal(model.save_state(0, &mut state[1..]))),
        ("a state has", refusal(model.restore_state(1, 3, &state[1..]))),
        ("not one of the 8", refusal(model.restore_state(8, 3, &state))),
        ("context", refusal(model.restore_state(1, 513, &state))),
        ("not one of the 8", refusal(model.free_state(8))),
        ("held by no", refusal(model.take_snapshot(1, 0))),
        ("not one of the 16", refusal(model.take_snapshot(0, snapshots))),
        ("holds nothing", refusal(model.use_snapshot(0, 1))),
        ("not one of the 16", refusal(model.use_snapshot(snapshots, 1))),
    ] {
        assert!(message.contains(part), "expected \"{part}\" in \"{message}\"");
    }
    model.take_snapshot(0, 15).unwrap();
    assert!(refusal(model.use_snapshot(15, 9)).contains("not one of the 8"));
    let four = run(&mut model, &[4], 3, 0);
    model.save_state(0, &mut state).unwrap();
    let five = run(&mut model, &[5], 4, 0);
    model.free_state(0).unwrap();
    model.free_state(0).unwrap();

    // The keys and values are still in the first slot's block.
    let resumed = |model: &mut Model, tokens, position, slot| {
        let row = Sequence {
            blocks: vec![0],
            ..sequence(tokens, position, slot)
        };
        all_logits(model, &[row]).1
    };
    model.use_snapshot(15, 2).unwrap();
    assert!(refusal(submit(&mut model, &[sequence(&[4], 4, 2)])).contains("is at 3"));
    assert!(resumed(&mut model, &[4], 3, 2) == four);
    model.restore_state(3, 4, &state).unwrap();
    assert!(refusal(submit(&mut model, &[sequence(&[4], 3, 3)])).contains("is at 4"));
    assert!(resumed(&mut model, &[5], 4, 3) == five);
}

#[test]
fn models_without_recurrent_state_have_no_slots() {
    let path = fixtures().join("qwen3");
    let mut model = load(CpuOps::new(1, Ledger::default()).unwrap(), path.to_str().unwrap());
    let info = model.info().unwrap();
    assert_eq!(
        (info.state_slots, info.state_bytes, info.snapshot_slots),
        (0, 0, 0)
    );
    for message in [
        refusal(model.save_state(0, &mut [])),
        refusal(model.restore_state(0, 0, &[])),
        refusal(model.free_state(0)),
        refusal(model.take_snapshot(0, 0)),
        refusal(model.use_snapshot(0, 0)),
    ] {
        assert!(message.contains("no recurrent state"), "{message}");
    }
}

#[test]
fn a_step_that_failed_halfway_loses_its_states_and_no_others() {
    let entries = |ledger: &Ledger| ledger.enter(Kind::Event, "count", 0).unwrap();
    let ledger = Ledger::default();
    let mut model = model_on(ledger.clone());
    run(&mut model, &[1, 2, 3], 0, 0);
    let before = entries(&ledger);
    // A longer step needs more workspace.
    let long: Vec<u32> = (0..29).collect();
    let expected = run(&mut model, &long, 3, 0);
    let after = entries(&ledger);
    assert!(after > before + 1, "a longer step takes memory");
    let mut lost = 0;
    for refused in before..after - 1 {
        let mut model = model_on(Ledger::refusing(refused));
        run(&mut model, &[1, 2, 3], 0, 0);
        let error = submit(&mut model, &[sequence(&long, 3, 0)]).unwrap_err();
        assert_eq!(error.kind, abi::ErrorKind::Exhausted);
        match submit(&mut model, &[sequence(&long, 3, 0)]) {
            Ok(ticket) => {
                let mut logits = vec![0.0; expected.concat().len()];
                let mut out = Output {
                    rows: &mut [abi::RowOutput::default()],
                    top: &mut [],
                    logits: &mut logits,
                };
                model.collect(ticket, &mut out).unwrap();
                assert!(logits == expected.concat());
            }
            Err(error) => {
                assert!(error.message.contains("was lost"), "{}", error.message);
                let all = [&[1, 2, 3], long.as_slice()].concat();
                assert!(run(&mut model, &all, 0, 0)[3..] == expected);
                lost += 1;
            }
        }
    }
    assert!(lost > 0);
}

const ORDER: [&str; 5] = [
    "ssm snapshots",
    "ssm state pool",
    "kv cache",
    "buffer arena",
    "weight store",
];

#[test]
fn pools_of_states_are_released_in_order() {
    let ledger = Ledger::default();
    let mut model = model_on(ledger.clone());
    let info = model.info().unwrap();
    for resource in model.resources().unwrap() {
        let held = ledger.owned_by(&resource.label);
        assert_eq!((resource.bytes, resource.allocations), held, "{}", resource.label);
    }
    assert_eq!(ledger.owned_by("ssm state pool").0, 8 * info.state_bytes);
    assert_eq!(ledger.owned_by("ssm snapshots").0, 16 * info.state_bytes);
    run(&mut model, &[1, 2], 0, 3);
    model.take_snapshot(3, 1).unwrap();
    model.free_state(3).unwrap();
    let report = model.release_pools().unwrap();
    let labels: Vec<_> = report.steps.iter().map(|step| step.label.as_str()).collect();
    assert_eq!(labels[labels.len() - ORDER.len()..], ORDER);
    assert_eq!(report.first_error(), None);
    assert_eq!(ledger.total(), (0, 0));
    assert!(refusal(model.free_state(3)).contains("released"));
}

#[test]
fn held_slots_leave_the_pool_for_the_sweep() {
    for slots in [1, 3] {
        let ledger = Ledger::default();
        let mut model = model_on(ledger.clone());
        let bytes = 8 * model.info().unwrap().state_bytes;
        for slot in 0..slots {
            run(&mut model, &[1, 2], 0, slot);
        }
        let report = model.release_pools().unwrap();
        let (label, error) = report.first_error().unwrap();
        assert_eq!(label, "ssm state pool");
        let held = if slots == 1 {
            "1 state slot is"
        } else {
            "3 state slots are"
        };
        assert!(error.message.contains(held), "{}", error.message);
        drop(model);
        assert_eq!(ledger.total(), (bytes, 1), "nothing else is left, and this is");
        let swept = ledger.sweep();
        assert_eq!(swept.len(), 1);
        assert_eq!(ledger.total(), (0, 0));
    }
}

#[test]
fn a_load_that_fails_at_any_allocation_leaves_nothing() {
    let mut failures = 0;
    loop {
        let ledger = Ledger::refusing(failures + 1);
        let ops = Rc::new(RefCell::new(CpuOps::new(1, ledger.clone()).unwrap()));
        match LoadedModel::load(ops, &TestHost::quiet(), &spec(&path()), || u64::MAX) {
            Ok(_) => break,
            Err(e) => assert_eq!(e.kind, ErrorKind::Exhausted),
        }
        assert_eq!(ledger.total(), (0, 0), "entry {} was refused", failures + 1);
        failures += 1;
    }
    assert!(failures >= 60, "{failures}");
}

#[test]
fn slots_and_snapshots_fit_into_what_is_free() {
    let try_load = |snapshots: u32, free: u64| {
        let ops = Rc::new(RefCell::new(CpuOps::new(1, Ledger::default()).unwrap()));
        let mut spec = spec(&path());
        (spec.snapshot_slots, spec.kv_bytes) = (snapshots, 0);
        LoadedModel::load(ops, &TestHost::quiet(), &spec, || free).map(|model| model.info().unwrap())
    };
    let bytes = try_load(0, u64::MAX).unwrap().state_bytes;
    assert_eq!(try_load(3, u64::MAX).unwrap().snapshot_slots, 3);
    assert_eq!(
        try_load(0, 24 * bytes).unwrap().snapshot_slots,
        2,
        "an eighth of the rest"
    );
    for (snapshots, free) in [(0, 8 * bytes - 1), (5, 13 * bytes - 1)] {
        let error = try_load(snapshots, free).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Exhausted, "{}", error.message);
        assert!(error.message.contains("8 slots"), "{}", error.message);
    }
}
