//! One life of a slot.

use crate::{
    engine::{Engine, TeardownReport},
    loader::{Library, Unload},
};
use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

/// One opened backend with its model, its engine and its text.
pub struct Generation<T> {
    number: u64,
    engine: Engine,
    text: Arc<T>,
    created: SystemTime,
    /// The code that the engine runs; engines of tests have none.
    library: Mutex<Option<Library>>,
    holds: Mutex<Holds>,
    released: Condvar,
}

/// What became of a generation.
#[derive(Clone, Debug)]
pub struct GenerationEnd {
    /// Its number.
    pub number: u64,
    /// Leases that were still held when the deadline had passed.
    pub leases: usize,
    /// What the teardown did.
    pub teardown: TeardownReport,
    /// What became of its library, where it had one.
    pub unload: Option<Unload>,
}

/// How long the threads of a library may take to end once the engine thread has.
const UNLOAD_WAIT: Duration = Duration::from_secs(5);

#[derive(Default)]
struct Holds {
    leases: usize,
    closed: bool,
}

impl<T> Generation<T> {
    /// A generation whose engine is running, on code of this program. `number` is from
    /// [`super::Slot::next_number`].
    pub fn new(number: u64, engine: Engine, text: Arc<T>) -> Arc<Self> {
        Arc::new(Self::of(number, engine, text, None))
    }

    /// A generation whose engine runs the code of `library`, which is closed at its end.
    pub fn with_library(number: u64, engine: Engine, text: Arc<T>, library: Library) -> Arc<Self> {
        Arc::new(Self::of(number, engine, text, Some(library)))
    }

    fn of(number: u64, engine: Engine, text: Arc<T>, library: Option<Library>) -> Self {
        Self {
            number,
            engine,
            text,
            created: SystemTime::now(),
            library: Mutex::new(library),
            holds: Mutex::default(),
            released: Condvar::new(),
        }
    }

    /// Counts from 1 within its slot.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Its text.
    pub fn text(&self) -> &Arc<T> {
        &self.text
    }

    /// When it was made.
    pub fn created(&self) -> SystemTime {
        self.created
    }

    /// Leases held now.
    pub fn leases(&self) -> usize {
        self.holds().leases
    }

    /// Gives no more leases, lets those that are held come to their end until `deadline`, tears the engine
    /// down and unloads the library. Each is attempted whatever happened before. Blocks the calling thread.
    ///
    /// After a teardown that was stuck it may be called again, and then goes on from there.
    pub fn shutdown(&self, deadline: Duration) -> GenerationEnd {
        let began = Instant::now();
        let mut holds = self.holds();
        holds.closed = true;
        let waited = self
            .released
            .wait_timeout_while(holds, deadline, |holds| holds.leases > 0);
        let leases = waited.unwrap_or_else(PoisonError::into_inner).0.leases;
        let teardown = self.engine.shutdown(deadline.saturating_sub(began.elapsed()));
        let library = &mut *self.library.lock().unwrap_or_else(PoisonError::into_inner);
        let unload = library.as_mut().map(|library| library.close(UNLOAD_WAIT));
        GenerationEnd {
            number: self.number,
            leases,
            teardown,
            unload,
        }
    }

    /// Counts a lease, unless it is closed.
    pub(super) fn hold(&self) -> bool {
        let mut holds = self.holds();
        holds.leases += usize::from(!holds.closed);
        !holds.closed
    }

    /// Counts a lease back.
    pub(super) fn release(&self) {
        self.holds().leases -= 1;
        self.released.notify_all();
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        // Nothing panics while it holds the lock.
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
