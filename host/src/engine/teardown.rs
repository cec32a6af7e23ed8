//! The end of a generation's device: every step attempted whatever happened before it, and reported.

use super::{
    DeviceIo,
    report::{LedgerItem, ReleasedPool, Swept, TeardownStep},
    run::Runner,
    snapshot::Board,
};
use crate::request::Failure;
use met_backend_api::Error;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Instant,
};

/// Ends what is served: the steps in flight, the sessions, the requests (those that can be finished until the deadline
/// are, unless the engine's own code has failed), and all that was kept for them. Each step is attempted whatever
/// happened before it.
pub(super) fn shut_down(runner: &mut Runner<'_>, is_sound: bool) {
    let board = runner.board;
    step(board, "drain pipeline", || runner.drain());
    deed(board, "end sessions", || runner.end_sessions());
    let is_sound = is_sound && deed(board, "finish requests", || runner.finish());
    let failure = match is_sound {
        true => Failure::Draining,
        false => Failure::Backend("the engine has failed".into()),
    };
    step(board, "give up requests", || runner.give_up(failure));
    deed(board, "delete parked copies", || runner.forget_parked());
    step(board, "free state slots", || runner.free_states());
}

/// Makes a step that fails only where it panics. Whether it did not.
fn deed(board: &Board, name: &'static str, deed: impl FnOnce()) -> bool {
    let made = step(board, name, || {
        deed();
        Ok(())
    });
    made.is_some()
}

/// Synchronises, releases, sweeps and drops. Nothing may be in flight. A failed synchronisation doesn't stop
/// it: refusing to free would leak the whole model.
pub(super) fn tear_down(mut device: Box<dyn DeviceIo>, board: &Board) {
    let before = step(board, "memory before", || device.memory());
    board.report(|report| report.memory_before = before.map(Into::into));
    step(board, "synchronize default stream", || device.synchronize(0));
    step(board, "synchronize prefill stream", || device.synchronize(1));
    if let Some(released) = step(board, "release pools", || device.release_pools()) {
        for released in &released.steps {
            let pool = ReleasedPool::from(released);
            if let Some(error) = &pool.error {
                tracing::warn!(pool = pool.label, "left for the sweep: {error}");
            }
            board.report(|report| report.pools.push(pool));
        }
    }
    step(board, "drop model", || {
        device.drop_model();
        Ok(())
    });
    if let Some(swept) = step(board, "sweep unreleased", || device.sweep_unreleased()) {
        let swept = Swept::from(&swept);
        if swept.count > 0 {
            tracing::warn!(
                count = swept.count,
                bytes = swept.bytes,
                failures = swept.failures,
                "the sweep found resources without an owner"
            );
        }
        board.report(|report| report.swept = swept);
    }
    let left = step(board, "ledger", || device.ledger());
    let left = left.map(|entries| entries.iter().map(LedgerItem::from).collect::<Vec<_>>());
    let after = step(board, "memory after", || device.memory());
    board.report(|report| {
        report.left = left;
        report.memory_after = after.map(Into::into);
    });
    step(board, "drop backend", || {
        drop(device);
        Ok(())
    });
}

/// Makes one step, and reports it.
pub(super) fn step<T>(
    board: &Board,
    name: &'static str,
    call: impl FnOnce() -> Result<T, Error>,
) -> Option<T> {
    let began = Instant::now();
    let outcome = board.calling(name, || catch_unwind(AssertUnwindSafe(call)));
    let outcome = outcome.unwrap_or_else(|_| Err(Error::bug("the host's side of the call panicked")));
    let ms = began.elapsed().as_secs_f64() * 1e3;
    let error = outcome.as_ref().err().map(ToString::to_string);
    match &error {
        Some(error) => tracing::warn!(step = name, ms, "a teardown step failed: {error}"),
        None => tracing::debug!(step = name, ms, "teardown"),
    }
    board.report(|report| report.steps.push(TeardownStep { name, ms, error }));
    outcome.ok()
}
