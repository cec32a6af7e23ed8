//! Bounds work that has no bound of its own.

use std::{
    sync::mpsc::{self, RecvTimeoutError},
    time::{Duration, Instant},
};

/// Why watched work gave nothing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// Nothing moved for too long. Its thread is left to itself.
    Stalled,
    /// Nobody wants it any more. Its thread is left to itself.
    Cancelled,
    /// It panicked.
    Panicked,
}

/// How often it is asked whether work is still wanted.
const POLL: Duration = Duration::from_millis(50);

/// Runs `work` on a thread of its own and waits for it, unless `is_cancelled`, as long as `moved` grows within every
/// `patience`.
pub(super) fn watched<T: Send + 'static>(
    patience: Duration,
    moved: impl Fn() -> u64,
    is_cancelled: &dyn Fn() -> bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Lost> {
    let (send, receive) = mpsc::sync_channel(1);
    let spawned = std::thread::Builder::new()
        .name("met-fetch".to_owned())
        .spawn(move || {
            // Nobody receives once it is given up.
            let _ = send.send(work());
        });
    if spawned.is_err() {
        return Err(Lost::Panicked);
    }
    let (mut before, mut since) = (moved(), Instant::now());
    loop {
        match receive.recv_timeout(POLL.min(patience)) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Disconnected) => return Err(Lost::Panicked),
            Err(RecvTimeoutError::Timeout) if is_cancelled() => return Err(Lost::Cancelled),
            Err(RecvTimeoutError::Timeout) => {
                let now = moved();
                if now != before {
                    (before, since) = (now, Instant::now());
                } else if since.elapsed() >= patience {
                    return Err(Lost::Stalled);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_stalls_or_panics_or_is_not_wanted_is_given_up() {
        let long = Duration::from_secs(60);
        for (patience, is_cancelled, lost) in [
            (Duration::from_millis(5), false, Lost::Stalled),
            (long, true, Lost::Cancelled),
        ] {
            let (keep, wait) = mpsc::channel::<()>();
            let given_up = watched(patience, || 0, &|| is_cancelled, move || wait.recv().is_ok());
            assert_eq!(given_up, Err(lost));
            drop(keep);
        }
        assert_eq!(
            watched(long, || 0, &|| false, || panic!("on purpose")),
            Err::<(), _>(Lost::Panicked)
        );
        assert_eq!(watched(long, || 0, &|| false, || 7), Ok(7));
    }
}
