//! The host's log, from anywhere in a backend.

use crate::abi::{HostServicesArc, LogField, LogLevel, LogRecord};
use abi_stable::std_types::RSlice;
use std::{
    panic::PanicHookInfo,
    sync::{PoisonError, RwLock, RwLockReadGuard},
};

/// What an image shares among the backends opened from it (several, where it is linked into the host).
struct Attached {
    host: Option<HostServicesArc>,
    backends: usize,
    previous_hook: Option<PanicHook>,
}

type PanicHook = Box<dyn Fn(&PanicHookInfo<'_>) + Send + Sync>;

/// One a library image. Emptied when the last backend goes, so that no host object stays referenced by an
/// image that is about to be unmapped.
static ATTACHED: RwLock<Attached> = RwLock::new(Attached {
    host: None,
    backends: 0,
    previous_hook: None,
});

/// Takes the host's log for a new backend. The first one also sends guarded panics there: the standard
/// hook would write to the host's standard error and, with backtraces on, keep some 20 MB of symbol
/// tables for each image.
pub(super) fn attach(host: &HostServicesArc) {
    let mut attached = ATTACHED.write().unwrap_or_else(PoisonError::into_inner);
    attached.backends += 1;
    attached.host = Some(host.clone());
    if attached.backends == 1 {
        attached.previous_hook = Some(std::panic::take_hook());
        std::panic::set_hook(Box::new(on_panic));
    }
}

/// Lets go for one backend; the last one empties the slot and puts the panic hook back.
pub(super) fn detach() {
    let mut attached = ATTACHED.write().unwrap_or_else(PoisonError::into_inner);
    attached.backends = attached.backends.saturating_sub(1);
    if attached.backends == 0 {
        attached.host = None;
        if let Some(hook) = attached.previous_hook.take() {
            restore(hook);
        }
    }
}

/// A backend may be dropped while its thread unwinds, on which the standard library panics rather than change the
/// hook; and ours must not stay, since it lies in an image that may be unmapped.
fn restore(hook: PanicHook) {
    if !std::thread::panicking() {
        return std::panic::set_hook(hook);
    }
    let thread = std::thread::Builder::new().spawn(|| std::panic::set_hook(hook));
    if let Ok(thread) = thread {
        // It does nothing that could panic.
        let _ = thread.join();
    }
}

fn on_panic(info: &PanicHookInfo<'_>) {
    if super::guard::is_guarded() {
        let message = super::guard::panic_message(info.payload());
        let place = info
            .location()
            .map(|l| format!(" at {}:{}", l.file(), l.line()))
            .unwrap_or_default();
        crate::event!(Error, "panic{place}: {message}");
    } else if let Some(hook) = &attached().previous_hook {
        hook(info);
    }
}

fn attached() -> RwLockReadGuard<'static, Attached> {
    ATTACHED.read().unwrap_or_else(PoisonError::into_inner)
}

/// Whether an event would be kept.
pub fn enabled(level: LogLevel, target: &str) -> bool {
    attached()
        .host
        .as_ref()
        .is_some_and(|h| h.log_enabled(level, target.into()))
}

/// Hands an event to the host. Use the [`event!`](crate::event) macro.
pub fn record(level: LogLevel, target: &str, file: &str, line: u32, message: &str, fields: &[LogField<'_>]) {
    if let Some(host) = &attached().host {
        host.log(&LogRecord {
            level,
            line,
            target: target.into(),
            file: file.into(),
            message: message.into(),
            fields: RSlice::from_slice(fields),
        });
    }
}

/// Logs a formatted message at a [`LogLevel`]: `event!(Info, "loaded {n} tensors")`.
#[macro_export]
macro_rules! event {
    ($level:ident, $($message:tt)+) => {
        if $crate::sdk::log::enabled($crate::LogLevel::$level, module_path!()) {
            $crate::sdk::log::record(
                $crate::LogLevel::$level, module_path!(), file!(), line!(), &format!($($message)+), &[],
            );
        }
    };
}
