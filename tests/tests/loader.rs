//! Real libraries through the loader: a whole life, every way to be refused, every way to misbehave.

use met_backend_api::{Error, ErrorKind, ModelSpec, OpenSpec};
use met_host::loader::{self, Backend, BackendSource, Builtins, Library, LoadError, Services, Unload};
use met_tests::{
    life::{PATIENCE, batch, life, row, spec, with_option},
    plugins::{self, Variant, built},
};
use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, mpsc},
    thread,
    time::Duration,
};

#[path = "../plugins/echo.rs"]
mod echo;

#[test]
fn a_built_in_and_a_library_live_the_same_life() {
    let library = life(&source(&echo_library()));
    let built_in = life(&BackendSource::parse("builtin:echo", &builtins()).unwrap());
    assert_eq!(library, built_in);
    assert!(
        library.iter().any(|line| line == "[6, 9]"),
        "the echo of 5 and 8 is missing: {library:?}"
    );
}

#[test]
fn a_file_that_is_no_backend_is_refused_in_one_line_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("readme.so");
    fs::write(&text, "no library").unwrap();
    let broken = folder.path().join("broken.so");
    let library = fs::read(echo_library()).unwrap();
    fs::write(&broken, &library[..library.len() / 2]).unwrap();
    let stranger = plugins::plugin("stranger").unwrap();
    for (file, what) in [
        (&text, "not a shared library"),
        (&broken, "not a shared library"),
        (&stranger, "a library, but no backend (it exports no root module)"),
        (&folder.path().join("missing.so"), "No such file"),
        (&folder.path().to_owned(), "not a regular file"),
    ] {
        refused(file, what);
    }
    assert_eq!(mappings_of("stranger"), 0);
    assert!(matches!(
        BackendSource::parse("builtin:gpu", &builtins()),
        Err(LoadError::UnknownBuiltIn { .. })
    ));
}

#[test]
fn another_version_of_the_contract_is_refused_by_number() {
    let edits = [(
        "backend-api/src/lib.rs",
        "API_VERSION: u32 = 1",
        "API_VERSION: u32 = 2",
    )];
    let variant = Variant {
        edits: &edits,
        ..Variant::default()
    };
    let file = built(Path::new(env!("CARGO_TARGET_TMPDIR")), "api-2", &variant);
    refused(
        &file,
        "built for version 2 of the backend API, this program has version 1",
    );
    assert_eq!(mappings_of("api_2"), 0);
}

#[test]
fn another_layout_is_refused_at_the_field_that_differs() {
    let edits = [(
        "backend-api/src/abi/device.rs",
        "pub ledger_count: u64",
        "pub ledger_count: u32",
    )];
    let variant = Variant {
        edits: &edits,
        ..Variant::default()
    };
    refused(
        &built(Path::new(env!("CARGO_TARGET_TMPDIR")), "layout", &variant),
        "at open.memory.ledger_count: mismatched type Expected: u64 Found: u32",
    );
    assert_eq!(mappings_of("layout"), 0);
}

fn refused(file: &Path, what: &str) {
    let error = Library::load(&source(file)).unwrap_err().to_string();
    assert!(error.contains(what), "{error}");
    assert!(error.starts_with(&file.display().to_string()), "{error}");
    assert!(!error.contains('\n') && error.len() < 700, "{error}");
}

#[test]
fn a_panic_is_an_error_and_the_library_still_goes() {
    let error = with_behaviour("panic in open", |_| Ok(())).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Bug);
    assert!(error.message.contains("echo was told to panic"), "{error}");

    let errors = with_behaviour("panic in submit", |backend| {
        let mut model = backend.load_model(&ModelSpec::default())?;
        let errors = [
            model.submit(batch(&[row(&[1])])),
            model.submit(batch(&[row(&[1])])),
        ];
        assert_eq!(
            model.release_pools()?.steps.len(),
            1,
            "release works after a panic"
        );
        Ok(errors.map(Result::unwrap_err))
    });
    let [first, second] = errors.unwrap();
    assert!(first.message.contains("echo was told to panic"), "{first}");
    assert!(second.message.contains("an earlier call panicked"), "{second}");

    with_behaviour("panic in drop", |_| Ok(())).unwrap();
}

#[test]
fn errors_keep_their_kind() {
    let error = with_behaviour("something else", |_| Ok(())).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid);
    assert_eq!(error.message, "unknown option behaviour = \"something else\"");
    let spec = ModelSpec {
        path: "missing.gguf".into(),
        ..ModelSpec::default()
    };
    let error = with_option(&source(&echo_library()), None, move |backend| {
        backend.load_model(&spec).map(drop)
    })
    .unwrap_err();
    assert_eq!(error.message, "missing.gguf does not exist");
}

#[test]
fn thread_locals_and_keys_go_with_the_engine_thread() {
    with_behaviour("thread-local with a destructor", |_| Ok(())).unwrap();
    with_behaviour("key with a destructor", |_| Ok(())).unwrap();
}

/// Opens echo with a behaviour, runs `on_engine` on the engine thread, and expects the library to go.
fn with_behaviour<T: Send + 'static>(
    behaviour: &str,
    on_engine: impl FnOnce(&mut Backend) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    with_option(
        &source(&echo_library()),
        Some(("behaviour", behaviour)),
        on_engine,
    )
}

#[test]
fn a_thread_that_stays_keeps_the_library_mapped_until_it_ends() {
    assert!(
        loader::watches_threads(),
        "this executable does not export pthread_create"
    );
    let folder = tempfile::tempdir().unwrap();
    let until = folder.path().join("until");
    let mut library = Library::load(&source(&echo_library())).unwrap();
    let (opener, spec) = (
        library.opener(),
        spec(Some(("thread until", until.to_str().unwrap()))),
    );
    let engine = thread::spawn(move || opener.open(&spec, &Services::default()).map(drop));
    engine.join().unwrap().unwrap();
    retained(&mut library, "its code still runs on echo-kept (thread ");
    fs::write(&until, "").unwrap();
    assert_eq!(library.close(PATIENCE), Unload::Unmapped);
}

#[test]
fn an_engine_thread_that_was_not_joined_keeps_the_library_mapped() {
    let mut library = Library::load(&source(&echo_library())).unwrap();
    let opener = library.opener();
    let (go, wait) = mpsc::channel::<()>();
    let (done, opened) = mpsc::channel();
    let engine = thread::Builder::new().name("engine-7".to_owned()).spawn(move || {
        let spec = spec(Some(("behaviour", "thread-local with a destructor")));
        let backend = opener.open(&spec, &Services::default());
        done.send(()).unwrap();
        wait.recv().unwrap();
        drop(backend);
        done.send(()).unwrap();
        wait.recv().unwrap();
    });
    opened.recv().unwrap();
    retained(&mut library, "1 of its objects are alive");
    go.send(()).unwrap();
    opened.recv().unwrap();
    retained(&mut library, "its code still runs on engine-7 (thread ");
    go.send(()).unwrap();
    engine.unwrap().join().unwrap();
    assert_eq!(library.close(PATIENCE), Unload::Unmapped);
}

fn retained(library: &mut Library, why: &str) {
    match library.close(Duration::ZERO) {
        Unload::Retained { reason } => assert!(reason.starts_with(why), "{reason}"),
        other => panic!("expected it to be retained: {other:?}"),
    }
}

#[test]
fn a_file_that_is_overwritten_does_not_reach_the_running_image() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("live.so");
    fs::copy(echo_library(), &file).unwrap();
    let mut library = Library::load(&source(&file)).unwrap();
    fs::write(&file, "something else").unwrap();
    let opener = library.opener();
    let engine = thread::spawn(move || opener.open(&OpenSpec::default(), &Services::default()).map(drop));
    engine.join().unwrap().unwrap();
    refused(&file, "not a shared library");
    assert_eq!(library.close(PATIENCE), Unload::Unmapped);
}

#[test]
fn progress_arrives_and_a_cancelled_load_stops() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = seen.clone();
    let services = Services::new(move |p| {
        sink.lock().unwrap().push((p.stage.to_owned(), p.done, p.total));
        assert!(p.done < p.total, "a callback that panics at the end");
    });
    let mut library = Library::load(&source(&echo_library())).unwrap();
    let (opener, at_engine) = (library.opener(), services.clone());
    let engine = thread::spawn(move || {
        let mut backend = opener.open(&OpenSpec::default(), &at_engine).unwrap();
        let first = backend.load_model(&ModelSpec::default()).map(drop);
        at_engine.cancel();
        (first, backend.load_model(&ModelSpec::default()).map(drop))
    });
    let (first, second) = engine.join().unwrap();
    first.unwrap();
    assert_eq!(second.unwrap_err().kind, ErrorKind::Cancelled);
    let weights = |done| ("weights".to_owned(), done, 4096);
    assert_eq!(*seen.lock().unwrap(), [weights(0), weights(2048), weights(4096)]);
    assert_eq!(library.close(PATIENCE), Unload::Unmapped);
}

#[test]
fn a_librarys_events_arrive_in_the_hosts_log_with_their_own_place() {
    let lines = Lines::default();
    let writer = lines.clone();
    let mut library = Library::load(&source(&echo_library())).unwrap();
    let opener = library.opener();
    let engine = thread::spawn(move || {
        let log = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_file(true)
            .with_line_number(true)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(log, || {
            opener.open(&OpenSpec::default(), &Services::default()).map(drop)
        })
    });
    engine.join().unwrap().unwrap();
    assert_eq!(library.close(PATIENCE), Unload::Unmapped);
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert!(
        text.contains(" INFO echo: ") && text.contains("echo.rs:"),
        "{text}"
    );
    assert!(text.trim_end().ends_with("opened device 0"), "{text}");
}

/// What a log wrote.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn source(file: &Path) -> BackendSource {
    BackendSource::parse(file.to_str().unwrap(), &builtins()).unwrap()
}

fn builtins() -> Builtins {
    Builtins::default().with("echo", echo::root_module)
}

fn echo_library() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| plugins::plugin("echo").unwrap()).clone()
}

/// Mappings of staged copies of a library of this name.
fn mappings_of(name: &str) -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains("memfd:met-") && line.contains(name))
        .count()
}
