//! Every operation against the reference, from the PTX that is shipped, on the simulated card.

mod support;

use met_cuda::CudaOps;
use met_kernels::{Ledger, optest};
use support::simulator;

#[test]
fn every_operation_passes_every_check() {
    let simulator = simulator();
    simulator.set("threads", 2);
    let ledger = Ledger::default();
    let mut ops = CudaOps::new(0, &ledger).unwrap();
    optest::run(&mut ops, &ledger);
    ops.shutdown().unwrap();
    drop(ops);
    assert_eq!(ledger.entries(), []);
    assert_eq!(simulator.last_error(), "");
    simulator.assert_empty("after the checks");
}
