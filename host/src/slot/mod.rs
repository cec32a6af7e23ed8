//! Served model names, the generations behind them, and the leases that requests hold.
//!
//! - A lease is taken before a request touches anything of a generation, and held until its last event.
//! - A slot points to at most one generation. Changing that is one pointer store ([`Slot::switch`]): a lease
//!   is of the generation before it or of the one after it.
//! - A generation that is closed gives no more leases, so a count of zero stays zero.
//!
//! `T` is what belongs to a generation besides its engine: tokenizer and template.

mod door;
mod generation;
mod lease;
mod load;
mod model_text;
mod request_stream;
pub mod swap;
#[cfg(test)]
mod tests;

pub use door::Hold;
pub use generation::{Generation, GenerationEnd, Identity};
pub use lease::{Lease, LeaseError};
pub use load::{LOAD_DEADLINE, LoadFailure, LoadProblem, LoadSpec, load, look};
pub use model_text::ModelText;
pub use request_stream::RequestStream;

use door::{Door, Entry};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, SystemTime},
};
use tokio::sync::oneshot;

/// Most bytes of a slot's name.
const LONGEST_NAME: usize = 128;

/// Whether a slot may have this name: it stands in addresses, logs, metrics and names of threads.
///
/// # Errors
/// What a name is.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_one =
        (1..=LONGEST_NAME).contains(&name.len()) && !name.contains(|c: char| c == '/' || c.is_control());
    match is_one {
        true => Ok(()),
        false => Err(format!(
            "a slot's name has 1 to {LONGEST_NAME} bytes, no / and no control characters"
        )),
    }
}

/// Every served name.
pub struct Slots<T> {
    slots: RwLock<BTreeMap<String, Arc<Slot<T>>>>,
}

/// Generations, and where the requests that wait for one are told.
type SlotDoor<T> = Door<Arc<Generation<T>>, oneshot::Sender<Lease<T>>>;

/// A served model name.
pub struct Slot<T> {
    name: String,
    door: Mutex<SlotDoor<T>>,
    last_number: AtomicU64,
    /// How its latest generation was loaded.
    spec: Mutex<Option<LoadSpec>>,
    /// The text of its latest generation, while anybody has it.
    text: Mutex<Weak<T>>,
    /// When its latest generation was made.
    latest: Mutex<Option<SystemTime>>,
}

impl<T> Slots<T> {
    /// No names.
    pub fn new() -> Self {
        Self {
            slots: RwLock::new(BTreeMap::new()),
        }
    }

    /// The slot of this name; made where there is none.
    pub fn add(&self, name: &str) -> Arc<Slot<T>> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let slot = slots
            .entry(name.to_owned())
            .or_insert_with(|| Arc::new(Slot::new(name)));
        Arc::clone(slot)
    }

    /// A new slot whose first generation is expected: requests wait for it from the moment that the name is there.
    pub fn add_held(&self, name: &str, hold: Hold) -> Arc<Slot<T>> {
        let slot = Arc::new(Slot::new(name));
        slot.hold(hold);
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        slots.insert(name.to_owned(), Arc::clone(&slot));
        slot
    }

    /// The slot of this name.
    pub fn get(&self, name: &str) -> Option<Arc<Slot<T>>> {
        self.slots
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .cloned()
    }

    /// Takes the name away: from now on there is no such model. Its generation is untouched.
    pub fn remove(&self, name: &str) -> Option<Arc<Slot<T>>> {
        self.slots
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(name)
    }

    /// Every slot, in order of name.
    pub fn all(&self) -> Vec<Arc<Slot<T>>> {
        self.slots
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect()
    }

    /// A hold on the generation that serves `model`; waits for it where it is being swapped.
    pub async fn enter(&self, model: &str) -> Result<Lease<T>, LeaseError> {
        let slot = self.get(model).ok_or_else(|| LeaseError::UnknownModel {
            model: model.to_owned(),
        })?;
        slot.enter(false).await
    }

    /// Takes every generation out of its slot, lets their requests finish until `deadline`, and ends them, all
    /// at the same time. Returns each with its slot's name. Blocks the calling thread.
    pub fn shutdown(&self, deadline: Duration) -> Vec<(String, GenerationEnd)>
    where
        T: Send + Sync,
    {
        let slots = self.all();
        std::thread::scope(|scope| {
            let threads = slots.iter().filter_map(|slot| {
                slot.let_go();
                let generation = slot.switch(None)?;
                let end = move || (slot.name.clone(), generation.shutdown(deadline));
                let thread = thread::Builder::new().spawn_scoped(scope, end.clone());
                Some(thread.map_err(|_| end))
            });
            let threads: Vec<_> = threads.collect();
            let ends = threads.into_iter().filter_map(|thread| match thread {
                Ok(thread) => thread.join().ok(),
                // The system gave none: one after another, here.
                Err(end) => Some(end()),
            });
            ends.collect()
        })
    }
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Slot<T> {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            door: Mutex::new(Door::new()),
            last_number: AtomicU64::new(0),
            spec: Mutex::new(None),
            text: Mutex::new(Weak::new()),
            latest: Mutex::new(None),
        }
    }

    /// The name that clients use.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of the next generation. Never the same twice.
    pub fn next_number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// How its latest generation was loaded.
    pub fn spec(&self) -> Option<LoadSpec> {
        self.spec.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Remembers how its latest generation was loaded.
    pub fn set_spec(&self, spec: LoadSpec) {
        *self.spec.lock().unwrap_or_else(PoisonError::into_inner) = Some(spec);
    }

    /// The text of the generation that serves, else of the latest one where anybody still has it.
    fn text(&self) -> Option<Arc<T>> {
        let current = self.current().map(|current| Arc::clone(current.text()));
        current.or_else(|| self.text.lock().unwrap_or_else(PoisonError::into_inner).upgrade())
    }

    /// Remembers the text of its latest generation.
    fn set_text(&self, text: &Arc<T>) {
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(text);
    }

    /// The generation that serves now.
    pub fn current(&self) -> Option<Arc<Generation<T>>> {
        self.door().current().cloned()
    }

    /// Since when clients have had its model: that of the generation before, while the next one is waited for.
    pub fn serves_since(&self) -> Option<SystemTime> {
        let is_served = self.current().is_some() || self.is_ready();
        let latest = *self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.filter(|_| is_served)
    }

    /// Lets another generation serve from now on, and returns the one that did. Requests that waited for one
    /// have their hold on it before anybody else can ask for its end.
    pub fn switch(self: &Arc<Self>, to: Option<Arc<Generation<T>>>) -> Option<Arc<Generation<T>>> {
        if let Some(to) = &to {
            *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(to.created());
        }
        let mut door = self.door();
        let (from, held) = door.switch(to);
        if let Some(current) = door.current().cloned() {
            for waiting in held {
                if let Some(lease) = Lease::of(self, &current) {
                    // One that has left gives its hold back at once.
                    let _ = waiting.send(lease);
                }
            }
        }
        drop(door);
        from
    }

    /// From now on a generation is expected: requests that find none wait for it.
    pub fn hold(&self, hold: Hold) {
        self.door().hold(hold);
    }

    /// From now on none is expected; those that wait are sent away.
    pub fn let_go(&self) {
        let waiting = self.door().let_go();
        drop(waiting);
    }

    /// How many requests have ever waited for a generation, and how many do now.
    pub fn held(&self) -> (u64, usize) {
        let door = self.door();
        (door.held_total(), door.held(oneshot::Sender::is_closed))
    }

    /// A hold on the generation that serves, or waits for one where one is expected. A request that `goes_on` from
    /// an earlier generation is not refused for the length of the line.
    pub async fn enter(self: &Arc<Self>, goes_on: bool) -> Result<Lease<T>, LeaseError> {
        let retry_after = lease::RETRY_AFTER;
        let (hold, lease) = {
            let mut door = self.door();
            match door.enter(
                goes_on,
                |current| current.engine().is_open(),
                oneshot::Sender::is_closed,
            ) {
                Entry::Serves(current) => {
                    return Lease::of(self, &current).ok_or(LeaseError::NotReady { retry_after });
                }
                Entry::Full => return Err(LeaseError::Full { retry_after }),
                Entry::Closed => return Err(LeaseError::NotReady { retry_after }),
                Entry::Wait(hold) => {
                    let (waiting, lease) = oneshot::channel();
                    door.wait(waiting);
                    (hold, lease)
                }
            }
        };
        let waited = tokio::time::timeout(hold.deadline, lease).await;
        waited
            .ok()
            .and_then(Result::ok)
            .ok_or(LeaseError::NotReady { retry_after })
    }

    /// Whether a generation serves and takes requests, or one is expected and they are held.
    pub fn is_ready(&self) -> bool {
        let door = self.door();
        door.is_held_open() || door.current().is_some_and(|current| current.engine().is_open())
    }

    /// Whether a request of generation `number` may go on in another one.
    fn goes_on_after(&self, number: u64) -> bool {
        let door = self.door();
        door.is_held_open() || door.current().is_some_and(|current| current.number() != number)
    }

    fn door(&self) -> MutexGuard<'_, SlotDoor<T>> {
        // Nothing panics while it holds the lock.
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
