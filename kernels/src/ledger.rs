//! The ledger: every device resource that is alive, with its owner, size and serial number.

use crate::{Error, Result};
use std::{
    collections::BTreeMap,
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
    /// The threads that share an operation's work.
    pub const THREADS: &str = "thread team";
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Device memory.
    Memory,
    /// Pinned host memory.
    Pinned,
    /// A file mapping.
    Mapping,
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

/// A shared ledger. Cloning gives another handle on the same one.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    last: Serial,
    bytes: u64,
    limit: u64,
    live: BTreeMap<Serial, Entry>,
}

impl Ledger {
    /// A ledger that refuses to pass `limit` bytes; 0 is no limit.
    pub fn with_limit(limit: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            limit,
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
        state.bytes += bytes;
        let serial = state.last;
        state.live.insert(
            serial,
            Entry {
                serial,
                kind,
                owner: owner.to_owned(),
                bytes,
            },
        );
        Ok(serial)
    }

    /// Strikes a resource out and returns its bytes. An unknown serial is a bug of the caller.
    pub fn strike(&self, serial: Serial) -> Result<u64> {
        let mut state = self.state();
        let entry = state
            .live
            .remove(&serial)
            .ok_or_else(|| Error::bug(format!("resource {serial} was released twice or never taken")))?;
        state.bytes -= entry.bytes;
        Ok(entry.bytes)
    }

    /// Bytes and number of live entries.
    pub fn total(&self) -> (u64, u64) {
        let state = self.state();
        (state.bytes, state.live.len() as u64)
    }

    /// Every live entry, in order of serial number.
    pub fn entries(&self) -> Vec<Entry> {
        self.state().live.values().cloned().collect()
    }

    /// Bytes and number of the live entries of one owner.
    pub fn owned_by(&self, owner: &str) -> (u64, u64) {
        let state = self.state();
        state
            .live
            .values()
            .filter(|e| e.owner == owner)
            .fold((0, 0), |(b, n), e| (b + e.bytes, n + 1))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
