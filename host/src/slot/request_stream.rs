//! A request's events, wherever it runs.

use super::{
    Lease, ModelText, Slot,
    generation::{Identity, Kernels},
};
use crate::{
    engine::EventStream,
    request::{Event, Failure, Refused, Request},
};
use futures_util::{FutureExt, Stream, future::BoxFuture};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

/// How often a request is carried on in a row before it is given up.
const MOST_MOVES: usize = 8;

/// The events of one request, ending with `Finished` or `Failed`. Where its generation gives it away, it goes on in
/// the one that the slot has then: nothing is repeated and nothing is missing. Dropping it cancels the request.
pub struct RequestStream<T>(At<T>);

enum At<T> {
    /// The generation is held until the last event was taken.
    Here {
        events: EventStream,
        _lease: Lease<T>,
    },
    /// On its way to another generation, and holding none.
    Between(BoxFuture<'static, Arrival<T>>),
    Ended,
}

type Arrival<T> = Result<(Lease<T>, EventStream), Failure>;

impl<T: ModelText> RequestStream<T> {
    pub(super) fn here(lease: Lease<T>, events: EventStream) -> Self {
        Self(At::Here {
            events,
            _lease: lease,
        })
    }

    /// The stream of a request that is to go on elsewhere than on `lease`.
    pub(super) fn moving(lease: &Lease<T>, request: Request) -> Self {
        let slot = Arc::clone(lease.slot());
        let from = (lease.identity(), lease.kernels());
        Self(At::Between(go_on(slot, from, request).boxed()))
    }
}

impl<T: ModelText> Stream for RequestStream<T> {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        loop {
            match &mut self.0 {
                At::Here {
                    events,
                    _lease: lease,
                } => match ready!(Pin::new(events).poll_next(context)) {
                    Some(event @ (Event::Started { .. } | Event::Token(_))) => {
                        return Poll::Ready(Some(event));
                    }
                    Some(Event::Moved(request)) => *self = Self::moving(lease, *request),
                    last => {
                        self.0 = At::Ended;
                        return Poll::Ready(last);
                    }
                },
                At::Between(way) => match ready!(way.poll_unpin(context)) {
                    Ok((lease, events)) => *self = Self::here(lease, events),
                    Err(failure) => {
                        self.0 = At::Ended;
                        return Poll::Ready(Some(Event::Failed(failure)));
                    }
                },
                At::Ended => return Poll::Ready(None),
            }
        }
    }
}

/// Waits for a generation of the same model, and hands the request over.
async fn go_on<T: ModelText>(
    slot: Arc<Slot<T>>,
    (identity, kernels): (Identity, Option<Kernels>),
    mut request: Request,
) -> Arrival<T> {
    for _ in 0..MOST_MOVES {
        let lease = slot.enter(true).await.map_err(|_| Failure::Draining)?;
        if lease.identity() != identity {
            return Err(Failure::Draining);
        }
        if kernels.is_none() || lease.kernels() != kernels {
            request.kept = None;
        }
        match lease.engine().submit_all(vec![request]) {
            Ok(streams) => {
                let events = streams.into_iter().next().ok_or(Failure::Draining)?;
                return Ok((lease, events));
            }
            Err((Refused::Draining, back)) => request = back.into_iter().next().ok_or(Failure::Draining)?,
            Err((refused, _)) => return Err(Failure::Invalid(refused.to_string())),
        }
    }
    Err(Failure::Draining)
}
