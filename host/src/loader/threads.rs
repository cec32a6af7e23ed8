//! Which threads a library has.
//!
//! Code that is unmapped under a running thread is a crash. A thread that is started while a library's
//! code runs belongs to that library, and so do the threads which it starts, in whatever language.

use super::interpose::Hidden;
use std::{
    cell::Cell,
    ffi::{c_int, c_void},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Who a thread belongs to; 0 is the host.
pub(super) type Owner = u64;
const HOST: Owner = 0;
const POLL: Duration = Duration::from_millis(1);

thread_local! {
    static CURRENT: Cell<Owner> = const { Cell::new(HOST) };
}

static KNOWN: Mutex<Vec<Thread>> = Mutex::new(Vec::new());

/// A thread that belongs to a library.
struct Thread {
    serial: u64,
    owner: Owner,
    /// `None` until it runs.
    kernel: Option<KernelThread>,
}

/// A thread as the kernel knows it: numbers are used again, but not with the same start.
#[derive(Clone, Copy, PartialEq, Eq)]
struct KernelThread {
    id: libc::pid_t,
    /// `None` where it could not be read.
    started: Option<u64>,
}

/// A new owner.
pub(super) fn new_owner() -> Owner {
    static LAST: AtomicU64 = AtomicU64::new(HOST);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Whether libraries call the function below.
pub(super) fn are_watched() -> bool {
    REAL.is_hidden_by(pthread_create as Create as *const ())
}

/// Makes this thread act for `owner` until the scope is dropped.
pub(super) fn act_for(owner: Owner) -> Scope {
    Scope {
        before: CURRENT.replace(owner),
    }
}

/// While it lives, its thread acts for an owner.
pub(super) struct Scope {
    before: Owner,
}

impl Drop for Scope {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

/// Counts this thread among those of `owner`: it has run the owner's code, and may keep thread-locals of
/// it until it ends.
pub(super) fn adopt_current(owner: Owner) {
    let this = KernelThread::current();
    let mut known = known();
    if !known.iter().any(|t| t.owner == owner && t.kernel == Some(this)) {
        known.push(Thread {
            serial: next_serial(),
            owner,
            kernel: Some(this),
        });
    }
}

/// Waits until every thread of `owner` has ended. Gives those that have not after `wait`, by name.
pub(super) fn wait_for_the_end_of(owner: Owner, wait: Duration) -> Vec<String> {
    let begun = Instant::now();
    loop {
        let alive = alive(owner);
        if alive.is_empty() || begun.elapsed() >= wait {
            return alive;
        }
        std::thread::sleep(POLL);
    }
}

fn alive(owner: Owner) -> Vec<String> {
    let mut names = Vec::new();
    known().retain(|thread| {
        let name = match thread.kernel {
            None => Some("a thread that is starting".to_owned()),
            Some(kernel) => kernel.name(),
        };
        let is_alive = name.is_some();
        names.extend(name.filter(|_| thread.owner == owner));
        is_alive
    });
    names
}

impl KernelThread {
    /// The calling thread.
    fn current() -> Self {
        // SAFETY: takes nothing and cannot fail.
        let id = unsafe { libc::gettid() };
        let started = look_up(id).map(|(_, started)| started);
        Self { id, started }
    }

    /// Its name, while it exists. One that can't be looked up, for a process out of descriptors, exists as long as the
    /// kernel has a thread of its number: code must never go under one that runs.
    fn name(self) -> Option<String> {
        let name = match look_up(self.id) {
            Some((_, started)) if self.started.is_some_and(|before| before != started) => return None,
            Some((name, _)) => name,
            None if exists(self.id) => "a thread".to_owned(),
            None => return None,
        };
        Some(format!("{name} (thread {})", self.id))
    }
}

/// Whether this process has a thread of this number.
fn exists(id: libc::pid_t) -> bool {
    // SAFETY: signal 0 is sent to nobody; the call only tells whether it could be.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), id, 0) == 0 }
}

/// Name and start of a thread of this process, from its line in `/proc` ("ID (NAME) STATE ...").
fn look_up(id: libc::pid_t) -> Option<(String, u64)> {
    const START: usize = 22 - 3;
    let line = std::fs::read_to_string(format!("/proc/self/task/{id}/stat")).ok()?;
    let (before, after) = line.rsplit_once(") ")?;
    let (_, name) = before.split_once(" (")?;
    let started = after.split(' ').nth(START)?.parse().ok()?;
    Some((name.to_owned(), started))
}

fn next_serial() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

fn known() -> MutexGuard<'static, Vec<Thread>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

static REAL: Hidden = Hidden::new(c"pthread_create");

/// "C-unwind", because `pthread_exit` and a cancellation unwind through it.
type Start = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;
type Create =
    unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;

/// What a new thread of a library is to run.
struct Errand {
    serial: u64,
    owner: Owner,
    start: Start,
    argument: *mut c_void,
}

/// Hides the C library's function of this name. A thread that the host starts passes through; one that a
/// library starts is entered before it can run.
///
/// # Safety
/// As the C library's own.
// SAFETY: keeps the contract of the function whose name it takes.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    let real = REAL.address();
    if real.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: the C library's function of this name has this type.
    let real: Create = unsafe { std::mem::transmute(real) };
    let owner = CURRENT.get();
    if owner == HOST {
        // SAFETY: the caller's promise.
        return unsafe { real(thread, attributes, start, argument) };
    }
    let serial = next_serial();
    known().push(Thread {
        serial,
        owner,
        kernel: None,
    });
    let errand = Box::into_raw(Box::new(Errand {
        serial,
        owner,
        start,
        argument,
    }));
    // SAFETY: the caller's promise; `run_errand` takes the box that it is given.
    let result = unsafe { real(thread, attributes, run_errand, errand.cast()) };
    if result != 0 {
        // SAFETY: no thread was started, so the box is still ours.
        drop(unsafe { Box::from_raw(errand) });
        known().retain(|t| t.serial != serial);
    }
    result
}

unsafe extern "C-unwind" fn run_errand(errand: *mut c_void) -> *mut c_void {
    // SAFETY: the box that `pthread_create` made for this thread.
    let errand = *unsafe { Box::from_raw(errand.cast::<Errand>()) };
    CURRENT.set(errand.owner);
    let this = KernelThread::current();
    if let Some(thread) = known().iter_mut().find(|t| t.serial == errand.serial) {
        thread.kernel = Some(this);
    }
    // SAFETY: what the library asked for, on the thread that it asked for.
    unsafe { (errand.start)(errand.argument) }
}
