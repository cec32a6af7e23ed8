//! Models with recurrent state behind the real server: their tokens are those that transformers takes, whatever befalls
//! them on the way, and what they held comes back.

use anyhow::{Context, Result, ensure};
use met_tests::{
    hybrid::{HYBRIDS, Hybrid, at_once, complete, kv_of},
    operator::{Operated, eventually, library, with},
    stream::{Heard, Stream},
};
use serde_json::{Value, json};
use std::thread;

#[test]
fn a_second_turn_goes_on_from_a_snapshot_with_the_tokens_of_transformers() -> Result<()> {
    for name in HYBRIDS {
        let hybrid = Hybrid::new(name)?;
        let operated = Operated::start(&[("chat", &hybrid.slot())])?;
        let Hybrid { prompt, greedy, .. } = &hybrid;
        let first = complete(&operated, prompt, greedy.len(), json!({}))?;
        ensure!(first == (hybrid.text(0)?, 0), "{name}: {first:?}");
        let turn = [&prompt[..], &greedy[..50]].concat();
        let second = complete(&operated, &turn, greedy.len() - 50, json!({}))?;
        ensure!(
            second.0 == hybrid.text(50)? && second.1 >= 32,
            "{name}: {second:?}"
        );
    }
    Ok(())
}

#[test]
fn a_stream_is_carried_from_the_built_in_backend_to_the_library() -> Result<()> {
    for name in HYBRIDS {
        let hybrid = Hybrid::new(name)?;
        let operated = Operated::start(&[("chat", &hybrid.slot())])?;
        let library = with(
            &hybrid.slot(),
            json!({"backend": library(hybrid.path())?["backend"]}),
        );
        let body = json!({
            "model": "chat", "prompt": hybrid.prompt, "max_tokens": 400, "ignore_eos": true, "temperature": 0.8, "seed": 3,
        });
        let undisturbed = Stream::start(&operated.server, &body)?.rest()?;
        for (plan, from, to) in [
            ("side_by_side", &hybrid.slot(), &library),
            ("drain_first", &library, &hybrid.slot()),
        ] {
            let to = with(to, json!({"plan": plan, "in_flight": "carry"}));
            let mut carried = 0;
            for _ in 0..TRIES {
                operated.swap("chat", from)?;
                let (heard, report) = across(&operated, &body, &to)?;
                for heard in heard {
                    ensure!(heard == undisturbed, "{name}, {plan}: {report}");
                }
                ensure!(
                    report["outcome"] == "swapped" && report["cancelled"] == 0,
                    "{report}"
                );
                carried = report["carried"].as_u64().context("a number")?;
                if carried == STREAMS {
                    break;
                }
            }
            ensure!(
                carried == STREAMS,
                "{name}, {plan}: {TRIES} times the streams ended before the switch"
            );
        }
    }
    Ok(())
}

/// On a busy machine streams may be over before the switch; then it is tried again.
const TRIES: usize = 20;

const STREAMS: u64 = 6;

/// What streams hear that a swap finds running, and its report.
fn across(operated: &Operated, body: &Value, to: &Value) -> Result<(Vec<Heard>, Value)> {
    let streams: Vec<_> = (0..STREAMS)
        .map(|_| Stream::start(&operated.server, body))
        .collect::<Result<_>>()?;
    thread::scope(|scope| {
        let readers: Vec<_> = streams
            .into_iter()
            .map(|stream| scope.spawn(|| stream.rest()))
            .collect();
        let report = operated.swap("chat", to)?;
        let heard = readers
            .into_iter()
            .map(|reader| reader.join().map_err(|_| anyhow::anyhow!("it panicked"))?)
            .collect::<Result<_>>()?;
        Ok((heard, report))
    })
}

#[test]
fn under_pressure_each_request_has_the_tokens_that_it_has_with_room() -> Result<()> {
    for name in HYBRIDS {
        let hybrid = Hybrid::new(name)?;
        let operated = Operated::start(&[("chat", &hybrid.slot())])?;
        let expected = at_once(&operated, 6, 150)?;
        ensure!(operated.slot("chat")?["counts"]["preemptions"] == 0);
        let tight = with(&hybrid.slot(), kv_of(&operated, 14)?);
        for parking in [json!({}), json!({"park_memory": 0, "park_disk": 0})] {
            operated.swap("chat", &with(&tight, parking.clone()))?;
            let got = at_once(&operated, 6, 150)?;
            ensure!(got == expected, "{name}, {parking}: {got:?}, not {expected:?}");
            let counts = &operated.slot("chat")?["counts"];
            ensure!(counts["preemptions"].as_u64() > Some(0), "{name}: {counts}");
        }
    }
    Ok(())
}

#[test]
fn a_teardown_under_load_gives_every_pool_back_in_order() -> Result<()> {
    for name in HYBRIDS {
        let hybrid = Hybrid::new(name)?;
        let operated = Operated::start(&[("chat", &hybrid.slot())])?;
        let ledger = operated
            .send("GET", "/slots/chat/ledger", &Value::Null)?
            .json
            .to_string();
        ensure!(
            ledger.contains("ssm state pool") && ledger.contains("ssm snapshots"),
            "{ledger}"
        );
        let body = json!({
            "model": "chat", "prompt": hybrid.prompt, "max_tokens": 400, "ignore_eos": true, "session_id": "held",
        });
        let order = with(
            &hybrid.slot(),
            json!({"plan": "drain_first", "in_flight": "cancel"}),
        );
        let (mut heard, mut report) = (Vec::new(), Value::Null);
        for _ in 0..TRIES {
            (heard, report) = across(&operated, &body, &order)?;
            if report["cancelled"] == STREAMS {
                break;
            }
        }
        let pools = report["released"]["pools"].as_array().context("pools")?;
        let labels: Vec<&str> = pools.iter().filter_map(|pool| pool["label"].as_str()).collect();
        ensure!(
            labels
                == [
                    "derived weights",
                    "ssm snapshots",
                    "ssm state pool",
                    "kv cache",
                    "buffer arena",
                    "weight store"
                ],
            "{report}"
        );
        for pool in &pools[1..] {
            ensure!(
                pool["bytes"].as_u64() > Some(0) && pool["error"] == Value::Null,
                "{report}"
            );
        }
        ensure!(
            report["outcome"] == "swapped"
                && report["cancelled"] == STREAMS
                && report["released"]["swept"]["count"] == 0,
            "{report}"
        );
        ensure!(
            report["memory"]["after"]["device"]["ledger_bytes"] == 0,
            "{report}"
        );
        ensure!(
            heard.iter().all(|heard| heard.error.is_some() && heard.done),
            "{heard:?}"
        );
    }
    Ok(())
}

#[test]
fn a_session_outlives_what_others_compute_until_it_expires() -> Result<()> {
    let hybrid = Hybrid::new("granitemoehybrid")?;
    // Room for some conversations and for few snapshots.
    let small = json!({"kv_memory": "96K", "snapshots": 4, "max_seqs": 2});
    let operated = Operated::start(&[("chat", &with(&hybrid.slot(), small.clone()))])?;
    let Hybrid { prompt, greedy, .. } = &hybrid;
    let turn = [&prompt[..], &greedy[..50]].concat();
    let others = || -> Result<()> {
        for other in 10..20 {
            complete(&operated, &[other; 40], 100, json!({}))?;
        }
        Ok(())
    };
    let first = complete(&operated, prompt, greedy.len(), json!({"session_id": "a"}))?;
    ensure!(first.0 == hybrid.text(0)?, "{first:?}");
    others()?;
    ensure!(operated.slot("chat")?["counts"]["sessions"] == 1);
    let second = complete(&operated, &turn, greedy.len() - 50, json!({"session_id": "a"}))?;
    ensure!(second.0 == hybrid.text(50)? && second.1 >= 32, "{second:?}");

    // Without a session it is forgotten; so is one that has expired, and its places are used again.
    let soon = with(&hybrid.slot(), with(&small, json!({"session_ttl_s": 0.2})));
    operated.swap("chat", &soon)?;
    for session in [json!({}), json!({"session_id": "a"})] {
        complete(&operated, prompt, greedy.len(), session)?;
        eventually("no session is left", || {
            Ok(operated.slot("chat")?["counts"]["sessions"] == 0)
        })?;
        others()?;
        let again = complete(&operated, &turn, greedy.len() - 50, json!({}))?;
        ensure!(again == (hybrid.text(50)?, 0), "{again:?}");
    }
    Ok(())
}
