//! A model with recurrent state that checks each row's, through the real boundary: what is parked, restored, begun again
//! after a failure, and counted at the end.

use anyhow::{Context, Result, ensure};
use met_tests::operator::{Operated, eventually, scripted, with};
use serde_json::{Value, json};
use std::thread;

const CLIENTS: usize = 8;
const RECURRENT: &str = "set state_slots 16\nset snapshots 8\nset step_us 2000\n";

fn ask(operated: &Operated, slot: &str, prompt: &str) -> Result<Value> {
    let body = json!({"model": slot, "prompt": prompt, "max_tokens": 60, "ignore_eos": true});
    let post = ureq::post(format!("{}/v1/completions", operated.server.url()));
    let mut answer = post
        .config()
        .http_status_as_error(false)
        .build()
        .send_json(body)?;
    let status = answer.status();
    let answer: Value = answer.body_mut().read_json()?;
    ensure!(status == 200, "{status}: {answer}");
    Ok(answer)
}

fn answers(operated: &Operated, slot: &str) -> Result<Vec<String>> {
    thread::scope(|scope| {
        let ask = |client: usize| {
            let answer = ask(
                operated,
                slot,
                &format!("{client}: once upon a time, far away from here"),
            )?;
            let text = answer["choices"][0]["text"].as_str().context("a text")?;
            anyhow::Ok(text.to_owned())
        };
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| scope.spawn(move || ask(client)))
            .collect();
        let answers = clients.into_iter().map(|client| client.join().expect("no panic"));
        answers.collect()
    })
}

#[test]
fn answers_are_the_same_under_pressure_and_whatever_fails() -> Result<()> {
    let small = format!("{RECURRENT}set blocks 24\nset in_flight 2\n");
    let failing = [
        "at collect 20 fail exhausted no arena",
        "at collect 40 fail exhausted no arena",
        "at submit 70 fail exhausted no arena",
        "at save_state 2 fail exhausted no arena",
        "at restore_state 1 fail exhausted no arena",
        "at take_snapshot 3 fail exhausted no arena",
        "at use_snapshot 1 fail exhausted no arena",
        "at free_state 4 fail exhausted no arena",
    ];
    let failing = format!("{small}{}", failing.join("\n"));
    let operated = Operated::start(&[
        ("roomy", &scripted(RECURRENT)?),
        ("small", &scripted(&small)?),
        ("failing", &scripted(&failing)?),
        ("stateless", &scripted("set salt 1")?),
    ])?;
    let expected = answers(&operated, "roomy")?;
    ensure!(
        answers(&operated, "stateless")? == expected,
        "the state is no part of the answer"
    );
    for slot in ["small", "failing"] {
        let got = answers(&operated, slot)?;
        ensure!(got == expected, "{slot}: {got:#?}\n{expected:#?}");
        eventually("its slots are free", || {
            Ok(operated.slot(slot)?["counts"]["state_slots_used"] == 0)
        })?;
        let counts = operated.slot(slot)?["counts"].clone();
        ensure!(counts["swaps"].as_u64() > Some(0), "{slot}: {counts}");
        ensure!(
            (counts["restarts"].as_u64() > Some(0)) == (slot == "failing"),
            "{slot}: {counts}"
        );
    }
    Ok(())
}

#[test]
fn a_handle_that_is_alive_at_the_end_is_counted_and_nothing_is_freed_under_it() -> Result<()> {
    let never_freed: String = (1..100)
        .map(|call| format!("at free_state {call} fail exhausted no arena\n"))
        .collect();
    // One slot, which each sequence takes over from the one before it.
    let one = "set state_slots 1\nset snapshots 1\n";
    let slot = scripted(&format!("{one}{never_freed}"))?;
    let operated = Operated::start(&[("chat", &slot)])?;
    ask(&operated, "chat", "alone")?;
    let report = operated.swap(
        "chat",
        &with(&scripted(RECURRENT)?, json!({"plan": "drain_first"})),
    )?;
    let pools = report["released"]["pools"].as_array().context("pools")?;
    let pool = pools.iter().find(|pool| pool["label"] == "state pool");
    let pool = pool.with_context(|| format!("no state pool in {report}"))?;
    ensure!(
        pool["bytes"] == 0
            && pool["error"]
                .as_str()
                .is_some_and(|why| why.starts_with("1 slots are still held")),
        "{report}"
    );
    let swept = &report["released"]["swept"];
    ensure!(swept["count"] == 1 && swept["bytes"] == 8, "{report}");
    ensure!(
        report["memory"]["after"]["device"]["ledger_bytes"].is_u64(),
        "{report}"
    );
    Ok(())
}
