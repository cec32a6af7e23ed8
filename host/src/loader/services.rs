//! What the host does for a backend: keeps its log, hears of its progress, and tells it to stop.

use super::log;
use abi_stable::{
    sabi_trait::TD_Opaque,
    std_types::{RArc, RStr},
};
use met_backend_api::{
    LogLevel,
    abi::{HostServices, HostServices_TO, HostServicesArc, LogRecord},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// How far a load is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// What is being done ("weights").
    pub stage: &'a str,
    /// Bytes of the stage that are done.
    pub done: u64,
    /// Bytes of the stage in all.
    pub total: u64,
}

/// A backend's services. Clones are handles on the same ones; keep one to cancel a load.
#[derive(Clone)]
pub struct Services(Arc<Inner>);

struct Inner {
    cancelled: AtomicBool,
    on_progress: Box<dyn Fn(Progress<'_>) + Send + Sync>,
}

impl Services {
    /// Services that report progress to `on_progress`, which is called on the backend's threads: it must
    /// be quick and wait for nothing.
    pub fn new(on_progress: impl Fn(Progress<'_>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner {
            cancelled: AtomicBool::new(false),
            on_progress: Box::new(on_progress),
        }))
    }

    /// Asks the load that is running, and every later one, to stop.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether [`cancel`](Self::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Relaxed)
    }

    pub(super) fn for_backend(&self) -> HostServicesArc {
        HostServices_TO::from_ptr(RArc::new(self.clone()), TD_Opaque)
    }
}

impl Default for Services {
    fn default() -> Self {
        Self::new(|_| {})
    }
}

impl HostServices for Services {
    fn log_enabled(&self, level: LogLevel, _target: RStr<'_>) -> bool {
        contained(|| log::is_enabled(level)).unwrap_or(false)
    }

    fn log(&self, record: &LogRecord<'_>) {
        contained(|| log::dispatch(record));
    }

    fn progress(&self, stage: RStr<'_>, done: u64, total: u64) {
        let stage = stage.as_str();
        contained(|| (self.0.on_progress)(Progress { stage, done, total }));
    }

    fn cancelled(&self) -> bool {
        self.is_cancelled()
    }
}

/// Runs the host's own code for a backend. A panic of it must not unwind into the library: the panic hook
/// has told of it, and the service is not done.
fn contained<T>(serve: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(serve)) {
        Ok(value) => Some(value),
        // The payload's own drop may panic as well.
        Err(payload) => {
            std::mem::forget(payload);
            None
        }
    }
}
