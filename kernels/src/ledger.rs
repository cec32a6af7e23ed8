//! The ledger: every device resource that is alive, with its owner, size and serial number.

use crate::{Error, Result};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Numbers entries from 1; never reused.
pub type Serial = u64;

/// Owners that every backend names alike.
pub mod owner {
    /// Weights in the checkpoint's own form.
    pub const WEIGHTS: &str = "weight store";
    /// Weights repacked, fused or dequantised at load.
    pub const DERIVED: &str = "derived weights";
    /// Paged keys and values.
    pub const KV: &str = "kv cache";
    /// Recurrent states of live sequences.
    pub const STATES: &str = "ssm state pool";
    /// Copies of recurrent states, kept for later.
    pub const SNAPSHOTS: &str = "ssm snapshots";
    /// The threads that share an operation's work.
    pub const THREADS: &str = "thread team";
    /// What an operation needs beside its operands.
    pub const WORKSPACE: &str = "workspace";
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// What a driver keeps for a program on a device.
    Context,
    /// A memory pool of a driver.
    Pool,
    /// Device memory.
    Memory,
    /// Pinned host memory.
    Pinned,
    /// A stream.
    Stream,
    /// An event.
    Event,
    /// A captured graph.
    Graph,
    /// A loaded code module.
    Module,
    /// A thread.
    Thread,
}

/// A live resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number.
    pub serial: Serial,
    /// What it is.
    pub kind: Kind,
    /// Who took it.
    pub owner: String,
    /// Its size, 0 where size has no meaning.
    pub bytes: u64,
}

/// Gives a resource back. After an error it may be called again. It must not use the ledger.
pub type GiveBack = Box<dyn FnMut() -> Result<()> + Send>;

/// A shared ledger. Cloning gives another handle on the same one.
#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    last: Serial,
    bytes: u64,
    limit: u64,
    refused: Serial,
    live: BTreeMap<Serial, Live>,
}

struct Live {
    entry: Entry,
    give_back: Option<GiveBack>,
}

/// What a sweep did with one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swept {
    /// The resource.
    pub entry: Entry,
    /// Why it could not be given back, where it could not; then it is still on the ledger.
    pub error: Option<Error>,
}

impl Ledger {
    /// A ledger that refuses to pass `limit` bytes; 0 is no limit.
    pub fn with_limit(limit: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            limit,
            ..State::default()
        })))
    }

    /// A ledger that refuses its `n`-th entry: for tests of what an error leaves behind.
    pub fn refusing(n: Serial) -> Self {
        Self(Arc::new(Mutex::new(State {
            refused: n,
            ..State::default()
        })))
    }

    /// Enters a resource. [`crate::ErrorKind::Exhausted`] where it would pass the limit.
    pub fn enter(&self, kind: Kind, owner: &str, bytes: u64) -> Result<Serial> {
        let mut state = self.state();
        let after = state.bytes.checked_add(bytes);
        if after.is_none_or(|after| state.limit > 0 && after > state.limit) {
            return Err(Error::exhausted(format!(
                "{owner} needs {bytes} bytes more, but {} of the {} allowed are taken; raise the memory limit or load a smaller model",
                state.bytes, state.limit
            )));
        }
        state.last += 1;
        let serial = state.last;
        if serial == state.refused {
            return Err(Error::exhausted(format!(
                "entry {serial} ({owner}, {bytes} bytes) is refused by a test"
            )));
        }
        state.bytes += bytes;
        let entry = Entry {
            serial,
            kind,
            owner: owner.to_owned(),
            bytes,
        };
        state.live.insert(
            serial,
            Live {
                entry,
                give_back: None,
            },
        );
        Ok(serial)
    }

    /// Tells how a resource is given back, so that [`release`](Self::release) and [`sweep`](Self::sweep) can.
    pub fn attach(&self, serial: Serial, give_back: GiveBack) -> Result<()> {
        let mut state = self.state();
        let live = state.live.get_mut(&serial).ok_or_else(|| unknown(serial))?;
        live.give_back = Some(give_back);
        Ok(())
    }

    /// Gives a resource back, strikes it out and returns its bytes. After an error it is still on the ledger.
    ///
    /// Who comes first, the owner or a sweep, gives back; the other finds the serial unknown.
    pub fn release(&self, serial: Serial) -> Result<u64> {
        let mut state = self.state();
        let live = state.live.get_mut(&serial).ok_or_else(|| unknown(serial))?;
        match &mut live.give_back {
            Some(give_back) => give_back()?,
            None => {
                return Err(Error::bug(format!(
                    "{} (resource {serial}) can only be given back by its owner",
                    live.entry.owner
                )));
            }
        }
        state.strike(serial)
    }

    /// Gives back everything that is alive. Its owners must be gone, or never use it again.
    pub fn sweep(&self) -> Vec<Swept> {
        self.entries()
            .into_iter()
            .map(|entry| Swept {
                error: self.release(entry.serial).err(),
                entry,
            })
            .collect()
    }

    /// Strikes a resource out and returns its bytes. An unknown serial is a bug of the caller.
    pub fn strike(&self, serial: Serial) -> Result<u64> {
        self.state().strike(serial)
    }

    /// Bytes and number of live entries.
    pub fn total(&self) -> (u64, u64) {
        let state = self.state();
        (state.bytes, state.live.len() as u64)
    }

    /// Whether a resource is on it.
    pub fn holds(&self, serial: Serial) -> bool {
        self.state().live.contains_key(&serial)
    }

    /// Every live entry, in order of serial number.
    pub fn entries(&self) -> Vec<Entry> {
        self.state()
            .live
            .values()
            .map(|live| live.entry.clone())
            .collect()
    }

    /// Bytes and number of the live entries of one owner.
    pub fn owned_by(&self, owner: &str) -> (u64, u64) {
        let state = self.state();
        state
            .live
            .values()
            .map(|live| &live.entry)
            .filter(|e| e.owner == owner)
            .fold((0, 0), |(b, n), e| (b + e.bytes, n + 1))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn strike(&mut self, serial: Serial) -> Result<u64> {
        let live = self.live.remove(&serial).ok_or_else(|| unknown(serial))?;
        self.bytes -= live.entry.bytes;
        Ok(live.entry.bytes)
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.entries()).finish()
    }
}

fn unknown(serial: Serial) -> Error {
    Error::bug(format!("resource {serial} was released twice or never taken"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, cpu::Buffer};

    #[test]
    fn a_sweep_frees_what_has_lost_its_owner() {
        let ledger = Ledger::default();
        let lost = Buffer::<u8>::zeroed(&ledger, "lost", 8192).unwrap();
        let start = lost.as_ptr() as usize;
        std::mem::forget(lost);
        let thread = ledger.enter(Kind::Thread, "thread team", 0).unwrap();
        assert!(is_mapped(start));

        let swept = ledger.sweep();
        assert_eq!(swept.len(), 2);
        assert_eq!(
            (swept[0].entry.owner.as_str(), swept[0].entry.bytes),
            ("lost", 8192)
        );
        assert_eq!(swept[0].error, None);
        assert_eq!(swept[1].entry.serial, thread);
        assert!(swept[1].error.is_some());
        assert_eq!(ledger.total(), (0, 1));
    }

    #[test]
    fn what_was_swept_is_unmapped() {
        let is_back = || {
            let ledger = Ledger::default();
            let lost = Buffer::<u8>::zeroed(&ledger, "lost", 8192).unwrap();
            let start = lost.as_ptr() as usize;
            std::mem::forget(lost);
            assert_eq!(ledger.sweep().len(), 1);
            !is_mapped(start)
        };
        // Another thread may be given the same addresses at once, but not every time.
        assert!((0..100).any(|_| is_back()), "the memory is back");
    }

    #[test]
    fn an_owner_that_comes_after_the_sweep_frees_nothing() {
        let ledger = Ledger::default();
        let buffer = Buffer::<u8>::zeroed(&ledger, "late", 1).unwrap();
        assert_eq!(ledger.sweep().len(), 1);
        assert_eq!(buffer.release().unwrap_err().kind, ErrorKind::Bug);
        assert_eq!(ledger.total(), (0, 0));
    }

    #[test]
    fn a_failed_release_stays_on_the_ledger() {
        let ledger = Ledger::default();
        let serial = ledger.enter(Kind::Stream, "stream", 3).unwrap();
        let mut failures = 1;
        let give_back = move || match failures {
            0 => Ok(()),
            _ => {
                failures -= 1;
                Err(Error::bug("not now"))
            }
        };
        ledger.attach(serial, Box::new(give_back)).unwrap();
        assert_eq!(ledger.release(serial).unwrap_err().message, "not now");
        assert_eq!(ledger.total(), (3, 1));
        assert_eq!(ledger.release(serial), Ok(3));
        assert!(ledger.release(serial).is_err());
    }

    fn is_mapped(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| {
            let range = line.split([' ', '-']).take(2);
            let bounds: Vec<_> = range.map(|hex| usize::from_str_radix(hex, 16).unwrap()).collect();
            (bounds[0]..bounds[1]).contains(&address)
        })
    }
}
