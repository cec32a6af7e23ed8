//! A client that shows the wire: one connection, requests and answers on it, chunk by chunk.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

pub struct Client {
    stream: BufReader<TcpStream>,
}

/// The head of an answer, and its body where that is read whole.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).await.unwrap())
    }

    pub fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        Self {
            stream: BufReader::new(stream),
        }
    }

    pub async fn get(&mut self, path: &str) -> Reply {
        self.request("GET", path, "", b"").await
    }

    pub async fn post(&mut self, path: &str, body: &Value) -> Reply {
        self.request(
            "POST",
            path,
            "Content-Type: application/json\r\n",
            body.to_string().as_bytes(),
        )
        .await
    }

    /// Sends a request and reads the whole answer.
    pub async fn request(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) -> Reply {
        self.send(method, path, headers, body).await;
        let reply = self.head().await;
        match method {
            "HEAD" => reply,
            _ => self.finish(reply).await,
        }
    }

    /// Reads what is left of an answer.
    pub async fn finish(&mut self, mut reply: Reply) -> Reply {
        while let Some(chunk) = self.chunk(&mut reply).await {
            reply.body.extend(chunk);
        }
        reply
    }

    pub async fn send(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) {
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: test\r\n{headers}Content-Length: {length}\r\n\r\n");
        self.write(head.as_bytes()).await;
        self.write(body).await;
    }

    pub async fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    pub async fn head(&mut self) -> Reply {
        let status_line = self.line().await;
        let status = status_line
            .split(' ')
            .nth(1)
            .unwrap_or_else(|| panic!("{status_line:?}"))
            .parse()
            .unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.line().await;
            match line.split_once(": ") {
                Some((name, value)) => headers.push((name.to_lowercase(), value.to_owned())),
                None => {
                    return Reply {
                        status,
                        headers,
                        body: Vec::new(),
                    };
                }
            }
        }
    }

    /// The next part of an answer's body: a chunk, or all of it; `None` at its end.
    pub async fn chunk(&mut self, reply: &mut Reply) -> Option<Vec<u8>> {
        let length = match reply.header("content-length") {
            Some(length) => {
                let length: usize = length.parse().unwrap();
                reply.headers.retain(|(name, _)| name != "content-length");
                length
            }
            None if reply.header("transfer-encoding") == Some("chunked") => {
                let length = usize::from_str_radix(&self.line().await, 16).unwrap();
                if length == 0 {
                    assert_eq!(self.line().await, "");
                    reply.headers.retain(|(name, _)| name != "transfer-encoding");
                    return None;
                }
                let mut chunk = vec![0; length + 2];
                self.stream.read_exact(&mut chunk).await.unwrap();
                chunk.truncate(length);
                return Some(chunk);
            }
            None => return None,
        };
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.unwrap();
        Some(body)
    }

    /// Reads until the server closes the connection.
    pub async fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).await.unwrap();
        rest
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).await.unwrap();
        line.trim_end_matches("\r\n").to_owned()
    }
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The data of a stream's events, without `[DONE]`, which must be the last.
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(
            (self.status, self.header("content-type")),
            (200, Some("text/event-stream; charset=utf-8"))
        );
        let body = self
            .text()
            .strip_suffix("data: [DONE]\n\n")
            .unwrap_or_else(|| panic!("no end: {}", self.text()));
        let events = body
            .split_terminator("\n\n")
            .filter(|event| !event.starts_with(':'));
        events
            .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
            .collect()
    }
}
