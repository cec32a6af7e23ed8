//! The client of the operators' listener, as the command line uses it.

use super::{AdminAddress, AdminListener};
use anyhow::{Context, Result, bail};
use bytes::{Buf, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    client::conn::http1::{self, SendRequest},
    header,
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};

/// How long the server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Longest answer, and longest event.
const MAX_BYTES: usize = 64 << 20;

/// A way to a server's operators' listener. Each request is a connection of its own.
#[derive(Clone, Debug)]
pub struct Client {
    address: AdminAddress,
    token: Option<String>,
}

/// What a server answered.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The body.
    pub json: Value,
}

/// Events as they come.
pub struct Events {
    body: Incoming,
    bytes: BytesMut,
}

impl Client {
    /// Of the server at `address`; the token, where it asks for one, is that of the environment.
    pub fn new(address: AdminAddress) -> Self {
        let token = std::env::var(AdminListener::TOKEN).ok();
        Self {
            address,
            token: token.filter(|token| !token.is_empty()),
        }
    }

    /// Sends a request and waits for its answer, however long that takes.
    pub async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Answer> {
        let response = self.request(method, path, body).await?;
        Answer::of(response).await
    }

    /// What happens from now on; or what the server says instead.
    pub async fn events(&self) -> Result<Result<Events, Answer>> {
        let response = self.request(Method::GET, "/events", None).await?;
        if response.status() != StatusCode::OK {
            return Ok(Err(Answer::of(response).await?));
        }
        Ok(Ok(Events {
            body: response.into_body(),
            bytes: BytesMut::new(),
        }))
    }

    async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Response<Incoming>> {
        let mut sender = self.connect().await?;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "met-host");
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let body = match body {
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                Bytes::from(serde_json::to_vec(body)?)
            }
            None => Bytes::new(),
        };
        let response = sender.send_request(request.body(Full::new(body))?).await;
        response.context("the server gave no answer")
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>> {
        let connected = tokio::time::timeout(CONNECT, async {
            match &self.address {
                AdminAddress::Unix(path) => handshake(UnixStream::connect(path).await?).await,
                AdminAddress::Tcp(address) => handshake(TcpStream::connect(address).await?).await,
            }
        });
        let connected = connected
            .await
            .context("it did not accept the connection in time")
            .and_then(|r| r);
        connected.with_context(|| {
            format!(
                "no server's operators' listener at {}; name the one that the server logs with --admin",
                self.address
            )
        })
    }
}

impl Answer {
    async fn of(response: Response<Incoming>) -> Result<Self> {
        let status = response.status();
        let body = http_body_util::Limited::new(response.into_body(), MAX_BYTES)
            .collect()
            .await
            .map_err(|error| anyhow::anyhow!("the server's answer broke off: {error}"))?
            .to_bytes();
        let json = serde_json::from_slice(&body).context("the server's answer is no JSON")?;
        Ok(Self { status, json })
    }
}

impl Events {
    /// The next one; `None` when the server has closed the stream.
    pub async fn next(&mut self) -> Result<Option<Value>> {
        loop {
            if let Some(event) = self.take()? {
                return Ok(Some(event));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(data) = frame.context("the stream of events broke off")?.into_data() {
                        self.bytes.extend_from_slice(&data);
                    }
                }
            }
            if self.bytes.len() > MAX_BYTES {
                bail!("the server sends an event without end");
            }
        }
    }

    /// The first event that has come whole.
    fn take(&mut self) -> Result<Option<Value>> {
        while let Some(end) = self.bytes.windows(2).position(|pair| pair == b"\n\n") {
            let block = self.bytes.split_to(end);
            self.bytes.advance(2);
            let text = std::str::from_utf8(&block).context("an event is no text")?;
            let data = text.lines().find_map(|line| line.strip_prefix("data:"));
            if let Some(data) = data {
                return Ok(Some(
                    serde_json::from_str(data.trim()).context("an event is no JSON")?,
                ));
            }
        }
        Ok(None)
    }
}

/// The listener of the one server that runs here, where `--admin` does not name one: that of the usual port, or else
/// the only one in the runtime folder.
pub fn find() -> Result<AdminAddress> {
    let usual = super::listen::default_path(8080);
    if listens(&usual) {
        return Ok(AdminAddress::Unix(usual));
    }
    let folder = usual.parent().map(PathBuf::from).unwrap_or_default();
    let entries =
        std::fs::read_dir(&folder).with_context(|| format!("can't look into {}", folder.display()))?;
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            name.starts_with("met-host-") && name.ends_with(".sock") && listens(path)
        })
        .collect();
    match (found.pop(), found.is_empty()) {
        (Some(path), true) => Ok(AdminAddress::Unix(path)),
        (None, _) => bail!(
            "no server runs here (no met-host-PORT.sock in {}); name its listener with --admin",
            folder.display()
        ),
        (Some(_), false) => bail!("several servers run here; name the listener of one with --admin"),
    }
}

/// Whether a server is behind the file: one that was killed leaves it.
fn listens(socket: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(socket).is_ok()
}

async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<SendRequest<Full<Bytes>>> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Its errors reach whoever waits for the answer.
    tokio::spawn(connection);
    Ok(sender)
}
