//! The channel between the engine and one request's client.
//!
//! The engine never waits for a client: when a channel is nearly full the sequence is paused, and the
//! client's reading brings it back. Which of the two sees that there is room again is settled by one swap
//! of `paused`, so no wake-up is lost and none comes twice.

use super::inbox::{Inbox, Signal};
use crate::{
    request::{Event, Failure},
    scheduler::RequestId,
};
use futures_util::Stream;
use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering, fence},
    },
    task::{Context, Poll},
    time::Instant,
};
use tokio::sync::mpsc;

/// The events of one request, ending with `Finished` or `Failed`. Dropping it cancels the request
/// within one step.
pub struct EventStream {
    id: RequestId,
    events: mpsc::Receiver<Event>,
    paused: Arc<AtomicBool>,
    inbox: Arc<Inbox>,
    ended: bool,
}

/// The engine's end.
pub(super) struct Client {
    events: mpsc::Sender<Event>,
    paused: Arc<AtomicBool>,
    pub paused_since: Option<Instant>,
    pub submitted: Instant,
    pub last_token: Option<Instant>,
}

/// A channel that holds `capacity` events.
pub(super) fn channel(id: RequestId, capacity: usize, inbox: Arc<Inbox>) -> (Client, EventStream) {
    let (sender, events) = mpsc::channel(capacity);
    let paused = Arc::new(AtomicBool::new(false));
    let client = Client {
        events: sender,
        paused: Arc::clone(&paused),
        paused_since: None,
        submitted: Instant::now(),
        last_token: None,
    };
    (
        client,
        EventStream {
            id,
            events,
            paused,
            inbox,
            ended: false,
        },
    )
}

impl Client {
    /// Hands over an event. False where there was no room, which a client that was paused in time never sees.
    pub fn send(&self, event: Event) -> bool {
        // A client that has left says so by itself.
        !matches!(
            self.events.try_send(event),
            Err(mpsc::error::TrySendError::Full(_))
        )
    }

    /// Whether it should pause: less than `reserve` events fit.
    pub fn is_short(&self, reserve: usize) -> bool {
        self.events.capacity() < reserve
    }

    /// Asks for a `Room` signal once half of the channel is free. False where that is so already.
    pub fn pause(&self) -> bool {
        self.paused.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let half = self.events.max_capacity() / 2;
        self.events.capacity() < half || !self.paused.swap(false, Ordering::SeqCst)
    }
}

impl EventStream {
    /// The request's name within its generation.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The next event; `None` after the last one.
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|context| self.poll_event(context)).await
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let event = match self.events.poll_recv(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(event)) => event,
            Poll::Ready(None) => Event::Failed(Failure::Backend("the engine has ended".into())),
        };
        self.ended = !matches!(event, Event::Started { .. } | Event::Token(_));
        fence(Ordering::SeqCst);
        let half = self.events.max_capacity() / 2;
        if self.paused.load(Ordering::SeqCst)
            && self.events.capacity() >= half
            && self.paused.swap(false, Ordering::SeqCst)
        {
            self.inbox.signal(Signal::Room(self.id));
        }
        Poll::Ready(Some(event))
    }
}

impl Stream for EventStream {
    type Item = Event;
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.poll_event(context)
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        if !self.ended {
            self.inbox.signal(Signal::Left(self.id));
        }
    }
}
