//! What becomes of requests in flight: they finish, they are carried over, or they are cancelled, and each is told
//! so in due form.

use anyhow::{Context, Result, ensure};
use met_tests::{
    fixture,
    operator::{Operated, builtin, eventually, library, scripted, with},
    stream::{Heard, Stream},
};
use serde_json::{Value, json};
use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
};

const PLANS: [&str; 2] = ["side_by_side", "drain_first"];

/// Requests of every kind. The tiny model generates long texts in little time.
fn bodies() -> Vec<Value> {
    let base = json!({
        "model": "chat", "prompt": "Once upon a time", "max_tokens": 1500, "temperature": 0, "ignore_eos": true,
    });
    let more = [
        json!({}),
        json!({"temperature": 0.9, "seed": 7}),
        json!({"temperature": 1.1, "seed": 8, "n": 2, "top_p": 0.95, "min_p": 0.01}),
        json!({"logprobs": 3}),
        json!({"temperature": 0.8, "seed": 9, "stop": ["never said by anyone", "}{~}"]}),
        json!({"presence_penalty": 0.8, "frequency_penalty": 0.4}),
        json!({"temperature": 1, "seed": 10, "repetition_penalty": 1.1, "logprobs": 0}),
    ];
    more.into_iter().map(|more| with(&base, more)).collect()
}

/// Of all bodies: sequences that run.
const SEQUENCES: u64 = 8;

/// Each body's answer, all asked for at once: streams, and one that is not. `meanwhile` runs when all have begun.
fn ask(operated: &Operated, meanwhile: impl FnOnce() -> Result<()>) -> Result<Vec<Heard>> {
    thread::scope(|scope| {
        let whole = with(&bodies()[0], json!({"seed": 11, "temperature": 0.7}));
        let whole = scope.spawn(move || Heard::whole(&operated.server, &whole));
        let streams: Vec<_> = bodies()
            .iter()
            .map(|body| Stream::start(&operated.server, body))
            .collect::<Result<_>>()?;
        eventually("all run", || {
            Ok(operated.slot("chat")?["counts"]["active"] == SEQUENCES + 1)
        })?;
        let readers: Vec<_> = streams
            .into_iter()
            .map(|stream| scope.spawn(|| stream.rest()))
            .collect();
        meanwhile()?;
        let mut heard = Vec::new();
        for reader in readers {
            heard.push(reader.join().map_err(|_| anyhow::anyhow!("it panicked"))??);
        }
        heard.push(whole.join().map_err(|_| anyhow::anyhow!("it panicked"))??);
        Ok(heard)
    })
}

/// Where two answers part.
fn difference(a: &Heard, b: &Heard) -> String {
    for (index, (a, b)) in a.choices.iter().zip(&b.choices).enumerate() {
        let same = a
            .text
            .bytes()
            .zip(b.text.bytes())
            .take_while(|(a, b)| a == b)
            .count();
        if a != b {
            return format!(
                "choice {index}: the same for {same} of {} and {} bytes; {:?} and {:?}",
                a.text.len(),
                b.text.len(),
                a.finish,
                b.finish
            );
        }
    }
    format!("{:?} {} and {:?} {}", a.error, a.done, b.error, b.done)
}

fn same(heard: &[Heard], expected: &[Heard]) -> Result<()> {
    ensure!(heard.len() == expected.len());
    for (at, (heard, expected)) in heard.iter().zip(expected).enumerate() {
        ensure!(heard == expected, "request {at}: {}", difference(heard, expected));
    }
    Ok(())
}

#[test]
fn what_is_carried_over_says_what_it_would_have_said() -> Result<()> {
    let model = fixture("tiny-q4_1.gguf");
    let backends = [builtin(&model), library(&model)?];
    let operated = Operated::start(&[("chat", &backends[0])])?;
    let undisturbed = ask(&operated, || Ok(()))?;
    ensure!(
        undisturbed
            .iter()
            .all(|heard| heard.choices.iter().all(|c| c.text.len() > 500)),
        "{undisturbed:?}"
    );
    for (at, plan) in PLANS.into_iter().enumerate() {
        let to = with(&backends[1 - at], json!({"plan": plan, "in_flight": "carry"}));
        let mut reports = Vec::new();
        let heard = ask(&operated, || {
            reports.push(operated.swap("chat", &to)?);
            // Once more, with what was just carried.
            reports.push(operated.swap("chat", &to)?);
            Ok(())
        })?;
        same(&heard, &undisturbed).with_context(|| format!("{plan}: {reports:?}"))?;
        ensure!(reports[0]["carried"] == SEQUENCES + 1, "{}", reports[0]);
        ensure!(reports[1]["carried"].as_u64() > Some(0), "{}", reports[1]);
        for report in &reports {
            ensure!(
                report["outcome"] == "swapped"
                    && report["cancelled"] == 0
                    && report["released"]["swept"]["count"] == 0,
                "{report}"
            );
        }
    }
    Ok(())
}

#[test]
fn what_finishes_is_the_old_models_and_what_comes_after_is_the_new_ones() -> Result<()> {
    let (old, new) = (fixture("tiny-q4_1.gguf"), fixture("tiny-q8_0.gguf"));
    for plan in PLANS {
        // Asked to carry, those of another model finish where they are.
        for in_flight in ["finish", "carry"] {
            let operated = Operated::start(&[("chat", &builtin(&old)), ("new", &builtin(&new))])?;
            let undisturbed = ask(&operated, || Ok(()))?;
            let expected = operated.answer("new")?;
            ensure!(operated.answer("chat")? != expected);
            let to = with(&library(&new)?, json!({"plan": plan, "in_flight": in_flight}));
            let mut report = Value::Null;
            let heard = ask(&operated, || {
                report = operated.swap("chat", &to)?;
                Ok(())
            })?;
            same(&heard, &undisturbed).with_context(|| format!("{plan} {in_flight}: {report}"))?;
            ensure!(
                report["outcome"] == "swapped" && report["cancelled"] == 0 && report["carried"] == 0,
                "{report}"
            );
            ensure!(operated.answer("chat")? == expected);
        }
    }
    Ok(())
}

#[test]
fn a_model_that_is_quantised_at_load_is_another_model() -> Result<()> {
    let model = fixture("tiny-f32.gguf");
    for plan in PLANS {
        let operated = Operated::start(&[("chat", &builtin(&model))])?;
        let undisturbed = ask(&operated, || Ok(()))?;
        let quantised = json!({"plan": plan, "in_flight": "carry", "quantize": "Q8_0"});
        let (mut first, mut second) = (Value::Null, Value::Null);
        let heard = ask(&operated, || {
            first = operated.swap("chat", &with(&library(&model)?, quantised.clone()))?;
            Ok(())
        })?;
        same(&heard, &undisturbed).with_context(|| format!("{plan}: {first}"))?;
        ensure!(first["outcome"] == "swapped" && first["carried"] == 0, "{first}");
        // It is the same as itself.
        let undisturbed = ask(&operated, || Ok(()))?;
        let heard = ask(&operated, || {
            second = operated.swap("chat", &with(&library(&model)?, quantised.clone()))?;
            Ok(())
        })?;
        same(&heard, &undisturbed).with_context(|| format!("{plan}: {second}"))?;
        ensure!(second["carried"].as_u64() > Some(0), "{second}");
    }
    Ok(())
}

#[test]
fn where_the_new_generation_is_smaller_what_runs_finishes_in_the_old_one() -> Result<()> {
    let model = fixture("tiny-q4_1.gguf");
    let operated = Operated::start(&[("chat", &builtin(&model))])?;
    let undisturbed = ask(&operated, || Ok(()))?;
    let smaller = json!({"plan": "side_by_side", "in_flight": "carry", "ctx": 16});
    let mut report = Value::Null;
    let heard = ask(&operated, || {
        report = operated.swap("chat", &with(&library(&model)?, smaller.clone()))?;
        Ok(())
    })?;
    same(&heard, &undisturbed).with_context(|| report.to_string())?;
    ensure!(
        report["outcome"] == "swapped" && report["carried"] == 0,
        "{report}"
    );
    Ok(())
}

/// Starts two streams and a whole answer that would take minutes, swaps, and gives the report, the streams, and the
/// status and error of the third.
fn cut(plan: &str, how: Value) -> Result<(Value, [Heard; 2], u16, Value)> {
    let slow = scripted("set step_us 20000")?;
    let operated = Operated::start(&[("chat", &slow)])?;
    let body = json!({"model": "chat", "prompt": "Once", "max_tokens": 2000, "temperature": 0});
    let mut streams = [
        Stream::start(&operated.server, &body)?,
        Stream::start(&operated.server, &with(&body, json!({"n": 2})))?,
    ];
    for stream in &mut streams {
        for _ in 0..4 {
            stream.hear()?;
        }
    }
    thread::scope(|scope| {
        let whole = scope.spawn(|| -> Result<(u16, Value)> {
            let agent: ureq::Agent = ureq::Agent::config_builder()
                .http_status_as_error(false)
                .build()
                .into();
            let url = format!("{}/v1/completions", operated.server.url());
            let mut answer = agent.post(url).send_json(&body)?;
            let retry_after = answer.headers().contains_key("retry-after");
            ensure!(retry_after, "it may be asked again");
            Ok((answer.status().as_u16(), answer.body_mut().read_json()?))
        });
        eventually("all run", || Ok(operated.slot("chat")?["counts"]["active"] == 4))?;
        let to = with(&scripted("set salt 2")?, with(&how, json!({"plan": plan})));
        let report = operated.swap("chat", &to)?;
        let (status, json) = whole.join().map_err(|_| anyhow::anyhow!("it panicked"))??;
        let [a, b] = streams;
        Ok((report, [a.rest()?, b.rest()?], status, json["error"].clone()))
    })
}

#[test]
fn what_is_cut_ends_with_an_error_in_due_form() -> Result<()> {
    for plan in PLANS {
        for how in [
            json!({"in_flight": "cancel"}),
            json!({"in_flight": "finish", "drain_deadline_s": 0.1}),
            // Another model: there is nothing to carry to.
            json!({"in_flight": "carry", "drain_deadline_s": 0.1}),
        ] {
            let (report, streams, status, error) = cut(plan, how.clone())?;
            ensure!(
                report["outcome"] == "swapped" && report["cancelled"] == 4 && report["carried"] == 0,
                "{plan} {how}: {report}"
            );
            ensure!(
                status == 503 && error["code"] == "model_draining" && error["type"] == "server_error",
                "{plan} {how}: {status} {error}"
            );
            for heard in &streams {
                let error = heard.error.as_ref().context("no error event")?;
                ensure!(
                    heard.done && error["code"] == "model_draining" && error["message"].is_string(),
                    "{plan} {how}: {heard:?}"
                );
                ensure!(
                    heard
                        .choices
                        .iter()
                        .all(|choice| !choice.text.is_empty() && choice.finish.is_none()),
                    "{plan} {how}: {heard:?}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn an_unload_lets_its_requests_finish_or_cuts_them() -> Result<()> {
    let operated = Operated::start(&[
        ("a", &scripted("set step_us 2000")?),
        ("b", &scripted("set step_us 20000")?),
    ])?;
    let body = |slot: &str| json!({"model": slot, "prompt": "Once", "max_tokens": 300, "temperature": 0});
    let undisturbed = Stream::start(&operated.server, &body("a"))?.rest()?;
    let finishes = Stream::start(&operated.server, &body("a"))?;
    let report = operated.send("DELETE", "/slots/a", &Value::Null)?;
    ensure!(
        report.json["outcome"] == "unloaded" && report.json["cancelled"] == 0,
        "{report:?}"
    );
    ensure!(finishes.rest()? == undisturbed);
    let is_cut = Stream::start(&operated.server, &body("b"))?;
    let report = operated.send("DELETE", "/slots/b?in_flight=cancel", &Value::Null)?;
    ensure!(
        report.json["outcome"] == "unloaded" && report.json["cancelled"] == 1,
        "{report:?}"
    );
    let heard = is_cut.rest()?;
    ensure!(
        heard.done && heard.error.is_some_and(|error| error["code"] == "model_draining"),
        "it is told"
    );
    Ok(())
}

#[test]
fn a_client_that_reads_slowly_is_carried_over_too() -> Result<()> {
    let model = fixture("tiny-q4_1.gguf");
    let operated = Operated::start(&[("chat", &builtin(&model))])?;
    // More than all buffers on the way hold, so that the sequences wait for their client.
    let body = json!({
        "model": "chat", "prompt": "Once", "max_tokens": 1900, "n": 12, "seed": 3, "logprobs": 5, "ignore_eos": true,
        "stream": true,
    });
    let ask = || -> Result<TcpStream> {
        let mut client = TcpStream::connect(operated.server.address())?;
        let text = body.to_string();
        write!(
            client,
            "POST /v1/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{text}",
            text.len()
        )?;
        Ok(client)
    };
    // All but the head, and what is drawn for each answer.
    let read = |mut client: TcpStream| -> Result<Vec<Value>> {
        let mut text = String::new();
        client.read_to_string(&mut text)?;
        ensure!(
            text.ends_with("data: [DONE]\n\n"),
            "{}",
            &text[text.len().saturating_sub(300)..]
        );
        let mut tokens = vec![Vec::new(); 12];
        for event in text.lines().filter_map(|line| line.strip_prefix("data: {")) {
            let event: Value = serde_json::from_str(&format!("{{{event}"))?;
            for choice in event["choices"].as_array().context("choices")? {
                let of = &mut tokens[choice["index"].as_u64().context("index")? as usize];
                let logprobs = &choice["logprobs"];
                of.extend(
                    logprobs["token_logprobs"]
                        .as_array()
                        .into_iter()
                        .flatten()
                        .cloned(),
                );
                of.extend(logprobs["tokens"].as_array().into_iter().flatten().cloned());
            }
        }
        Ok(tokens.into_iter().map(Value::Array).collect())
    };
    let undisturbed = read(ask()?)?;
    for plan in PLANS {
        let client = ask()?;
        eventually("every sequence waits for its client", || {
            let counts = operated.slot("chat")?["counts"].clone();
            Ok(counts["paused"] == 12)
        })?;
        let to = with(
            &library(&model)?,
            json!({"plan": plan, "in_flight": "carry", "drain_deadline_s": 0.5}),
        );
        let report = operated.swap("chat", &to)?;
        ensure!(
            report["outcome"] == "swapped" && report["carried"] == 12 && report["cancelled"] == 0,
            "{report}"
        );
        ensure!(read(client)? == undisturbed, "{plan}: {report}");
    }
    Ok(())
}
