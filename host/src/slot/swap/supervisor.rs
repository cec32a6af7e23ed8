//! Which slots are being swapped, and what became of earlier swaps.

use super::{
    Order, SwapEvent, SwapReport,
    control::Control,
    perform::{Done, Performer},
};
use crate::slot::{Generation, GenerationEnd, ModelText, Slot, Slots, check_name};
use std::{
    collections::{BTreeMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::{broadcast, oneshot};

/// Reports that are kept.
const REPORTS: usize = 64;
/// Events that a slow listener may lag behind before it misses some.
const EVENTS: usize = 1024;

/// How long a swap may take to come to its end once the requests of a server that stops are cut.
const WIND_UP: Duration = Duration::from_secs(20);

/// Swaps that ended, by slot and outcome.
const SWAPS: &str = "met_swaps_total";

/// Carries orders out, one at a time a slot.
pub struct Supervisor<T> {
    slots: Arc<Slots<T>>,
    events: broadcast::Sender<SwapEvent>,
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    last_id: u64,
    busy: BTreeMap<String, (u64, Arc<Control>)>,
    reports: VecDeque<SwapReport>,
    stuck: Vec<(String, Arc<Generation<T>>)>,
    closing: bool,
}

/// A swap that was begun.
pub struct Begun {
    /// Its number.
    pub id: u64,
    /// Where its report comes. It goes on whether anybody waits for that or not.
    pub report: oneshot::Receiver<SwapReport>,
}

/// Why an order was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The slot is being swapped.
    #[error("slot {slot:?} is being swapped: wait for swap {id}, or cancel it")]
    Busy {
        /// Which.
        slot: String,
        /// By which swap.
        id: u64,
    },
    /// There is no such slot.
    #[error("there is no slot {slot:?}; GET /slots lists those there are")]
    Unknown {
        /// Its name.
        slot: String,
    },
    /// No slot may have this name.
    #[error("{reason}")]
    Name {
        /// What a name is.
        reason: String,
    },
    /// There is such a slot already.
    #[error("there is a slot {slot:?} already; swap it, or unload it first")]
    Exists {
        /// Its name.
        slot: String,
    },
    /// The server is being stopped.
    #[error("the server is being stopped")]
    Closing,
    /// The system has no thread for it.
    #[error("the system gives no thread for a swap: {0}")]
    NoThread(String),
}

/// Why a swap was not cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCancelled {
    /// None of this number runs.
    #[error("no swap {0} is running")]
    NotRunning(u64),
    /// It has switched, or gives its candidate up already.
    #[error("swap {0} can't be cancelled any more")]
    TooLate(u64),
}

impl<T: ModelText> Supervisor<T> {
    /// Over these slots.
    pub fn new(slots: Arc<Slots<T>>) -> Arc<Self> {
        Arc::new(Self {
            slots,
            events: broadcast::Sender::new(EVENTS),
            state: Mutex::new(State {
                last_id: 0,
                busy: BTreeMap::new(),
                reports: VecDeque::new(),
                stuck: Vec::new(),
                closing: false,
            }),
            changed: Condvar::new(),
        })
    }

    /// The slots.
    pub fn slots(&self) -> &Arc<Slots<T>> {
        &self.slots
    }

    /// What happens from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<SwapEvent> {
        self.events.subscribe()
    }

    /// Begins to carry an order out, on a thread of its own.
    pub fn begin(self: &Arc<Self>, name: &str, order: Order) -> Result<Begun, Refusal> {
        self.release_stuck();
        let mut state = self.lock();
        if state.closing {
            return Err(Refusal::Closing);
        }
        let slot = name.to_owned();
        if let Some((id, _)) = state.busy.get(name) {
            return Err(Refusal::Busy { slot, id: *id });
        }
        let there = self.slots.get(name);
        let slot = match (&order, there) {
            (Order::Load(_), Some(_)) => return Err(Refusal::Exists { slot }),
            (Order::Load(order), None) => {
                check_name(name).map_err(|reason| Refusal::Name { reason })?;
                self.slots.add_held(name, order.hold)
            }
            (Order::Swap(_) | Order::Unload { .. }, None) => return Err(Refusal::Unknown { slot }),
            (Order::Swap(_) | Order::Unload { .. }, Some(there)) => there,
        };
        let is_load = matches!(order, Order::Load(_));
        state.last_id += 1;
        let id = state.last_id;
        let control = Arc::new(Control::of(&order));
        state.busy.insert(name.to_owned(), (id, Arc::clone(&control)));
        drop(state);
        let (tell, report) = oneshot::channel();
        let supervisor = Arc::clone(self);
        let thread = std::thread::Builder::new()
            .name(format!("swap {name}"))
            .spawn(move || {
                let carry_out = || supervisor.carry_out(id, Arc::clone(&slot), &order, &control);
                let Ok(report) = catch_unwind(AssertUnwindSafe(carry_out)) else {
                    supervisor.give_up(id, &slot);
                    return;
                };
                // Whoever asked may have gone.
                let _ = tell.send(report);
            });
        match thread {
            Ok(_) => Ok(Begun { id, report }),
            Err(error) => {
                if is_load {
                    self.slots.remove(name);
                }
                self.lock().busy.remove(name);
                Err(Refusal::NoThread(error.to_string()))
            }
        }
    }

    /// Asks a swap to give its candidate up.
    pub fn cancel(&self, id: u64) -> Result<(), NotCancelled> {
        let state = self.lock();
        let control = state.busy.values().find(|(busy, _)| *busy == id);
        let (_, control) = control.ok_or(NotCancelled::NotRunning(id))?;
        match control.cancel() {
            true => Ok(()),
            false => Err(NotCancelled::TooLate(id)),
        }
    }

    /// The report of a swap that has ended, if it is among the latest.
    pub fn report(&self, id: u64) -> Option<SwapReport> {
        self.lock().reports.iter().find(|report| report.id == id).cloned()
    }

    /// The swap that a slot is in.
    pub fn busy(&self, name: &str) -> Option<u64> {
        self.lock().busy.get(name).map(|(id, _)| *id)
    }

    /// Whether no swap runs.
    pub fn is_idle(&self) -> bool {
        self.lock().busy.is_empty()
    }

    /// Generations with a call that did not come back, with their slots' names.
    pub fn stuck(&self) -> Vec<(String, Arc<Generation<T>>)> {
        self.release_stuck();
        self.lock().stuck.clone()
    }

    /// Takes no orders any more, cancels those that run and waits for them, then ends every slot. Requests may run
    /// until `deadline`. The last event says so. Blocks the calling thread.
    pub fn shutdown(&self, deadline: Duration) -> Vec<(String, GenerationEnd)> {
        let began = Instant::now();
        let mut state = self.lock();
        state.closing = true;
        for (_, control) in state.busy.values() {
            control.stop(began + deadline);
        }
        let patience = deadline.saturating_add(WIND_UP);
        let waited = self
            .changed
            .wait_timeout_while(state, patience, |state| !state.busy.is_empty());
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        for (slot, (id, _)) in &state.busy {
            tracing::error!(
                id,
                slot,
                "the swap has come to no end; what it holds goes with the process"
            );
        }
        drop(state);
        let ends = self.slots.shutdown(deadline.saturating_sub(began.elapsed()));
        self.release_stuck();
        let _ = self.events.send(SwapEvent::Stopped);
        ends
    }

    fn carry_out(&self, id: u64, slot: Arc<Slot<T>>, order: &Order, control: &Control) -> SwapReport {
        let name = slot.name().to_owned();
        if matches!(order, Order::Unload { .. }) {
            // From now on there is no such model.
            self.slots.remove(&name);
        }
        let performer = Performer {
            id,
            slot,
            order,
            control,
            events: &self.events,
        };
        let Done { report, stuck } = performer.perform();
        if matches!(order, Order::Load(_)) && report.to.is_none() {
            self.slots.remove(&name);
        }
        metrics::counter!(SWAPS, "model" => name.clone(), "outcome" => report.outcome.name()).increment(1);
        tracing::info!(
            id,
            slot = name,
            outcome = report.outcome.name(),
            ms = report.ms,
            error = report.error,
            library = ?report.library,
            "swap ended"
        );
        let mut state = self.lock();
        state.busy.remove(&name);
        state
            .stuck
            .extend(stuck.into_iter().map(|stuck| (name.clone(), stuck)));
        if state.reports.len() == REPORTS {
            state.reports.pop_front();
        }
        state.reports.push_back(report.clone());
        drop(state);
        self.changed.notify_all();
        // Nobody need listen.
        let _ = self.events.send(SwapEvent::Ended(Box::new(report.clone())));
        report
    }

    /// After a panic, which the panic hook has told of: the slot serves what it did, and can be swapped again.
    fn give_up(&self, id: u64, slot: &Slot<T>) {
        tracing::error!(id, slot = slot.name(), "the swap panicked; see the message above");
        slot.let_go();
        if slot.current().is_none() {
            self.slots.remove(slot.name());
        }
        self.lock().busy.remove(slot.name());
        self.changed.notify_all();
    }

    /// Ends the generations whose hung call has come back after all.
    fn release_stuck(&self) {
        let back: Vec<_> = {
            let mut state = self.lock();
            let (back, stuck) = std::mem::take(&mut state.stuck)
                .into_iter()
                .partition(|(_, generation)| generation.engine().has_ended());
            state.stuck = stuck;
            back
        };
        for (slot, generation) in back {
            let end = generation.shutdown(Duration::ZERO);
            tracing::info!(slot, generation = end.number, library = ?end.unload, "a stuck generation has come to its end");
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
