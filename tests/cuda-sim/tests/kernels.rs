//! Every committed kernel of the CUDA backend is understood whole.

mod support;

use support::{Sim, last_error};

#[test]
fn every_kernel_of_the_backend_loads() {
    let sim = Sim::new();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels/cuda/ptx");
    let mut loaded = 0;
    for entry in std::fs::read_dir(folder).expect("the kernels' folder") {
        let path = entry.expect("entry").path();
        let text = std::fs::read_to_string(&path).expect("PTX");
        sim.load(&text)
            .unwrap_or_else(|code| panic!("{}: {code:?} {}", path.display(), last_error()));
        loaded += 1;
    }
    assert!(loaded > 0, "no kernel in {folder}");
}
