//! An answer as a stream of server-sent events.

use std::{
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::Response,
};
use bytes::{Bytes, BytesMut};
use http_body::Frame;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::{
    answer::{Answer, Step},
    error::{ApiError, ErrorBody},
    openai::{Head, write_event},
};

/// Longest silence is twice this: proxies cut what is silent for a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(7);
/// How long an answer may fail with a status of its own, rather than by an event in its stream.
const PATIENCE: Duration = Duration::from_secs(5);
/// Events that are ready are written together up to about this size.
const WRITE_BYTES: usize = 16 << 10;

/// Answers with a stream. What fails at once is an error that clients can try again; later failures are events.
pub async fn respond(answer: Answer, head: Head) -> Result<Response, ApiError> {
    let mut events = Events::new(answer, head);
    // Running out of patience is no failure: the stream begins empty.
    if let Ok(first) = tokio::time::timeout(PATIENCE, poll_fn(|context| events.poll_fill(context))).await {
        first?;
    }
    let mut response = Response::new(Body::new(events));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// The body of a stream.
struct Events {
    answer: Answer,
    head: Head,
    /// Which choices have begun.
    opened: Vec<bool>,
    /// Events that were not written yet.
    out: BytesMut,
    keep_alive: Interval,
    /// Whether anything was written since the last tick of `keep_alive`.
    active: bool,
    ended: bool,
}

impl Events {
    fn new(answer: Answer, head: Head) -> Self {
        let mut keep_alive = interval(KEEP_ALIVE);
        keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick comes at once.
        Self {
            answer,
            head,
            opened: Vec::new(),
            out: BytesMut::new(),
            keep_alive,
            active: true,
            ended: false,
        }
    }

    /// Waits until there is something to write: every event that is ready.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ApiError>> {
        while !self.ended && self.out.len() < WRITE_BYTES {
            match self.answer.poll_step(context) {
                Poll::Pending => break,
                Poll::Ready(Some(step)) => self.write(step?),
                Poll::Ready(None) => {
                    self.head.write_usage(&mut self.out, self.answer.usage());
                    self.write_done();
                }
            }
        }
        if self.ended || !self.out.is_empty() {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    fn write(&mut self, Step { index, delta, finish }: Step) {
        let at = index as usize;
        if self.opened.len() <= at {
            self.opened.resize(at + 1, false);
        }
        if !std::mem::replace(&mut self.opened[at], true) {
            self.head.write_opening(&mut self.out, index);
        }
        if !delta.is_empty() {
            self.head
                .write_text(&mut self.out, index, &delta.text, delta.logprobs.as_deref());
        }
        if let Some(reason) = finish {
            self.head.write_finish(&mut self.out, index, reason);
        }
    }

    fn write_done(&mut self) {
        self.out.extend_from_slice(b"data: [DONE]\n\n");
        self.ended = true;
    }

    /// Waits until the stream was silent for long.
    fn poll_silence(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.keep_alive.poll_tick(context));
            if !std::mem::replace(&mut self.active, false) {
                return Poll::Ready(());
            }
        }
    }
}

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ended && self.out.is_empty() {
            return Poll::Ready(None);
        }
        match self.poll_fill(context) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => {
                write_event(&mut self.out, &ErrorBody { error: &error });
                self.write_done();
            }
            Poll::Pending => {
                ready!(self.poll_silence(context));
                self.out.extend_from_slice(b": keep-alive\n\n");
            }
        }
        self.active = true;
        Poll::Ready(Some(Ok(Frame::data(self.out.split().freeze()))))
    }
}
