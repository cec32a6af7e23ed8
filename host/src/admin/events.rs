//! What happens to the slots, as server-sent events.

use crate::slot::swap::SwapEvent;
use axum::response::{
    IntoResponse, Response,
    sse::{Event, KeepAlive, Sse},
};
use futures_util::stream;
use serde_json::json;
use std::{convert::Infallible, time::Duration};
use tokio::sync::broadcast::{Receiver, error::RecvError};

/// Silence after which a comment is sent.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Every event from now on: its name, and its JSON as data. One that reads too slowly is told how many it missed.
/// Ends with the server.
pub(super) fn respond(events: Receiver<SwapEvent>) -> Response {
    let events = stream::unfold(Some(events), |events| async {
        let mut events = events?;
        let event = match events.recv().await {
            Ok(last @ SwapEvent::Stopped) => return Some((Ok(told(&last)), None)),
            Ok(event) => told(&event),
            Err(RecvError::Lagged(missed)) => Event::default()
                .event("missed")
                .data(json!({"event": "missed", "count": missed}).to_string()),
            Err(RecvError::Closed) => return None,
        };
        Some((Ok::<_, Infallible>(event), Some(events)))
    });
    Sse::new(events)
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
        .into_response()
}

fn told(event: &SwapEvent) -> Event {
    match serde_json::to_string(event) {
        Ok(json) => Event::default().event(event.name()).data(json),
        Err(error) => {
            tracing::error!(%error, "an event has no JSON");
            Event::default().comment("an event could not be written")
        }
    }
}
