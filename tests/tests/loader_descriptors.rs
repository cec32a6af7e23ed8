//! A library is not unmapped under a thread that the host can't look up. Alone in its process, which it leaves without
//! descriptors.

use met_host::loader::{BackendSource, Builtins, Library, Services, Unload};
use met_tests::{
    life::{PATIENCE, spec},
    plugins,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{fs, thread, time::Duration};

#[test]
fn a_thread_is_seen_without_a_descriptor_to_look_it_up_with() {
    let folder = tempfile::tempdir().unwrap();
    let until = folder.path().join("until");
    let echo = plugins::plugin("echo").unwrap();
    let source = BackendSource::parse(echo.to_str().unwrap(), &Builtins::default()).unwrap();
    let mut library = Library::load(&source).unwrap();
    let (opener, spec) = (
        library.opener(),
        spec(Some(("thread until", until.to_str().unwrap()))),
    );
    let engine = thread::spawn(move || opener.open(&spec, &Services::default()).map(drop));
    engine.join().unwrap().unwrap();

    let usual = getrlimit(Resource::Nofile);
    let none = Rlimit {
        current: Some(0),
        ..usual
    };
    setrlimit(Resource::Nofile, none).unwrap();
    let unload = library.close(Duration::ZERO);
    setrlimit(Resource::Nofile, usual).unwrap();
    match unload {
        Unload::Retained { reason } => {
            assert!(
                reason.starts_with("its code still runs on a thread (thread "),
                "{reason}"
            );
        }
        other => panic!("it runs still: {other:?}"),
    }
    fs::write(&until, "").unwrap();
    assert_eq!(library.close(PATIENCE), Unload::Unmapped);
}
