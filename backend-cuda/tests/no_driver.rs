//! A machine without a driver: what probe and open say. A process of its own, in which no driver is ever opened.

mod support;

use met_backend_api::ErrorKind;
use support::life::{host, open};

#[test]
fn what_is_missing_is_said_in_plain_words() {
    let report = met_cuda::root_module().probe()(host()).unwrap();
    let opened = open(met_cuda::root_module()).map(drop);
    // A machine that has a card as well says so.
    if report.problem.is_empty() {
        assert!(!report.devices.is_empty());
        return opened.unwrap();
    }
    assert!(report.devices.is_empty());
    let error = opened.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid);
    for text in [&report.problem, &error.message] {
        assert!(text.contains("driver"), "{text}");
    }
    if report.problem.contains("not found") {
        for part in ["libcuda.so.1", "525", "CUDA 12.0"] {
            assert!(report.problem.contains(part), "{part} in {}", report.problem);
        }
    }
}
