//! Requests that come while nothing serves are held, within bounds.

use anyhow::{Context, Result, ensure};
use met_tests::{
    operator::{Operated, eventually, scripted, with},
    stream::{Heard, Stream},
};
use serde_json::{Value, json};
use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
};

/// A model that is never loaded unless it is cancelled, in place of the incumbent.
fn endless(more: Value) -> Result<Value> {
    let slow = with(
        &scripted("set salt 2\nset load_ms 3600000")?,
        json!({"plan": "drain_first"}),
    );
    Ok(with(&slow, more))
}

/// Waits until so many requests wait at the slot.
fn held(operated: &Operated, count: u64) -> Result<()> {
    eventually(&format!("{count} requests are held"), || {
        Ok(operated.slot("chat")?["held"] == count)
    })
}

fn body(prompt: &str) -> Value {
    json!({"model": "chat", "prompt": prompt, "max_tokens": 16, "temperature": 0})
}

/// The status, the `Retry-After` and the error of a request that is refused.
fn refused(operated: &Operated) -> Result<(u16, Option<u64>, Value)> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .build()
        .into();
    let mut answer = agent
        .post(format!("{}/v1/completions", operated.server.url()))
        .send_json(body("a"))?;
    let after = answer.headers().get("retry-after");
    let after = after.and_then(|after| after.to_str().ok()?.parse().ok());
    let json: Value = answer.body_mut().read_json()?;
    Ok((answer.status().as_u16(), after, json["error"].clone()))
}

#[test]
fn requests_sent_while_nothing_serves_are_answered_by_what_comes() -> Result<()> {
    let other = scripted("set salt 2")?;
    let operated = Operated::start(&[("chat", &scripted("")?), ("other", &other)])?;
    let prompts = ["one", "two", "three"];
    let expected: Vec<Heard> = prompts
        .map(|prompt| Heard::whole(&operated.server, &with(&body(prompt), json!({"model": "other"}))))
        .into_iter()
        .collect::<Result<_>>()?;
    let slow = with(
        &scripted("set salt 2\nset load_ms 5000")?,
        json!({"plan": "drain_first"}),
    );
    let mut events = operated.events()?;
    let id = operated.begin_swap("chat", &slow)?;
    events.wait_for("step_begun", Some("load"))?;
    let heard = thread::scope(|scope| -> Result<Vec<Heard>> {
        let asked: Vec<_> = prompts
            .iter()
            .map(|prompt| scope.spawn(|| Heard::whole(&operated.server, &body(prompt))))
            .collect();
        let streamed = scope.spawn(|| Stream::start(&operated.server, &body("one"))?.rest());
        held(&operated, 4)?;
        ensure!(
            operated.models()? == ["chat", "other"],
            "the model is still served"
        );
        let health = ureq::get(format!("{}/health", operated.server.url())).call()?;
        ensure!(health.status() == 200, "requests are taken");
        let streamed = streamed.join().map_err(|_| anyhow::anyhow!("it panicked"))??;
        ensure!(
            streamed.is_whole() && streamed.choices == expected[0].choices,
            "{streamed:?}"
        );
        asked
            .into_iter()
            .map(|asked| asked.join().map_err(|_| anyhow::anyhow!("it panicked"))?)
            .collect()
    })?;
    ensure!(heard == expected, "{heard:?} {expected:?}");
    let report = operated.report(id)?;
    ensure!(
        report["outcome"] == "swapped" && report["held_requests"] == 4,
        "{report}"
    );
    Ok(())
}

#[test]
fn more_than_may_wait_are_told_when_to_come_again() -> Result<()> {
    let operated = Operated::start(&[("chat", &scripted("")?)])?;
    let expected = Heard::whole(&operated.server, &body("one"))?;
    let mut events = operated.events()?;
    let id = operated.begin_swap("chat", &endless(json!({"max_held": 2}))?)?;
    events.wait_for("step_begun", Some("load"))?;
    thread::scope(|scope| -> Result<()> {
        let waiting = [0, 1].map(|_| scope.spawn(|| Heard::whole(&operated.server, &body("one"))));
        let result = held(&operated, 2).and_then(|()| {
            let (status, after, error) = refused(&operated)?;
            ensure!(status == 503 && after > Some(0), "{status} {after:?} {error}");
            ensure!(
                error["code"] == "too_many_held"
                    && error["type"] == "server_error"
                    && error["message"].is_string(),
                "{error}"
            );
            ensure!(error.get("param").is_some(), "OpenAI's shape: {error}");
            Ok(())
        });
        operated.send("POST", &format!("/swaps/{id}/cancel"), &Value::Null)?;
        for waiting in waiting {
            let heard = waiting.join().map_err(|_| anyhow::anyhow!("it panicked"))??;
            ensure!(
                heard == expected,
                "those that wait are answered by the incumbent: {heard:?}"
            );
        }
        result
    })?;
    let report = operated.report(id)?;
    ensure!(
        report["outcome"] == "cancelled" && report["held_requests"] == 2,
        "{report}"
    );
    Ok(())
}

#[test]
fn one_that_leaves_while_it_waits_waits_no_longer() -> Result<()> {
    let operated = Operated::start(&[("chat", &scripted("")?)])?;
    let mut events = operated.events()?;
    let id = operated.begin_swap("chat", &endless(json!({}))?)?;
    events.wait_for("step_begun", Some("load"))?;
    let body = body("one").to_string();
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let mut client = TcpStream::connect(operated.server.address())?;
        write!(
            client,
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )?;
        waiting.push(client);
    }
    held(&operated, 3)?;
    waiting.truncate(1);
    held(&operated, 1)?;
    operated.send("POST", &format!("/swaps/{id}/cancel"), &Value::Null)?;
    let report = operated.report(id)?;
    ensure!(report["held_requests"] == 3, "as many have waited: {report}");
    let mut answer = [0; 12];
    waiting[0].read_exact(&mut answer)?;
    ensure!(&answer == b"HTTP/1.1 200", "the one that stayed is answered");
    Ok(())
}

#[test]
fn nobody_waits_longer_than_the_deadline() -> Result<()> {
    let operated = Operated::start(&[("chat", &scripted("")?)])?;
    let mut events = operated.events()?;
    let id = operated.begin_swap("chat", &endless(json!({"hold_deadline_s": 0.2}))?)?;
    events.wait_for("step_begun", Some("load"))?;
    let (status, after, error) = refused(&operated)?;
    ensure!(
        status == 503 && after > Some(0) && error["code"] == "model_not_ready",
        "{status} {after:?} {error}"
    );
    operated.send("POST", &format!("/swaps/{id}/cancel"), &Value::Null)?;
    ensure!(operated.report(id)?["outcome"] == "cancelled");
    operated.answer("chat").context("it serves again")?;
    Ok(())
}

#[test]
fn where_nothing_can_be_loaded_any_more_those_that_wait_are_sent_away() -> Result<()> {
    // The incumbent's file is gone, so it can't come back.
    let folder = tempfile::tempdir()?;
    let model = folder.path().join("model.gguf");
    std::fs::copy(met_tests::fixture("tiny-q4_1.gguf"), &model)?;
    let operated = Operated::start(&[("chat", &with(&scripted("")?, json!({"model": model})))])?;
    std::fs::remove_file(&model)?;
    let kept = met_tests::fixture("tiny-q4_1.gguf");
    let mut events = operated.events()?;
    let id = operated.begin_swap("chat", &endless(json!({"model": kept}))?)?;
    events.wait_for("step_begun", Some("load"))?;
    thread::scope(|scope| -> Result<()> {
        let waiting = scope.spawn(|| refused(&operated));
        let result = held(&operated, 1);
        operated.send("POST", &format!("/swaps/{id}/cancel"), &Value::Null)?;
        let (status, after, error) = waiting.join().map_err(|_| anyhow::anyhow!("it panicked"))??;
        ensure!(status == 503 && after > Some(0), "{status} {after:?} {error}");
        result
    })?;
    let report = operated.report(id)?;
    ensure!(report["outcome"] == "down" && report["to"].is_null(), "{report}");
    // Down is not for ever.
    let report = operated.swap("chat", &scripted("")?)?;
    ensure!(report["outcome"] == "loaded", "{report}");
    operated.answer("chat")?;
    Ok(())
}
