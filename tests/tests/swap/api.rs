//! The operators' routes and their statuses.

use anyhow::{Context, Result, ensure};
use met_tests::{
    operator::{Operated, builtin, eventually, scripted, with},
    stream::Stream,
};
use serde_json::{Value, json};
use std::net::TcpListener;

const NONE: Value = Value::Null;

#[test]
fn what_is_not_there_or_makes_no_sense_is_refused_in_words() -> Result<()> {
    let chat = scripted("")?;
    let operated = Operated::start(&[("chat", &chat)])?;
    let swap = "/slots/chat/swap";
    let long = format!("/slots/{}", "a".repeat(129));
    let cases: &[(&str, &str, Value, u16, &str)] = &[
        ("GET", "/nothing", NONE, 404, "GET /slots"),
        ("POST", "/unload", NONE, 404, "GET /slots"),
        ("GET", "/v1/models", NONE, 404, "GET /slots"),
        ("POST", "/slots/chat/unload", NONE, 404, "GET /slots"),
        ("POST", "/slots", NONE, 405, "method"),
        ("GET", "/slots/chat", NONE, 405, "method"),
        ("GET", "/slots/other/ledger", NONE, 404, "GET /slots"),
        ("POST", "/slots/other/swap", NONE, 404, "other"),
        ("DELETE", "/slots/other", NONE, 404, "other"),
        ("POST", "/slots/chat", chat.clone(), 422, "chat"),
        // Names that no log, no address and no thread can have.
        ("POST", "/slots/%00", chat.clone(), 400, "a slot's name"),
        ("POST", "/slots/a%0Ab", chat.clone(), 400, "a slot's name"),
        ("POST", "/slots/a%2Fb", chat.clone(), 400, "a slot's name"),
        ("POST", &long, chat.clone(), 400, "a slot's name"),
        ("POST", "/slots/%FF", chat.clone(), 400, "UTF-8"),
        ("DELETE", "/slots/%FF", NONE, 400, "UTF-8"),
        ("GET", "/slots/%FF/ledger", NONE, 400, "UTF-8"),
        // A byte too many: all of it is read.
        ("POST", swap, json!(" ".repeat((2 << 20) + 1)), 413, "limit"),
        (
            "POST",
            swap,
            json!({"load_deadline_s": 1e6 as u64}),
            400,
            "load_deadline_s",
        ),
        ("POST", swap, json!({"backend": ""}), 400, "backend is empty"),
        ("POST", swap, json!({"modle": "a.gguf"}), 400, "modle"),
        ("POST", swap, json!({"plan": "both"}), 400, "plan"),
        ("POST", swap, json!({"in_flight": "drop"}), 400, "in_flight"),
        (
            "POST",
            swap,
            json!({"drain_deadline_s": -1}),
            400,
            "drain_deadline_s",
        ),
        (
            "POST",
            swap,
            json!({"hold_deadline_s": 1e9}),
            400,
            "hold_deadline_s",
        ),
        ("POST", swap, json!({"max_held": -1}), 400, "max_held"),
        ("POST", swap, json!({"max_seqs": 0}), 400, "max_seqs"),
        ("POST", swap, json!({"threads": "two"}), 400, "threads"),
        ("POST", swap, json!({"kv_memory": "much"}), 400, "kv_memory"),
        ("POST", swap, json!({"verify": 3}), 400, "verify"),
        ("POST", swap, json!({"options": {"a": 1}}), 400, "options"),
        ("POST", swap, json!({"model": ""}), 400, "model"),
        (
            "POST",
            swap,
            json!({"backend": "builtin:tpu"}),
            400,
            "builtin:cpu",
        ),
        ("POST", swap, json!([]), 400, ""),
        ("POST", swap, json!("{\"model\": "), 400, "EOF"),
        ("POST", "/slots/chat/swap?wait=perhaps", NONE, 400, "wait"),
        ("POST", "/slots/chat/swap?wiat=false", NONE, 400, "wiat"),
        ("DELETE", "/slots/chat?in_flight=drop", NONE, 400, "in_flight"),
        (
            "DELETE",
            "/slots/chat?drain_deadline_s=-1",
            NONE,
            400,
            "drain_deadline_s",
        ),
        ("GET", "/swaps/99", NONE, 404, "GET /slots"),
        ("GET", "/swaps/first", NONE, 400, "first"),
        ("POST", "/swaps/99/cancel", NONE, 404, "99"),
        ("POST", "/swaps/first/cancel", NONE, 400, "first"),
    ];
    for (method, route, body, status, says) in cases {
        let reply = operated.send(method, route, body)?;
        let message = reply.json["error"]["message"].as_str().unwrap_or_default();
        ensure!(
            reply.status == *status && message.contains(says) && reply.json["error"]["type"].is_string(),
            "{method} {route} {body}: {reply:?}"
        );
    }
    let slot = operated.slot("chat")?;
    ensure!(
        slot["generation"] == 1 && slot["swap"].is_null(),
        "nothing was begun, but {slot}"
    );
    let slots = operated.send("GET", "/slots", &NONE)?.json["slots"].clone();
    ensure!(slots.as_array().is_some_and(|slots| slots.len() == 1), "{slots}");
    Ok(())
}

#[test]
fn a_busy_slot_takes_no_second_order_and_a_cancelled_load_leaves_the_incumbent_serving() -> Result<()> {
    let chat = scripted("")?;
    let operated = Operated::start(&[("chat", &chat)])?;
    let before = operated.answer("chat")?;
    let mut events = operated.events()?;
    // Longer than any test waits: what ends it is the cancel.
    let id = operated.begin_swap("chat", &scripted("set salt 2\nset load_ms 3600000")?)?;
    events.wait_for("step_begun", Some("load"))?;

    let first = format!("swap {id}");
    for (method, route) in [("POST", "/slots/chat/swap"), ("DELETE", "/slots/chat")] {
        let reply = operated.send(method, route, &NONE)?;
        let message = reply.json["error"]["message"].as_str().unwrap_or_default();
        ensure!(reply.status == 409 && message.contains(&first), "{reply:?}");
    }
    ensure!(operated.slot("chat")?["swap"] == id);
    let running = operated.send("GET", &format!("/swaps/{id}"), &NONE)?;
    ensure!(running.status == 404, "it has not ended: {running:?}");
    ensure!(operated.answer("chat")? == before);
    let other = operated.send("POST", "/slots/other", &chat)?;
    ensure!(
        other.status == 200 && other.json["outcome"] == "loaded",
        "another slot is free: {other:?}"
    );

    let cancel = format!("/swaps/{id}/cancel");
    let cancelled = operated.send("POST", &cancel, &NONE)?;
    ensure!(
        cancelled.status == 200 && cancelled.json["id"] == id,
        "{cancelled:?}"
    );
    let report = operated.report(id)?;
    ensure!(
        report["outcome"] == "cancelled" && report["library"]["state"] == "unmapped",
        "{report}"
    );
    ensure!(
        report["to"] == report["from"] && report["to"]["generation"] == 1,
        "{report}"
    );
    ensure!(operated.answer("chat")? == before);
    ensure!(operated.slot("chat")?["swap"].is_null());
    ensure!(
        operated.send("POST", &cancel, &NONE)?.status == 404,
        "it has ended"
    );

    // What came to nothing is no obstacle.
    let report = operated.swap("chat", &scripted("set salt 2")?)?;
    ensure!(report["outcome"] == "swapped", "{report}");
    ensure!(operated.answer("chat")? != before);
    Ok(())
}

#[test]
fn a_cancelled_load_brings_the_incumbent_back_where_it_was_drained_first() -> Result<()> {
    let operated = Operated::start(&[("chat", &scripted("")?)])?;
    let before = operated.answer("chat")?;
    let mut events = operated.events()?;
    let other = with(
        &scripted("set salt 2\nset load_ms 3600000")?,
        json!({"plan": "drain_first"}),
    );
    let id = operated.begin_swap("chat", &other)?;
    events.wait_for("step_begun", Some("load"))?;
    operated.send("POST", &format!("/swaps/{id}/cancel"), &NONE)?;
    // Held, and answered by what comes back.
    ensure!(operated.answer("chat")? == before);
    let report = operated.report(id)?;
    ensure!(report["outcome"] == "cancelled", "{report}");
    ensure!(report["from"]["generation"] == 1, "{report}");
    ensure!(report["to"]["path"] == report["from"]["path"], "{report}");
    Ok(())
}

#[test]
fn a_cancelled_drain_lets_the_incumbent_go_on() -> Result<()> {
    let operated = Operated::start(&[("chat", &scripted("set step_us 2000")?)])?;
    let body = json!({"model": "chat", "prompt": "Once", "max_tokens": 1000, "temperature": 0});
    let undisturbed = Stream::start(&operated.server, &body)?.rest()?;
    let mut events = operated.events()?;
    let mut stream = Stream::start(&operated.server, &body)?;
    let id = operated.begin_swap(
        "chat",
        &with(&scripted("set salt 2")?, json!({"plan": "drain_first"})),
    )?;
    events.wait_for("step_begun", Some("drain"))?;
    operated.send("POST", &format!("/swaps/{id}/cancel"), &NONE)?;
    let report = operated.report(id)?;
    let steps: Vec<_> = report["steps"].as_array().into_iter().flatten().collect();
    ensure!(
        report["outcome"] == "cancelled" && report["to"] == report["from"],
        "{report}"
    );
    ensure!(
        steps.len() == 2 && steps[0]["error"] == "cancelled" && steps[1]["step"] == "switch",
        "nothing was torn down: {report}"
    );
    ensure!(
        report["cancelled"] == 0 && report["library"].is_null(),
        "{report}"
    );
    // It takes requests beside those that it kept.
    operated.answer("chat")?;
    ensure!(stream.hear()?, "the stream was not waited for");
    ensure!(stream.rest()? == undisturbed, "the stream never noticed");
    ensure!(operated.swap("chat", &scripted("set salt 2")?)?["outcome"] == "swapped");
    Ok(())
}

#[test]
fn a_fetch_is_given_up_at_once_and_keeps_no_other_slot_from_serving() -> Result<()> {
    // A hub that answers nothing.
    let hub = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("http://{}", hub.local_addr()?);
    let cache = tempfile::tempdir()?;
    let env = [
        ("HF_ENDPOINT", address.as_str()),
        ("MET_CACHE", cache.path().to_str().context("a path in UTF-8")?),
    ];
    let operated = Operated::start_in(&env, "", &[("chat", &scripted("")?)])?;
    let begun = operated.send(
        "POST",
        "/slots/more?wait=false",
        &json!({"model": "hf:org/repo:model.gguf"}),
    )?;
    let id = begun.json["id"].as_u64().with_context(|| format!("{begun:?}"))?;
    let _asked = hub.accept()?;
    let health = ureq::get(format!("{}/health", operated.server.url())).call()?;
    ensure!(
        health.status() == 200,
        "requests are taken, and held where they must be"
    );
    let cancelled = operated.send("POST", &format!("/swaps/{id}/cancel"), &NONE)?;
    ensure!(cancelled.status == 200, "{cancelled:?}");
    let report = operated.report(id)?;
    ensure!(
        report["outcome"] == "cancelled" && report["error"] == "cancelled",
        "{report}"
    );
    ensure!(operated.models()? == ["chat"]);
    Ok(())
}

#[test]
fn after_the_switch_it_is_too_late_to_cancel() -> Result<()> {
    let operated = Operated::start(&[("chat", &scripted("set step_us 2000")?)])?;
    let body = json!({"model": "chat", "prompt": "Once", "max_tokens": 1500, "temperature": 0});
    let undisturbed = Stream::start(&operated.server, &body)?.rest()?;
    let mut events = operated.events()?;
    let stream = Stream::start(&operated.server, &body)?;
    let id = operated.begin_swap("chat", &with(&scripted("")?, json!({"plan": "side_by_side"})))?;
    events.wait_for("step_begun", Some("drain"))?;
    let reply = operated.send("POST", &format!("/swaps/{id}/cancel"), &NONE)?;
    ensure!(
        reply.status == 409 && reply.json["error"]["code"] == "too_late",
        "{reply:?}"
    );
    ensure!(stream.rest()? == undisturbed, "the stream finishes");
    ensure!(operated.report(id)?["outcome"] == "swapped");
    Ok(())
}

#[test]
fn slots_come_and_go_and_models_lists_those_that_serve() -> Result<()> {
    let tiny = |name: &str| builtin(&met_tests::fixture(name));
    let operated = Operated::start(&[("a", &tiny("tiny-q4_1.gguf")), ("b", &scripted("")?)])?;
    ensure!(operated.models()? == ["a", "b"]);
    let loaded = operated.send("POST", "/slots/c", &tiny("tiny-q8_0.gguf"))?;
    ensure!(
        loaded.status == 200 && loaded.json["outcome"] == "loaded" && loaded.json["from"].is_null(),
        "{loaded:?}"
    );
    ensure!(operated.models()? == ["a", "b", "c"]);
    let answers = ["a", "b", "c"].map(|slot| operated.answer(slot));
    let [Ok(a), Ok(b), Ok(c)] = answers else {
        anyhow::bail!("{answers:?}")
    };
    ensure!(
        a != b && b != c && a != c,
        "each has its own model: {a:?} {b:?} {c:?}"
    );

    let gone = operated.send("DELETE", "/slots/b", &NONE)?;
    ensure!(
        gone.json["outcome"] == "unloaded" && gone.json["to"].is_null(),
        "{gone:?}"
    );
    ensure!(gone.json["library"]["state"] == "unmapped", "{gone:?}");
    ensure!(operated.models()? == ["a", "c"]);
    let missing = ureq::post(format!("{}/v1/completions", operated.server.url()))
        .send_json(json!({"model": "b", "prompt": "a"}));
    ensure!(
        matches!(missing, Err(ureq::Error::StatusCode(404))),
        "{missing:?}"
    );
    ensure!(operated.answer("a")? == a && operated.answer("c")? == c);

    // A first load that fails leaves no slot, and the name is free.
    let failed = operated.send(
        "POST",
        "/slots/b",
        &scripted("at load_model 1 fail fault no such luck")?,
    )?;
    let error = failed.json["error"].as_str().unwrap_or_default();
    ensure!(
        failed.status == 200 && failed.json["outcome"] == "failed" && error.contains("no such luck"),
        "{failed:?}"
    );
    ensure!(operated.models()? == ["a", "c"]);
    ensure!(operated.send("POST", "/slots/b", &scripted("")?)?.json["outcome"] == "loaded");
    ensure!(operated.answer("b")? == b);
    Ok(())
}

#[test]
fn an_order_that_nobody_waits_for_is_carried_out_all_the_same() -> Result<()> {
    let operated = Operated::start(&[("chat", &scripted("")?)])?;
    let before = operated.answer("chat")?;
    let id = operated.begin_swap("chat", &scripted("set salt 2")?)?;
    let report = operated.report(id)?;
    ensure!(report["outcome"] == "swapped" && report["id"] == id, "{report}");
    ensure!(operated.answer("chat")? != before);

    let reply = operated.send("DELETE", "/slots/chat?wait=false&in_flight=cancel", &NONE)?;
    ensure!(reply.status == 202, "{reply:?}");
    eventually("the slot is gone", || {
        Ok(operated.send("GET", "/slots", &NONE)?.json["slots"] == json!([]))
    })
}
