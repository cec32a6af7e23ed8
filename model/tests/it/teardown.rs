//! Load and release: nothing is left behind, whatever fails.

use crate::support::{Sequence, TestHost, Tiny, all_logits, load, spec};
use met_backend_api::{self as abi, Batch, Want, abi_stable::std_types::RSlice, sdk::BackendModel};
use met_kernels::{ErrorKind, Kind, Ledger, TensorType, cpu::CpuOps};
use met_model::LoadedModel;
use std::{cell::RefCell, rc::Rc};

const ORDER: [&str; 4] = ["derived weights", "kv cache", "buffer arena", "weight store"];

#[test]
fn pools_are_released_in_order_and_everything_comes_back() {
    let ledger = Ledger::default();
    let file = Tiny::of(TensorType::Q4_1).file();
    let mut model = load(CpuOps::new(1, ledger.clone()).unwrap(), file.path());
    let resources = model.resources().unwrap();
    assert_eq!(
        resources.iter().map(|r| r.label.as_str()).collect::<Vec<_>>(),
        ORDER
    );
    for resource in &resources {
        let held = ledger.owned_by(&resource.label);
        assert_eq!((resource.bytes, resource.allocations), held, "{}", resource.label);
        assert!(resource.bytes > 0);
    }
    let step = [Sequence::new(&[1, 2, 3], 0, &[0], Want::Token)];
    all_logits(&mut model, &step);

    let report = model.release_pools().unwrap();
    assert_eq!(
        report.steps.iter().map(|s| s.label.as_str()).collect::<Vec<_>>(),
        ORDER
    );
    assert_eq!(report.first_error(), None);
    assert_eq!(ledger.total(), (0, 0));
    for (step, resource) in report.steps.iter().zip(&resources) {
        assert!(step.bytes >= resource.bytes, "{}", step.label);
    }

    assert!(
        model.release_pools().unwrap().steps.is_empty(),
        "a second call does nothing"
    );
    let rows = [step[0].row()];
    let after = model.submit(&Batch {
        rows: RSlice::from_slice(&rows),
    });
    assert_eq!(after.unwrap_err().kind, abi::ErrorKind::Invalid);
    assert!(model.resources().unwrap().iter().all(|r| r.bytes == 0));
}

#[test]
fn unquantised_weights_are_on_the_ledger_and_nothing_holds_the_file() {
    let ledger = Ledger::default();
    let file = Tiny::of(TensorType::F16).file();
    let mut model = load(CpuOps::new(1, ledger.clone()).unwrap(), file.path());
    let (bytes, _) = ledger.owned_by("weight store");
    let parameters = model.info().unwrap().parameters;
    assert!(
        bytes > 2 * parameters && bytes < 2 * parameters + 10_000,
        "{bytes} bytes of {parameters} parameters"
    );
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains(file.path()));
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let mut opened = descriptors.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    assert!(!opened.any(|path| path == *file.path()));
    model.release_pools().unwrap();
    assert_eq!(ledger.total(), (0, 0));
}

#[test]
fn a_load_that_fails_at_any_allocation_leaves_nothing() {
    let file = Tiny {
        biases: true,
        tied: false,
        ..Tiny::default()
    }
    .file();
    let mut failures = 0;
    loop {
        let ledger = Ledger::refusing(failures + 1);
        let ops = Rc::new(RefCell::new(CpuOps::new(1, ledger.clone()).unwrap()));
        match LoadedModel::load(ops, &TestHost::quiet(), &spec(file.path()), || u64::MAX) {
            Ok(_) => break,
            Err(e) => assert_eq!(e.kind, ErrorKind::Exhausted),
        }
        assert_eq!(ledger.total(), (0, 0), "entry {} was refused", failures + 1);
        failures += 1;
    }
    // 16 matrices, 19 vectors, the cache and 11 activations.
    assert!(failures >= 47, "{failures}");
}

#[test]
fn a_step_whose_allocation_fails_is_an_error_and_may_be_repeated() {
    let file = Tiny::of(TensorType::Q4_1).file();
    let sequence = [Sequence::new(&[1, 2, 3], 0, &[0], Want::AllLogits)];
    let entries = |ledger: &Ledger| ledger.enter(Kind::Event, "count", 0).unwrap();

    let ledger = Ledger::default();
    let mut model = load(CpuOps::new(1, ledger.clone()).unwrap(), file.path());
    let loaded = entries(&ledger);
    let (_, expected) = all_logits(&mut model, &sequence);
    let taken = entries(&ledger) - loaded - 1;
    assert!(taken > 0, "a first step takes its workspace");
    for refused in loaded..loaded + taken {
        let ledger = Ledger::refusing(refused);
        let mut model = load(CpuOps::new(1, ledger).unwrap(), file.path());
        let rows = [sequence[0].row()];
        let step = model.submit(&Batch {
            rows: RSlice::from_slice(&rows),
        });
        assert_eq!(step.unwrap_err().kind, abi::ErrorKind::Exhausted);
        assert!(all_logits(&mut model, &sequence).1 == expected);
    }
}

#[test]
fn a_cancelled_load_leaves_nothing() {
    let file = Tiny::default().file();
    let asked = {
        let host = TestHost::default();
        let ops = Rc::new(RefCell::new(CpuOps::new(1, Ledger::default()).unwrap()));
        LoadedModel::load(ops, &host.services(), &spec(file.path()), || u64::MAX).unwrap();
        host.times_asked()
    };
    assert!(asked > 15, "once a tensor");
    for n in 1..=asked {
        let ledger = Ledger::default();
        let ops = Rc::new(RefCell::new(CpuOps::new(1, ledger.clone()).unwrap()));
        let host = TestHost::cancelling_at(n).services();
        let error = LoadedModel::load(ops, &host, &spec(file.path()), || u64::MAX)
            .map(drop)
            .unwrap_err();
        assert_eq!(error.kind, ErrorKind::Cancelled);
        assert_eq!(ledger.total(), (0, 0));
    }
}

#[test]
fn what_the_host_asks_for_is_checked() {
    let file = Tiny::default().file();
    type Change = fn(&mut abi::ModelSpec);
    let try_load = |change: Change| {
        let ops = Rc::new(RefCell::new(CpuOps::new(1, Ledger::default()).unwrap()));
        let mut spec = spec(file.path());
        change(&mut spec);
        LoadedModel::load(ops, &TestHost::quiet(), &spec, || 1 << 20).map(|m| m.info().unwrap())
    };
    let wrong: [(Change, ErrorKind); 7] = [
        (|s| s.max_rows = 0, ErrorKind::Invalid),
        (|s| s.max_batch_tokens = 7, ErrorKind::Invalid),
        (|s| s.max_batch_tokens = u32::MAX, ErrorKind::Invalid),
        (|s| s.context = 513, ErrorKind::Invalid),
        (|s| s.path = "/nowhere".into(), ErrorKind::Invalid),
        (|s| s.kv_bytes = 1, ErrorKind::Exhausted),
        (|s| s.kv_bytes = (1 << 20) + 1, ErrorKind::Exhausted),
    ];
    for (change, kind) in wrong {
        assert_eq!(try_load(change).unwrap_err().kind, kind);
    }
    let info = try_load(|s| s.kv_bytes = 0).unwrap();
    assert_eq!(
        info.block_count as u64,
        (1 << 18) / info.block_bytes,
        "a quarter of what is free"
    );
    let info = try_load(|s| s.kv_bytes = 3 * 32768).unwrap();
    assert_eq!(
        (info.block_count, info.context_length),
        (3, 96),
        "a sequence can't be longer than the cache"
    );
    assert_eq!((info.block_bytes, info.block_size), (32768, 32));
    let short = |s: &mut abi::ModelSpec| {
        s.context = 100;
        s.kv_bytes = 1 << 20;
    };
    let info = try_load(short).unwrap();
    assert_eq!(info.context_length, 100);
}
