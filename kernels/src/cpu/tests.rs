use super::{CpuOps, Isa};
use crate::{Ledger, optest, reference::Reference};

#[test]
fn every_instruction_set_passes_every_check() {
    for isa in Isa::available() {
        for threads in 1..=4 {
            eprintln!("{isa}, {threads} threads");
            let ledger = Ledger::default();
            let mut ops = CpuOps::with_isa(threads, ledger.clone(), isa).unwrap();
            optest::run(&mut ops, &ledger);
            ops.shutdown().unwrap();
            assert_eq!(ledger.entries(), []);
        }
    }
}

#[test]
fn the_reference_passes_every_check() {
    let ledger = Ledger::default();
    optest::run(&mut Reference::new(ledger.clone()), &ledger);
    assert_eq!(ledger.entries(), []);
}
