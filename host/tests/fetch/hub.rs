//! A hub on this machine that can break off and lie.

use crate::{content, digest, fetcher};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path as UrlPath, State},
    http::{HeaderMap, Response, StatusCode, header},
    routing::get,
};
use futures_util::StreamExt;
use met_host::fetch::Fetcher;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, mpsc},
    thread::JoinHandle,
    time::Duration,
};

const COMMIT: &str = "c0ffee";

/// What it does besides giving its files.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    /// Breaks every transfer off after this many bytes.
    pub break_after: Option<usize>,
    /// Tells a digest that is not the content's.
    pub lies: bool,
    /// Sends slowly, and tells how many bytes of a transfer it has not sent.
    pub drips: Option<mpsc::Sender<usize>>,
    /// Has this folder's files instead of the one.
    pub folder: Option<PathBuf>,
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
pub struct Hub {
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
    pub fn start(behaviour: Behaviour) -> Self {
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

    pub fn fetcher(&self, cache: &Path) -> Fetcher {
        fetcher(cache, &self.address)
    }

    /// The ranges that were asked for.
    pub fn ranges(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    pub fn stop(self) {}
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
