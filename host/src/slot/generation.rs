//! One life of a slot.

use super::{LoadSpec, ModelText};
use crate::{
    engine::{Engine, TeardownReport},
    loader::{Library, Unload},
};
use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

/// One opened backend with its model, its engine and its text.
pub struct Generation<T> {
    number: u64,
    engine: Engine,
    text: Arc<T>,
    created: SystemTime,
    stuck: AtomicBool,
    /// How it was loaded; engines of tests were not.
    spec: Option<LoadSpec>,
    /// The code that the engine runs; engines of tests have none.
    library: Mutex<Option<Library>>,
    /// The name and version of that code.
    backend: Option<(String, String)>,
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
pub(super) const UNLOAD_WAIT: Duration = Duration::from_secs(5);

/// What two generations have in common where a request can go on from one to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Of the vocabulary.
    pub text: String,
    /// Of the weights.
    pub weights: String,
}

/// What two generations have in common where what one has computed is of use to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kernels {
    identity: Identity,
    backend: (String, String),
}

#[derive(Default)]
struct Holds {
    leases: usize,
    closed: bool,
}

impl<T> Generation<T> {
    /// A generation whose engine is running, on code of this program. `number` is from
    /// [`super::Slot::next_number`].
    pub fn new(number: u64, engine: Engine, text: Arc<T>) -> Arc<Self> {
        Arc::new(Self::of(number, engine, text, None, None))
    }

    /// A generation as `spec` asks for it, whose engine runs the code of `library`, which is closed at its end.
    pub fn with_library(
        number: u64,
        engine: Engine,
        text: Arc<T>,
        spec: LoadSpec,
        library: Library,
    ) -> Arc<Self> {
        Arc::new(Self::of(number, engine, text, Some(spec), Some(library)))
    }

    fn of(
        number: u64,
        engine: Engine,
        text: Arc<T>,
        spec: Option<LoadSpec>,
        library: Option<Library>,
    ) -> Self {
        Self {
            number,
            engine,
            text,
            created: SystemTime::now(),
            stuck: AtomicBool::new(false),
            spec,
            backend: library
                .as_ref()
                .map(|library| (library.name().to_owned(), library.version().to_owned())),
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

    /// How it was loaded.
    pub fn spec(&self) -> Option<&LoadSpec> {
        self.spec.as_ref()
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
        let leases = self.drain(deadline);
        let teardown = self.teardown(deadline.saturating_sub(began.elapsed()));
        let unload = self.unload(UNLOAD_WAIT);
        GenerationEnd {
            number: self.number,
            leases,
            teardown,
            unload,
        }
    }

    /// Gives no more leases, and waits until `deadline` for those that are held to come to their end. Returns how
    /// many have not.
    pub fn drain(&self, deadline: Duration) -> usize {
        let mut holds = self.holds();
        holds.closed = true;
        let waited = self
            .released
            .wait_timeout_while(holds, deadline, |holds| holds.leases > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.leases
    }

    /// Gives leases again, after a drain that was given up.
    pub fn reopen(&self) {
        self.holds().closed = false;
    }

    /// Whether a call of its teardown did not come back.
    pub fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed) && !self.engine.has_ended()
    }

    /// Gives up the requests that are left at `deadline`, tears the engine down and joins its thread.
    pub fn teardown(&self, deadline: Duration) -> TeardownReport {
        let report = self.engine.shutdown(deadline);
        self.stuck.store(report.stuck.is_some(), Ordering::Relaxed);
        report
    }

    /// Closes the library, whose threads may take so long to end; `None` where there is none.
    pub fn unload(&self, wait: Duration) -> Option<Unload> {
        let library = &mut *self.library.lock().unwrap_or_else(PoisonError::into_inner);
        library.as_mut().map(|library| library.close(wait))
    }

    /// Counts a lease, unless it is closed.
    pub(super) fn hold(&self) -> bool {
        let mut holds = self.holds();
        holds.leases += usize::from(!holds.closed);
        !holds.closed
    }

    /// Counts one more lease for whoever has one.
    pub(super) fn hold_again(&self) {
        self.holds().leases += 1;
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

impl<T: ModelText> Generation<T> {
    /// What another generation must have in common with it to take its requests.
    pub fn identity(&self) -> Identity {
        Identity {
            text: self.text.fingerprint().to_owned(),
            weights: self.engine.info().model.weights_identity.to_string(),
        }
    }

    /// What another generation must have in common with it to go on from what it has computed.
    pub(super) fn kernels(&self) -> Option<Kernels> {
        Some(Kernels {
            identity: self.identity(),
            backend: self.backend.clone()?,
        })
    }
}
