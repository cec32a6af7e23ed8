//! The real server with the CUDA backend's library: on a simulated card, and without any driver.

use crate::libraries::library;
use anyhow::{Context, Result, ensure};
use met_tests::{
    fixture,
    operator::{Operated, builtin, with},
    stream::Stream,
};
use serde_json::{Value, json};
use std::{
    os::unix::fs::symlink,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

const CLIENTS: usize = 3;

/// A slot that the CPU backend serves, and the same model on the card.
fn slots() -> [Value; 2] {
    let cpu = with(
        &builtin(&fixture("tiny-q4_1.gguf")),
        json!({"kv_memory": "1M", "threads": 1}),
    );
    let cuda = with(&cpu, json!({"backend": library("libmet_cuda.so")}));
    [cpu, cuda]
}

#[test]
fn clients_stream_through_a_swap_to_the_card_and_back() -> Result<()> {
    let folder = tempfile::tempdir()?;
    symlink(library("libmet_cuda_sim.so"), folder.path().join("libcuda.so"))?;
    let driver = folder.path().to_str().context("a path in UTF-8")?;
    let [cpu, cuda] = slots();
    let operated = Operated::start_in(&[("LD_LIBRARY_PATH", driver)], "", &[("chat", &cpu)])?;
    for in_flight in ["finish", "carry"] {
        let how = json!({"in_flight": in_flight, "plan": "side_by_side"});
        let (heard, reports) = under_load(&operated, || {
            let there = operated.swap("chat", &with(&cuda, how.clone()))?;
            ensure!(!operated.answer("chat")?.is_empty());
            let held = owned(&operated)?;
            let back = operated.swap("chat", &with(&cpu, how.clone()))?;
            // What a step takes for itself may be on the ledger besides.
            let came_back = released(&back);
            ensure!(
                came_back > 0 && came_back <= held,
                "{held} bytes were held: {back}"
            );
            Ok([there, back])
        })?;
        ensure!(heard >= 2 * CLIENTS, "{heard} answers");
        for report in &reports {
            ensure!(
                report["outcome"] == "swapped" && report["error"].is_null(),
                "{report}"
            );
            ensure!(report["cancelled"] == 0, "{report}");
            ensure!(
                report["released"]["swept"]["count"] == 0 && report["released"]["left"] == json!([]),
                "{report}"
            );
        }
        let [there, back] = reports;
        ensure!(
            there["to"]["device"]
                .as_str()
                .is_some_and(|name| name != there["from"]["device"]),
            "{there}"
        );
        ensure!(there["library"]["state"] == "built_in", "{there}");
        ensure!(back["library"]["state"] == "unmapped", "{back}");
        // On the simulated card an answer takes long, so that some are always under way.
        ensure!((back["carried"] != 0) == (in_flight == "carry"), "{back}");
    }
    Ok(())
}

/// Clients that stream one answer after another until `act` is done. Returns how many answers they had, all whole.
fn under_load<T>(operated: &Operated, act: impl FnOnce() -> Result<T>) -> Result<(usize, T)> {
    let is_done = AtomicBool::new(false);
    let body = json!({
        "model": "chat", "prompt": "Once upon a time", "max_tokens": 48, "temperature": 0, "ignore_eos": true,
    });
    let client = || -> Result<usize> {
        let mut heard = 0;
        while !is_done.load(Ordering::Relaxed) {
            let all = Stream::start(&operated.server, &body)?.rest()?;
            ensure!(all.is_whole() && all.choices.len() == 1, "{all:?}");
            ensure!(all.choices[0].finish.as_deref() == Some("length"), "{all:?}");
            heard += 1;
        }
        Ok(heard)
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        let acted = act();
        is_done.store(true, Ordering::Relaxed);
        let mut heard = 0;
        for client in clients {
            heard += client.join().map_err(|_| anyhow::anyhow!("it panicked"))??;
        }
        Ok((heard, acted?))
    })
}

/// Bytes of the slot's device memory that its ledger holds.
fn owned(operated: &Operated) -> Result<u64> {
    let ledger = operated.send("GET", "/slots/chat/ledger", &Value::Null)?;
    let entries = ledger.json["entries"].as_array().context("no entries")?;
    let memory = entries.iter().filter(|entry| entry["kind"] == "memory");
    Ok(memory.filter_map(|entry| entry["bytes"].as_u64()).sum())
}

/// Bytes that a swap's report says came back.
fn released(report: &Value) -> u64 {
    let pools = report["released"]["pools"].as_array().into_iter().flatten();
    pools.filter_map(|pool| pool["bytes"].as_u64()).sum()
}

#[test]
fn without_a_driver_the_slot_keeps_its_incumbent_and_the_operator_is_told_what_is_missing() -> Result<()> {
    let [cpu, cuda] = slots();
    let operated = Operated::start(&[("chat", &cpu)])?;
    let before = operated.answer("chat")?;
    for (plan, outcome) in [("side_by_side", "failed"), ("drain_first", "rolled_back")] {
        let report = operated.swap("chat", &with(&cuda, json!({"plan": plan})))?;
        if report["outcome"] == "swapped" {
            // This machine has a card.
            ensure!(report["to"]["device"] != report["from"]["device"], "{report}");
            return Ok(());
        }
        let error = report["error"].as_str().unwrap_or_default();
        ensure!(report["outcome"] == outcome, "{report}");
        ensure!(error.contains("libcuda.so.1"), "{report}");
        ensure!(error.contains("525") && error.contains("CUDA 12.0"), "{report}");
        ensure!(report["released"]["left"] == json!([]), "{report}");
        ensure!(report["to"]["backend"] == "builtin:cpu", "{report}");
        ensure!(
            operated.answer("chat")? == before,
            "{plan}: the incumbent answers as before"
        );
    }
    Ok(())
}
