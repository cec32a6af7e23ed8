//! The public listener: bounded in connections, headers and time, and able to stop without cutting an answer.

use std::{future::Future, io, pin::pin, sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rustix::process::{Resource, getrlimit};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
};

use super::edge::Edge;

/// Connections that are open at once, where the process may have so many descriptors; further ones wait in the
/// system's queue.
const MAX_CONNECTIONS: usize = 1024;
/// One listener's part of the descriptors that the process may have: there are two listeners, and clients who open
/// connections must not keep operators from theirs, nor a swap from its files.
const PART_OF_DESCRIPTORS: u64 = 4;
const MAX_HEADERS: usize = 64;
/// Most bytes of a request's head.
const MAX_HEAD_BYTES: usize = 32 * 1024;
/// Time for a request's head, which is also how long a connection may be idle between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// A client that acknowledges nothing for so long is gone.
const PEER_TIMEOUT: Duration = Duration::from_secs(60);
/// What the system may hold of an answer that is not read: half a minute of a fast stream. Left to itself it takes
/// megabytes, and a slow client shows late.
const SEND_BUFFER: usize = 128 << 10;
/// Pause after the system refused to accept a connection (out of descriptors, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown` completes, then takes no new request, and returns once each running one is answered.
///
/// How long that takes is the engine's deadline for running requests; to cut it short, drop this future, which
/// closes every connection.
pub async fn serve(listener: TcpListener, router: Router, shutdown: impl Future<Output = ()>) {
    let permits = Arc::new(Semaphore::new(most_connections()));
    let (stop, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let next = async {
            let permit = permits.clone().acquire_owned().await;
            (permit, listener.accept().await)
        };
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            (permit, accepted) = next => match accepted {
                Ok((stream, _peer)) => {
                    let connection = serve_connection(stream, router.clone(), stopped.clone());
                    connections.spawn(async move {
                        connection.await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "could not accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_ended) = connections.join_next() => {}
        }
    }
    drop(listener);
    // Each connection waits for this channel to close.
    drop(stop);
    while connections.join_next().await.is_some() {}
}

fn most_connections() -> usize {
    let Some(descriptors) = getrlimit(Resource::Nofile).current else {
        return MAX_CONNECTIONS;
    };
    let part = usize::try_from(descriptors / PART_OF_DESCRIPTORS).unwrap_or(MAX_CONNECTIONS);
    if part < MAX_CONNECTIONS {
        tracing::warn!(
            "at most {part} connections at a time, of {descriptors} descriptors; for more, raise the limit (ulimit -n)"
        );
    }
    part.clamp(1, MAX_CONNECTIONS)
}

async fn serve_connection(stream: TcpStream, router: Router, mut stopped: watch::Receiver<()>) {
    if let Err(error) = set_options(&stream) {
        tracing::debug!(%error, "could not set a connection's options");
    }
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(Edge::new(stream)), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        _closed = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Tokens leave at once, little of an unread answer is kept, and a client that vanished is noticed though it closed
/// nothing.
fn set_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(PEER_TIMEOUT / 2)
            .with_interval(PEER_TIMEOUT / 6),
    )?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(PEER_TIMEOUT))?;
    Ok(())
}
