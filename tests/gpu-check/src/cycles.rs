//! Loads and teardowns of the library, and what the card's memory is after them.

use crate::{Setup, card};
use anyhow::Result;
use met_tests::cycles::Lives;
use serde_json::{Value, json};

/// So many lives after one to warm up: load, generate, teardown, unload, each with an empty ledger and an unmapped
/// library at its end.
pub fn run(setup: &Setup, cycles: usize) -> Result<Value> {
    let mut free = Vec::with_capacity(cycles + 1);
    let mut source = "";
    let mut problem = None;
    let before = card::free_memory()?.0;
    let report = Lives::of(&setup.cuda, &setup.model)?.run(1, cycles, |_, _| match card::free_memory() {
        Ok((bytes, by)) => {
            free.push(bytes);
            source = by;
        }
        Err(error) => problem = problem.take().or(Some(error)),
    })?;
    if let Some(error) = problem {
        return Err(error);
    }
    let (first, last) = (free.first().copied(), free.last().copied());
    let lost = first
        .zip(last)
        .map(|(first, last)| first.cast_signed() - last.cast_signed());
    Ok(json!({
        "cycles": report.cycles,
        "free_by": source,
        "free_before_any": before,
        "free_after_warm_up": first,
        "free_after_last": last,
        "lost_bytes": lost,
        "host_bytes_a_cycle": report.slope,
        "mappings": report.after.mappings.cast_signed() - report.before.mappings.cast_signed(),
        "threads": report.after.threads.cast_signed() - report.before.threads.cast_signed(),
        "descriptors": report.after.descriptors.cast_signed() - report.before.descriptors.cast_signed(),
    }))
}
