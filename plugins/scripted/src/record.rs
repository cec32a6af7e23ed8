//! What the backends of a label did, for tests that link this crate in.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Of all backends of one label together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// How often each call was made.
    pub calls: BTreeMap<&'static str, u64>,
    /// Backends that were dropped.
    pub dropped: u64,
    /// Bytes that their ledgers still held then.
    pub left: u64,
}

static RECORDS: Mutex<BTreeMap<u64, Record>> = Mutex::new(BTreeMap::new());

/// What is known of a label.
pub fn of(label: u64) -> Record {
    records().get(&label).cloned().unwrap_or_default()
}

pub(crate) fn called(label: u64, call: &'static str) {
    if label != 0 {
        *records().entry(label).or_default().calls.entry(call).or_default() += 1;
    }
}

pub(crate) fn dropped(label: u64, left: u64) {
    if label != 0 {
        let mut records = records();
        let record = records.entry(label).or_default();
        record.dropped += 1;
        record.left += left;
    }
}

fn records() -> MutexGuard<'static, BTreeMap<u64, Record>> {
    RECORDS.lock().unwrap_or_else(PoisonError::into_inner)
}
