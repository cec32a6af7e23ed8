//! Bounds work that has no bound of its own.

use std::{
    sync::mpsc::{self, RecvTimeoutError},
    time::Duration,
};

/// Why watched work gave nothing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// Nothing moved for too long. Its thread is left to itself.
    Stalled,
    /// It panicked.
    Panicked,
}

/// Runs `work` on a thread of its own and waits for it as long as `moved` grows within every `patience`.
pub(super) fn watched<T: Send + 'static>(
    patience: Duration,
    moved: impl Fn() -> u64,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Lost> {
    let (send, receive) = mpsc::sync_channel(1);
    let spawned = std::thread::Builder::new()
        .name("met-fetch".to_owned())
        .spawn(move || {
            // Nobody receives once it has stalled.
            let _ = send.send(work());
        });
    if spawned.is_err() {
        return Err(Lost::Panicked);
    }
    let mut before = moved();
    loop {
        match receive.recv_timeout(patience) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Disconnected) => return Err(Lost::Panicked),
            Err(RecvTimeoutError::Timeout) => {
                let now = moved();
                if now == before {
                    return Err(Lost::Stalled);
                }
                before = now;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_stalls_or_panics_is_given_up() {
        let (keep, wait) = mpsc::channel::<()>();
        let stalled = watched(Duration::from_millis(5), || 0, move || wait.recv().is_ok());
        assert_eq!(stalled, Err(Lost::Stalled));
        drop(keep);
        let long = Duration::from_secs(60);
        assert_eq!(
            watched(long, || 0, || panic!("on purpose")),
            Err::<(), _>(Lost::Panicked)
        );
        assert_eq!(watched(long, || 0, || 7), Ok(7));
    }
}
