//! The byte stream under a connection, on which hyper's own refusals get the API's shape.
//!
//! hyper answers a request whose head it can't read with a bare status (400, 414, 431), and offers no hook for a
//! body. So this watches what is written: such an answer stands at the end of a write, and has none of the headers
//! that ours have. Text of ours can't be taken for one: JSON has no bare line ends.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::http::StatusCode;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use super::{
    error::{ApiError, ErrorBody},
    openai::random,
};

/// Longest head of an answer that hyper makes by itself.
const LONGEST_BARE: usize = 256;
const NO_BODY: &str = "content-length: 0";

/// A client's connection.
pub struct Edge {
    stream: TcpStream,
    instead: Option<Instead>,
}

/// What is written in place of a buffer of hyper's.
struct Instead {
    bytes: Vec<u8>,
    written: usize,
    /// Length of that buffer.
    replaces: usize,
}

impl Edge {
    /// A connection that has just been accepted.
    pub fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            instead: None,
        }
    }
}

/// Where the buffer ends with an answer of hyper's own: where that begins, and its text.
fn bare_refusal(buffer: &[u8]) -> Option<(usize, &str)> {
    let end = buffer.strip_suffix(b"\r\n\r\n")?;
    let window = &end[end.len().saturating_sub(LONGEST_BARE)..];
    let offset = window.windows(7).rposition(|bytes| bytes == b"HTTP/1.")?;
    let head = std::str::from_utf8(&window[offset..]).ok()?;
    let (_status, headers) = head.split_once("\r\n")?;
    let is_bare = |line: &str| line == NO_BODY || line == "connection: close" || line.starts_with("date: ");
    let all_bare = headers.split("\r\n").all(is_bare) && headers.contains(NO_BODY);
    all_bare.then_some((end.len() - window.len() + offset, head))
}

/// `buffer` with the answer at its end in the API's shape; `None` where that is one of ours.
fn reshape(buffer: &[u8]) -> Option<Vec<u8>> {
    let (start, head) = bare_refusal(buffer)?;
    let status = StatusCode::from_bytes(head.as_bytes().get(9..12)?).ok()?;
    let (code, message) = match status {
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => (
            "headers_too_large",
            "the request's line and headers are too long, or too many",
        ),
        StatusCode::URI_TOO_LONG => ("uri_too_long", "the request's address is too long"),
        StatusCode::BAD_REQUEST => ("malformed_http", "this is no request of HTTP/1.1 or HTTP/1.0"),
        _ => return None,
    };
    let error = ApiError::with_status(status, code, message);
    tracing::debug!(status = status.as_u16(), "a head could not be read");
    let body = serde_json::to_string(&ErrorBody { error: &error }).ok()?;
    let headers = format!(
        "content-type: application/json\r\nx-request-id: req-{:016x}\r\ncontent-length: {}",
        random(),
        body.len()
    );
    let mut bytes = buffer[..start].to_vec();
    bytes.extend_from_slice(head.replace(NO_BODY, &headers).as_bytes());
    bytes.extend_from_slice(b"\r\n\r\n");
    bytes.extend_from_slice(body.as_bytes());
    Some(bytes)
}

impl AsyncWrite for Edge {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let Self { stream, instead } = self.get_mut();
        if instead.is_none() {
            *instead = reshape(buffer).map(|bytes| Instead {
                bytes,
                written: 0,
                replaces: buffer.len(),
            });
        }
        let Some(reshaped) = instead else {
            return Pin::new(stream).poll_write(context, buffer);
        };
        while reshaped.written < reshaped.bytes.len() {
            let rest = &reshaped.bytes[reshaped.written..];
            match ready!(Pin::new(&mut *stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => reshaped.written += count,
            }
        }
        let replaces = reshaped.replaces;
        *instead = None;
        Poll::Ready(Ok(replaces))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

impl AsyncRead for Edge {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}
