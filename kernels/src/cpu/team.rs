//! A thread team: the threads that share the work of one operation.
//!
//! An operation is cut into tasks. The caller and the team's threads each claim the next task until none is
//! left, so a thread that is asleep or has lost its core delays nobody: the others take its tasks. Between
//! operations a thread spins for some tens of microseconds, then sleeps, so an idle team costs nothing.
//!
//! Threads are named, on the ledger, and joined by [`Team::shutdown`]: none outlives the library's code.

use crate::{Error, Kind, Ledger, Result, Serial, ledger::owner};
use std::{
    any::Any,
    cell::{Cell, UnsafeCell},
    marker::PhantomData,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How long a thread spins for new work, and the caller for the end of the work, before it sleeps. Longer
/// than the gap between two operations of a step; short, because other threads need these cores.
const SPIN: Duration = Duration::from_micros(40);

/// Threads that share the work of one caller. It isn't `Sync`: work can't start work, and jobs never overlap.
#[derive(Debug)]
pub struct Team {
    shared: Arc<Shared>,
    threads: Vec<(JoinHandle<()>, Serial)>,
    size: usize,
    ledger: Ledger,
    not_sync: PhantomData<Cell<()>>,
}

impl Team {
    /// A team of `threads` (at least 1), the caller included. Each other thread is on the ledger as "thread team".
    pub fn new(threads: usize, ledger: &Ledger) -> Result<Self> {
        let mut team = Self {
            shared: Arc::default(),
            threads: Vec::new(),
            size: threads.max(1),
            ledger: ledger.clone(),
            not_sync: PhantomData,
        };
        for worker in 1..team.size {
            let serial = ledger.enter(Kind::Thread, owner::THREADS, 0)?;
            let shared = Arc::clone(&team.shared);
            let spawned = std::thread::Builder::new()
                .name(format!("met-cpu-{worker}"))
                .spawn(move || shared.serve());
            match spawned {
                Ok(handle) => team.threads.push((handle, serial)),
                Err(cause) => {
                    ledger.strike(serial)?;
                    return Err(Error::exhausted(format!(
                        "thread {worker} of {threads} couldn't be started: {cause}; ask for fewer threads"
                    )));
                }
            }
        }
        Ok(team)
    }

    /// How many threads work, the caller included.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Calls `work` once with each of `0..size()`. Shares of the work, not threads: a thread that is free may
    /// take several, one after another.
    pub fn run(&self, work: &(dyn Fn(usize) + Sync)) -> Result<()> {
        self.run_tasks(self.size, work)
    }

    /// Calls `work` once with each of `0..tasks`, on whichever thread is free, and returns when all are done.
    ///
    /// A panic in a task is caught; the rest is still done, and then an error of [`crate::ErrorKind::Bug`] is
    /// returned. The team stays usable.
    pub fn run_tasks(&self, tasks: usize, work: &(dyn Fn(usize) + Sync)) -> Result<()> {
        if self.threads.is_empty() || tasks <= 1 {
            for task in 0..tasks {
                self.shared.perform(work, task);
            }
        } else {
            self.shared.publish(tasks, work);
            self.shared.perform(work, 0);
            self.shared.help();
            self.shared.wait_done();
        }
        match lock(&self.shared.panic).take() {
            None => Ok(()),
            Some(message) => Err(Error::bug(format!("a kernel panicked: {message}"))),
        }
    }

    /// Calls `work` with ranges that cover `0..items` in pieces of `grain` (the last may be shorter).
    ///
    /// The pieces don't depend on the team's size, so neither does a result that is kept a piece.
    pub fn split(&self, items: usize, grain: usize, work: impl Fn(Range<usize>) + Sync) -> Result<()> {
        let grain = grain.max(1);
        self.run_tasks(items.div_ceil(grain), &|task| {
            let start = task * grain;
            work(start..items.min(start + grain));
        })
    }

    /// Calls `work` once with each of `items`, which it may change.
    pub fn for_each<T: Send>(&self, items: &mut [T], work: impl Fn(&mut T) + Sync) -> Result<()> {
        let start = Elements(items.as_mut_ptr());
        self.run_tasks(items.len(), &|task| {
            // SAFETY: `task` is below `items.len()`, and each is given out once, so no other borrow overlaps.
            work(unsafe { &mut *start.at(task) });
        })
    }

    /// Ends and joins all threads and strikes them off the ledger. A second call does nothing.
    pub fn shutdown(&mut self) -> Result<()> {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake_sleepers();
        let mut result = Ok(());
        for (handle, serial) in self.threads.drain(..) {
            if handle.join().is_err() {
                result = Err(Error::bug("a thread of the team panicked outside its work"));
            }
            let struck = self.ledger.strike(serial);
            result = result.and(struck.map(|_| ()));
        }
        self.size = 1;
        result
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        // Only a bug makes it fail, and `shutdown` is the way that reports.
        let _ = self.shutdown();
    }
}

/// The start of a slice whose elements threads use one each.
struct Elements<T>(*mut T);

// SAFETY: using an element is unsafe, and there the reason is given; `T: Send` lets another thread use it.
unsafe impl<T: Send> Sync for Elements<T> {}

impl<T> Elements<T> {
    fn at(&self, index: usize) -> *mut T {
        self.0.wrapping_add(index)
    }
}

type Work = dyn Fn(usize) + Sync;

/// What the caller and the threads share.
///
/// A job is published by writing `job`, then `unfinished`, then `unclaimed`. A task is claimed by taking one
/// from a positive `unclaimed`. What must stay true: `job` is read only between a claim and the matching
/// decrement of `unfinished`, and written only while `unfinished` is 0. So a late thread never sees a job
/// change under it: it either claims a task of the present job or nothing.
#[derive(Default)]
struct Shared {
    unclaimed: Line<AtomicIsize>,
    unfinished: Line<AtomicUsize>,
    job: Line<UnsafeCell<Option<Job>>>,
    sleepers: AtomicUsize,
    caller_sleeps: AtomicBool,
    stop: AtomicBool,
    panic: Mutex<Option<String>>,
    gate: Mutex<()>,
    wake: Condvar,
    done: Condvar,
}

/// A cache line of its own, so that spinning on one value doesn't slow writes of another.
#[derive(Default)]
#[repr(align(128))]
struct Line<T>(T);

#[derive(Clone, Copy)]
struct Job {
    work: *const Work,
    tasks: usize,
}

// SAFETY: `job` follows the rule of `Shared`: writes happen before the claims that read it (release and
// acquire on `unclaimed`) and after the reads of the job before (release and acquire on `unfinished`). The
// pointer it holds is to a `Sync` closure that lives until `unfinished` is 0.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("sleepers", &self.sleepers)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Offers tasks `1..tasks`; task 0 is the caller's.
    fn publish(&self, tasks: usize, work: &(dyn Fn(usize) + Sync)) {
        // SAFETY: only the lifetime changes; `run_tasks` returns after `wait_done`, when no thread uses it.
        let work = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync + '_), &'static Work>(work) };
        // SAFETY: `unfinished` is 0, so no thread reads the cell (rule of `Shared`).
        unsafe { *self.job.0.get() = Some(Job { work, tasks }) };
        self.unfinished.0.store(tasks - 1, Ordering::Relaxed);
        // SeqCst: either the thread that is about to sleep sees this, or `wake_sleepers` sees it as a sleeper.
        self.unclaimed.0.store(tasks.cast_signed() - 1, Ordering::SeqCst);
        self.wake_sleepers();
    }

    /// Does unclaimed tasks until none is left.
    fn help(&self) {
        while self.unclaimed.0.load(Ordering::Relaxed) > 0 {
            let left = self.unclaimed.0.fetch_sub(1, Ordering::Acquire);
            if left <= 0 {
                return;
            }
            // SAFETY: a task is claimed and not finished, so the cell isn't written (rule of `Shared`).
            if let Some(Job { work, tasks }) = unsafe { *self.job.0.get() } {
                // SAFETY: the closure lives until `unfinished` is 0, which this task keeps above it.
                self.perform(unsafe { &*work }, tasks - left.cast_unsigned());
            }
            if self.unfinished.0.fetch_sub(1, Ordering::SeqCst) == 1
                && self.caller_sleeps.load(Ordering::SeqCst)
            {
                let _gate = lock(&self.gate);
                self.done.notify_one();
            }
        }
    }

    /// Does one task; a panic is kept for the caller.
    fn perform(&self, work: &(dyn Fn(usize) + Sync), task: usize) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| work(task))) {
            lock(&self.panic).get_or_insert(message_of(payload.as_ref()));
        }
    }

    fn wait_done(&self) {
        let done = || self.unfinished.0.load(Ordering::SeqCst) == 0;
        if spin_until(done) {
            return;
        }
        let mut gate = lock(&self.gate);
        self.caller_sleeps.store(true, Ordering::SeqCst);
        while !done() {
            gate = self.done.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_sleeps.store(false, Ordering::SeqCst);
    }

    /// The life of a thread of the team.
    fn serve(&self) {
        let awaited = || self.unclaimed.0.load(Ordering::SeqCst) > 0 || self.stop.load(Ordering::SeqCst);
        while !self.stop.load(Ordering::SeqCst) {
            self.help();
            if spin_until(awaited) {
                continue;
            }
            let mut gate = lock(&self.gate);
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            while !awaited() {
                gate = self.wake.wait(gate).unwrap_or_else(PoisonError::into_inner);
            }
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn wake_sleepers(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _gate = lock(&self.gate);
            self.wake.notify_all();
        }
    }
}

/// Spins until `condition`, at most [`SPIN`]; whether it came true.
fn spin_until(condition: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..32 {
            if condition() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > SPIN {
            return condition();
        }
    }
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
        .to_owned()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn every_task_is_done_exactly_once() {
        for threads in 1..=4 {
            let team = Team::new(threads, &Ledger::default()).unwrap();
            assert_eq!(team.size(), threads);
            for tasks in (0..40).chain([1000]) {
                let counts: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                team.run_tasks(tasks, &|task| {
                    counts[task].fetch_add(1, Ordering::Relaxed);
                })
                .unwrap();
                assert!(
                    counts.iter().all(|count| count.load(Ordering::Relaxed) == 1),
                    "{tasks} tasks"
                );
            }
        }
    }

    #[test]
    fn results_of_a_job_are_visible_after_it_and_jobs_dont_mix() {
        let team = Team::new(3, &Ledger::default()).unwrap();
        for round in 0..20_000usize {
            let sum = AtomicUsize::new(0);
            team.run(&|worker| {
                sum.fetch_add(round * 10 + worker, Ordering::Relaxed);
            })
            .unwrap();
            assert_eq!(sum.into_inner(), round * 30 + 3);
            if round % 1000 == 0 {
                std::thread::sleep(SPIN * 3);
            }
        }
    }

    /// Waits until all three tasks of a job have begun, each on a thread of its own.
    fn meet(begun: &AtomicUsize) {
        begun.fetch_add(1, Ordering::SeqCst);
        let start = Instant::now();
        while begun.load(Ordering::SeqCst) < 3 {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "a thread of the team sleeps on"
            );
            std::thread::yield_now();
        }
    }

    #[test]
    fn threads_that_sleep_are_woken_and_the_slowest_is_waited_for() {
        let team = Team::new(3, &Ledger::default()).unwrap();
        for _ in 0..5 {
            // Long enough for all to sleep, as a rule.
            std::thread::sleep(SPIN * 50);
            let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
            team.run(&|task| {
                meet(&begun);
                // Task 0 is the caller's.
                std::thread::sleep(SPIN * 100 * u32::from(task > 0));
                done.fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
            assert_eq!(done.into_inner(), 3);
        }
    }

    #[test]
    fn no_thread_is_left_after_shutdown() {
        static ENDED: AtomicUsize = AtomicUsize::new(0);
        struct End;
        impl Drop for End {
            fn drop(&mut self) {
                std::thread::sleep(SPIN * 100);
                ENDED.fetch_add(1, Ordering::SeqCst);
            }
        }
        thread_local!(static END: End = const { End });
        let mut team = Team::new(3, &Ledger::default()).unwrap();
        let begun = AtomicUsize::new(0);
        team.run(&|task| {
            meet(&begun);
            if task > 0 {
                END.with(|_| ());
            }
        })
        .unwrap();
        team.shutdown().unwrap();
        assert_eq!(ENDED.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn split_covers_the_items_in_pieces_of_the_grain() {
        let team = Team::new(2, &Ledger::default()).unwrap();
        for (items, grain) in [(0, 4), (1, 4), (4, 4), (5, 4), (17, 1), (3, 0)] {
            let pieces = Mutex::new(Vec::new());
            team.split(items, grain, |range| lock(&pieces).push(range))
                .unwrap();
            let mut pieces = pieces.into_inner().unwrap();
            pieces.sort_by_key(|range| range.start);
            assert!(
                pieces
                    .iter()
                    .rev()
                    .skip(1)
                    .all(|range| range.len() == grain.max(1))
            );
            assert!(pieces.into_iter().flatten().eq(0..items));
        }
    }

    #[test]
    fn for_each_changes_every_item_once() {
        let team = Team::new(3, &Ledger::default()).unwrap();
        let mut values: Vec<u32> = (0..100).collect();
        let mut items: Vec<&mut [u32]> = values.chunks_mut(7).collect();
        team.for_each(&mut items, |item| item.iter_mut().for_each(|x| *x += 1000))
            .unwrap();
        assert!(values.into_iter().eq(1000..1100));
    }

    #[test]
    fn a_panic_is_an_error_and_the_team_goes_on() {
        for threads in [1, 3] {
            let team = Team::new(threads, &Ledger::default()).unwrap();
            for bad in 0..5 {
                let done = AtomicUsize::new(0);
                let error = team
                    .run_tasks(5, &|task| {
                        done.fetch_add(1, Ordering::Relaxed);
                        assert!(task != bad, "task {task} is bad");
                    })
                    .unwrap_err();
                assert_eq!(error.kind, ErrorKind::Bug);
                assert!(error.message.contains(&format!("task {bad} is bad")), "{error}");
                assert_eq!(done.into_inner(), 5);
                team.run(&|_| ()).unwrap();
            }
        }
    }

    #[test]
    fn threads_are_on_the_ledger_until_shutdown() {
        let ledger = Ledger::default();
        let mut team = Team::new(4, &ledger).unwrap();
        assert_eq!(ledger.owned_by("thread team"), (0, 3));
        team.shutdown().unwrap();
        assert_eq!((ledger.total(), team.size()), ((0, 0), 1));
        team.shutdown().unwrap();
        let done = AtomicUsize::new(0);
        team.run_tasks(3, &|_| {
            done.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
        assert_eq!(done.into_inner(), 3);
        drop(Team::new(2, &ledger).unwrap());
        assert_eq!(ledger.total(), (0, 0));
    }
}
