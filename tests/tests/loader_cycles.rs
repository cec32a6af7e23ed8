//! Many lives of a library leave nothing behind. Alone in its process, whose counts it compares.

use met_backend_api::{ModelSpec, OpenSpec, abi_stable::std_types::Tuple2};
use met_host::loader::{BackendSource, Builtins, Library, Services, Unload};
use met_tests::{cycles::Holdings, plugins};
use std::{thread, time::Duration};

const CYCLES: usize = 200;
/// What is made once, at first use, is made in these.
const WARM_UP: usize = 5;
const BEHAVIOURS: [&str; 4] = [
    "thread-local with a destructor",
    "key with a destructor",
    "panic in open",
    "panic in drop",
];

#[test]
fn two_hundred_lives_keep_mappings_threads_descriptors_and_keys_constant() {
    let echo = plugins::plugin("echo").unwrap();
    let source = BackendSource::parse(echo.to_str().unwrap(), &Builtins::default()).unwrap();
    for cycle in 0..WARM_UP {
        live(&source, cycle);
    }
    let before = Holdings::now().unwrap();
    for cycle in 0..CYCLES {
        live(&source, cycle);
    }
    let after = Holdings::now().unwrap();
    assert_eq!(before.threads, after.threads);
    assert_eq!(before.descriptors, after.descriptors);
    assert_eq!(before.free_keys, after.free_keys);
    assert_eq!(after.staged, 0);
    // The allocator may take or give back a few regions of its own.
    assert!(
        after.mappings.abs_diff(before.mappings) < 10,
        "{before:?} {after:?}"
    );
}

fn live(source: &BackendSource, cycle: usize) {
    let mut library = Library::load(source).unwrap();
    let opener = library.opener();
    let behaviour = BEHAVIOURS[cycle % BEHAVIOURS.len()];
    let engine = thread::spawn(move || {
        let spec = OpenSpec {
            options: [Tuple2("behaviour".into(), behaviour.into())]
                .into_iter()
                .collect(),
            ..OpenSpec::default()
        };
        let mut backend = opener.open(&spec, &Services::default())?;
        backend.load_model(&ModelSpec::default())?.release_pools()?;
        backend.sweep_unreleased()
    });
    let result = engine.join().unwrap();
    assert_eq!(result.is_err(), behaviour == "panic in open", "{result:?}");
    assert_eq!(library.close(Duration::from_secs(20)), Unload::Unmapped);
}
