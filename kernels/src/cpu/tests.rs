use super::{CpuOps, Isa};
use crate::{
    Ledger,
    optest::{
        self, Random, assert_same_bits,
        attention::{Batch, Sequence, shape},
        recurrent::{Sequences, kinds},
    },
    reference::Reference,
};

#[test]
fn every_instruction_set_passes_every_check() {
    let teams = [1, 3, 4].map(|threads| (Isa::best(), threads));
    for (isa, threads) in Isa::available().map(|isa| (isa, 2)).chain(teams) {
        eprintln!("{isa}, {threads} threads");
        let ledger = Ledger::default();
        let mut ops = CpuOps::with_isa(threads, ledger.clone(), isa).unwrap();
        optest::run(&mut ops, &ledger);
        ops.shutdown().unwrap();
        assert_eq!(ledger.entries(), []);
    }
}

#[test]
fn the_reference_passes_every_check() {
    let ledger = Ledger::default();
    optest::run(&mut Reference::new(ledger.clone()), &ledger);
    assert_eq!(ledger.entries(), []);
}

#[test]
fn the_number_of_threads_doesnt_matter() {
    let sequences = [(0, 100), (700, 1), (300, 7), (0, 1), (1000, 1)];
    let sequences = sequences.map(|(context, new)| Sequence { context, new });
    let batch = Batch::new(&mut Random::new(15), shape(9, 3, 64), 16, &sequences);
    for isa in Isa::available() {
        let results = [1, 2, 3, 4].map(|threads| {
            let mut ops = CpuOps::with_isa(threads, Ledger::default(), isa).unwrap();
            batch.run(&mut ops)
        });
        for result in &results[1..] {
            assert_same_bits(result, &results[0], isa);
        }
    }
}

#[test]
fn the_number_of_threads_doesnt_matter_to_recurrent_layers() {
    let mut random = Random::new(24);
    for kind in kinds() {
        let sequences = Sequences::new(&mut random, kind, &[100, 1, 9]);
        let steps = sequences.steps(&mut random, 40);
        for isa in Isa::available() {
            let results = [1, 2, 3, 4].map(|threads| {
                let mut ops = CpuOps::with_isa(threads, Ledger::default(), isa).unwrap();
                sequences.run(&mut ops, &steps).0.concat()
            });
            for result in &results[1..] {
                assert_same_bits(result, &results[0], format_args!("{kind:?}, {isa}"));
            }
        }
    }
}
