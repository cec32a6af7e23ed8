//! Tells how far a fetch is: a bar on a terminal, a log line now and then elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    io::IsTerminal,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Between two log lines.
const LOG_EVERY: Duration = Duration::from_secs(5);

const MEGABYTE: u64 = 1_000_000;

/// How the progress is told.
#[derive(Clone)]
pub enum Reporting {
    /// A bar on standard error.
    Bar,
    /// Log lines.
    Log,
    /// Log lines, and every step to a listener: the bytes that are there, and how many there are in all (0:
    /// not known).
    Listener(Arc<dyn Fn(u64, u64) + Send + Sync>),
}

impl Reporting {
    /// A bar where standard error is a terminal.
    pub fn for_this_process() -> Self {
        match std::io::stderr().is_terminal() {
            true => Self::Bar,
            false => Self::Log,
        }
    }
}

/// Counts a fetch's bytes and tells of them. Clones count together.
#[derive(Clone)]
pub(super) struct Meter(Arc<Inner>);

struct Inner {
    name: String,
    done: AtomicU64,
    total: AtomicU64,
    told: Mutex<Instant>,
    reporting: Reporting,
    bar: ProgressBar,
    stopped: AtomicBool,
}

impl Meter {
    /// A meter for `name`.
    pub(super) fn new(reporting: Reporting, name: &str) -> Self {
        let target = match &reporting {
            Reporting::Bar => ProgressDrawTarget::stderr(),
            Reporting::Log | Reporting::Listener(_) => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(None, target).with_message(name.to_owned());
        show(&bar, "{msg} {spinner} {bytes} {binary_bytes_per_sec}");
        tracing::info!("fetching {name}");
        Self(Arc::new(Inner {
            name: name.to_owned(),
            done: AtomicU64::new(0),
            total: AtomicU64::new(0),
            told: Mutex::new(Instant::now()),
            reporting,
            bar,
            stopped: AtomicBool::new(false),
        }))
    }

    /// How much there is in all.
    pub(super) fn set_total(&self, bytes: u64) {
        self.0.total.store(bytes, Ordering::Relaxed);
        self.0.bar.set_length(bytes);
        show(
            &self.0.bar,
            "{msg} {wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
        );
    }

    /// How much is done.
    pub(super) fn set_done(&self, bytes: u64) {
        self.0.done.store(bytes, Ordering::Relaxed);
        self.tell(bytes);
    }

    /// More is done.
    pub(super) fn add(&self, bytes: u64) {
        let done = self.0.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.tell(done);
    }

    /// What is done so far.
    pub(super) fn done(&self) -> u64 {
        self.0.done.load(Ordering::Relaxed)
    }

    /// Nobody wants the rest: ends the thread that brings it, at the next byte.
    pub(super) fn stop(&self) {
        self.0.stopped.store(true, Ordering::Relaxed);
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.0.bar.finish_and_clear();
    }

    fn tell(&self, done: u64) {
        let total = self.0.total.load(Ordering::Relaxed);
        match &self.0.reporting {
            Reporting::Bar => self.0.bar.set_position(done),
            Reporting::Log => self.log(done, total),
            Reporting::Listener(listener) => {
                self.log(done, total);
                listener(done, total);
            }
        }
    }

    fn log(&self, done: u64, total: u64) {
        let mut told = self.0.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.elapsed() < LOG_EVERY {
            return;
        }
        *told = Instant::now();
        let done = done / MEGABYTE;
        match total / MEGABYTE {
            0 => tracing::info!("{}: {done} MB", self.0.name),
            total => tracing::info!("{}: {done} of {total} MB", self.0.name),
        }
    }
}

fn show(bar: &ProgressBar, template: &str) {
    // A template that cannot be read leaves the bar as it was.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
}

/// The hub's client tells of its progress so.
impl hf_hub::api::Progress for Meter {
    fn init(&mut self, size: usize, _filename: &str) {
        self.set_total(size as u64);
        self.set_done(0);
    }

    fn update(&mut self, size: usize) {
        if self.0.stopped.load(Ordering::Relaxed) {
            // That client can be stopped in no other way; this unwinds without a word.
            std::panic::resume_unwind(Box::new("cancelled"));
        }
        self.add(size as u64);
    }

    fn finish(&mut self) {
        Meter::finish(self);
    }
}
