//! The command line as the operators' client.

use anyhow::{Context, Result, ensure};
use met_tests::{
    operator::{Operated, Told, builtin, eventually, scripted, with},
    server::artifacts,
};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    process::{Child, Command, Stdio},
    thread,
};

/// A slot's configuration as options of the command line.
fn options(slot: &Value) -> Vec<String> {
    let mut options = Vec::new();
    for (name, value) in slot.as_object().into_iter().flatten() {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let value = value.as_str().unwrap_or_default();
                    options.extend(["--option".to_owned(), format!("{name}={value}")]);
                }
            }
            Value::String(text) => {
                options.extend([format!("--{}", name.replace('_', "-")), text.clone()]);
            }
            other => options.extend([format!("--{}", name.replace('_', "-")), other.to_string()]),
        }
    }
    options
}

fn run(operated: &Operated, verb: &str, slot: &Value, more: &[&str]) -> Result<Told> {
    let options = options(slot);
    let mut args = vec![verb, "chat"];
    args.extend(options.iter().map(String::as_str));
    args.extend(more);
    operated.command(&args)
}

/// The one JSON object of standard output.
fn object(told: &Told) -> Result<Value> {
    let json: Value = serde_json::from_str(&told.out).with_context(|| format!("{told:?}"))?;
    ensure!(json.is_object(), "{told:?}");
    Ok(json)
}

#[test]
fn a_swap_tells_its_steps_as_they_are_made_and_how_it_ended() -> Result<()> {
    let operated = Operated::start(&[("chat", &scripted("")?)])?;
    let before = operated.answer("chat")?;
    let told = run(
        &operated,
        "swap",
        &scripted("set salt 2")?,
        &["--plan", "side_by_side"],
    )?;
    ensure!(told.success && told.error.is_empty(), "{told:?}");
    let mut lines = told.out.lines();
    let first = lines.next().unwrap_or_default();
    ensure!(first.contains("of chat: side by side"), "{told:?}");
    for step in ["load", "verify", "switch", "drain", "teardown", "unload"] {
        let line = lines.next().unwrap_or_default();
        ensure!(line.trim().starts_with(step) && line.contains(" ms"), "{told:?}");
    }
    let rest: Vec<&str> = lines.collect();
    ensure!(
        rest[0].starts_with("swapped: chat serves scripted on ") && rest[0].ends_with("generation 2"),
        "{told:?}"
    );
    ensure!(
        rest.iter().any(|line| line.contains("library unmapped")),
        "{told:?}"
    );
    ensure!(operated.answer("chat")? != before);
    Ok(())
}

#[test]
fn a_load_that_takes_long_tells_how_far_it_is() -> Result<()> {
    let operated = Operated::start(&[("chat", &scripted("")?)])?;
    let mut events = operated.events()?;
    let told = run(&operated, "swap", &scripted("set load_ms 3000")?, &[])?;
    let line = told.out.lines().find(|line| line.trim().starts_with("weights"));
    ensure!(
        told.success && line.is_some_and(|line| line.contains(" KiB of 1.0 MiB")),
        "{told:?}"
    );
    let event = events.wait_for("progress", None)?;
    ensure!(
        event["slot"] == "chat" && event["stage"] == "weights" && event["total"] == 1 << 20,
        "{event}"
    );
    ensure!(event["done"].as_u64() < event["total"].as_u64(), "{event}");
    Ok(())
}

#[test]
fn what_was_swept_is_told_with_its_owner() -> Result<()> {
    let bad = scripted("at collect 1 leak 4096\nat release_pools 1 fail fault no way")?;
    let operated = Operated::start(&[("chat", &bad)])?;
    let told = run(&operated, "swap", &scripted("")?, &[])?;
    let says = |what: &str| told.out.contains(what);
    ensure!(
        says("released 0 B in 0 pools, swept 3 (") && says("swept     memory 4.0 KiB of \"nobody\""),
        "{told:?}"
    );
    ensure!(says("of \"weight store\"") && says(", left: 0"), "{told:?}");
    Ok(())
}

#[test]
fn the_exit_code_is_0_only_where_the_outcome_is_what_was_asked() -> Result<()> {
    let good = scripted("")?;
    let operated = Operated::start(&[("chat", &good)])?;
    let before = operated.answer("chat")?;

    let swapped = run(&operated, "swap", &good, &["--json"])?;
    ensure!(
        swapped.success && object(&swapped)?["outcome"] == "swapped",
        "{swapped:?}"
    );
    let bad = scripted("at load_model 1 fail exhausted no room")?;
    for (plan, outcome) in [("side_by_side", "failed"), ("drain_first", "rolled_back")] {
        let failed = run(&operated, "swap", &bad, &["--json", "--plan", plan])?;
        ensure!(
            !failed.success && object(&failed)?["outcome"] == outcome,
            "{failed:?}"
        );
        let failed = run(&operated, "swap", &bad, &["--plan", plan])?;
        ensure!(
            !failed.success
                && failed.out.contains("no room")
                && failed.out.contains(&outcome.replace('_', " ")),
            "{failed:?}"
        );
    }
    let expected = ["--verify-prompt", "a", "--expect", "never said", "--json"];
    let failed = run(&operated, "swap", &good, &expected)?;
    ensure!(
        !failed.success && object(&failed)?["error"].to_string().contains("never said"),
        "{failed:?}"
    );
    ensure!(operated.answer("chat")? == before);

    // What serves is what was asked for, but something of the old one stays.
    let keeps = scripted("at collect 1 thread 60000")?;
    ensure!(run(&operated, "swap", &keeps, &[])?.success);
    operated.answer("chat")?;
    let stays = run(&operated, "swap", &good, &[])?;
    ensure!(
        !stays.success && stays.out.contains("swapped (unload: ") && stays.out.contains("library retained: "),
        "{stays:?}"
    );
    ensure!(operated.answer("chat")? == before);

    for (args, says) in [
        (vec!["swap", "other"], "other"),
        (vec!["load", "chat"], "chat"),
        (vec!["unload", "other"], "other"),
        (vec!["ledger", "other"], "no slot"),
        (vec!["cancel", "99"], "99"),
        (vec!["swap", "chat", "--backend", "builtin:tpu"], "builtin:cpu"),
        (vec!["swap", "chat", "--max-seqs", "0"], "max_seqs"),
    ] {
        let refused = operated.command(&args)?;
        ensure!(
            !refused.success && refused.error.contains(says) && refused.out.is_empty(),
            "{args:?}: {refused:?}"
        );
        let refused = operated.command(&[&args[..], &["--json"]].concat())?;
        let message = &object(&refused)?["error"]["message"];
        ensure!(
            !refused.success && message.as_str().is_some_and(|message| message.contains(says)),
            "{args:?}: {refused:?}"
        );
    }
    Ok(())
}

#[test]
fn a_download_is_told_while_it_runs_and_can_be_cancelled() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let pip = folder.path().join("python3");
    let slow =
        "#!/bin/sh\nfor i in $(seq 300); do head -c 99999 /dev/zero >> \"$TMPDIR/part\"; sleep 0.1; done\n";
    std::fs::write(&pip, slow)?;
    std::fs::set_permissions(&pip, std::fs::Permissions::from_mode(0o700))?;
    let cache = folder.path().join("cache");
    let programs = std::env::var("PATH")?;
    let env = [
        ("PATH", &*format!("{}:{programs}", folder.path().display())),
        ("MET_CACHE", cache.to_str().context("a path in UTF-8")?),
    ];
    let operated = Operated::start_in(&env, "", &[("chat", &scripted("")?)])?;
    let mut swap = Command::new(artifacts()?.join("met-host"))
        .args(["swap", "chat", "--model", "pypi:slow==1.0:model.gguf"])
        .args(["--admin", &operated.admin()])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let told = BufReader::new(swap.stdout.take().context("its output")?);
    let first = told.lines().next().context("nothing was told")??;
    ensure!(
        first.trim_start().starts_with("download ") && !first.contains(" of "),
        "{first}"
    );
    let reply = operated.send("POST", "/swaps/2/cancel", &Value::Null)?;
    ensure!(reply.status == 200, "{reply:?}");
    ensure!(!swap.wait()?.success());
    ensure!(operated.slot("chat")?["generation"] == 1);
    Ok(())
}

#[test]
fn nobody_who_reads_is_no_reason_to_give_up() -> Result<()> {
    let operated = Operated::start(&[("chat", &scripted("")?)])?;
    let start = |args: &[&str]| -> Result<Child> {
        let mut command = Command::new(artifacts()?.join("met-host"))
            .args(args)
            .args(["--admin", &operated.admin()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        drop(command.stdout.take());
        Ok(command)
    };
    let listener = start(&["events"])?;
    let swap = start(&["swap", "chat"])?.wait_with_output()?;
    ensure!(swap.status.success() && swap.stderr.is_empty(), "{swap:?}");
    ensure!(operated.slot("chat")?["generation"] == 2);
    // It may not have listened yet.
    let listened = thread::spawn(move || listener.wait_with_output());
    eventually("the listener ends", || {
        operated.swap("chat", &json!({}))?;
        Ok(listened.is_finished())
    })?;
    let listened = listened.join().map_err(|_| anyhow::anyhow!("it panicked"))??;
    ensure!(
        listened.status.success() && listened.stderr.is_empty(),
        "{listened:?}"
    );
    Ok(())
}

#[test]
fn slots_are_loaded_shown_and_unloaded() -> Result<()> {
    let operated = Operated::start(&[("first", &scripted("")?)])?;
    let tiny = builtin(&met_tests::fixture("tiny-q4_1.gguf"));
    let loaded = run(&operated, "load", &tiny, &["--json"])?;
    ensure!(
        loaded.success && object(&loaded)?["outcome"] == "loaded",
        "{loaded:?}"
    );

    let status = operated.command(&["status"])?;
    let row = |name: &str| {
        status
            .out
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_default()
    };
    ensure!(status.success && row("SLOT").contains("GEN"), "{status:?}");
    ensure!(
        row("chat").contains("ready")
            && row("chat").contains("tiny-q4_1")
            && row("chat").contains("builtin:cpu"),
        "{status:?}"
    );
    ensure!(row("first").contains("libmet_scripted.so"), "{status:?}");
    let status = operated.command(&["status", "--json"])?;
    let names: Vec<Value> = object(&status)?["slots"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|slot| slot["slot"].clone())
        .collect();
    ensure!(status.success && names == ["chat", "first"], "{status:?}");

    let ledger = operated.command(&["ledger", "chat"])?;
    ensure!(
        ledger.success && ledger.out.contains("kv cache") && ledger.out.contains(" entries, "),
        "{ledger:?}"
    );
    let column = |line: &str, word: &str| line.find(word);
    let mut lines = ledger.out.lines();
    let kind = column(lines.next().unwrap_or_default(), "KIND");
    ensure!(
        lines.next().is_some_and(|line| column(line, "thread") == kind),
        "{ledger:?}"
    );
    let ledger = object(&operated.command(&["ledger", "chat", "--json"])?)?;
    let entries = ledger["entries"].as_array().context("no entries")?;
    ensure!(
        entries
            .iter()
            .all(|entry| entry["owner"].is_string() && entry["serial"].as_u64() > Some(0)),
        "{ledger}"
    );

    let unloaded = operated.command(&["unload", "chat", "--in-flight", "cancel", "--json"])?;
    ensure!(
        unloaded.success && object(&unloaded)?["outcome"] == "unloaded",
        "{unloaded:?}"
    );
    let unloaded = operated.command(&["unload", "first", "--drain-deadline", "3"])?;
    ensure!(
        unloaded.success && unloaded.out.contains("first serves nothing"),
        "{unloaded:?}"
    );
    ensure!(operated.models()?.is_empty());
    Ok(())
}

#[test]
fn a_cancel_ends_the_swap_of_another_terminal() -> Result<()> {
    let operated = Operated::start(&[("chat", &scripted("")?)])?;
    let slow = scripted("set load_ms 3600000")?;
    thread::scope(|scope| {
        let swap = scope.spawn(|| run(&operated, "swap", &slow, &["--json"]));
        let mut id = None;
        eventually("the swap has begun", || {
            id = operated.slot("chat")?["swap"].as_u64();
            Ok(id.is_some())
        })?;
        let status = operated.command(&["status"])?;
        let id = id.unwrap_or_default().to_string();
        ensure!(status.out.contains(&format!("swap {id}")), "{status:?}");
        let cancelled = operated.command(&["cancel", &id, "--json"])?;
        ensure!(
            cancelled.success && object(&cancelled)?["cancelling"] == true,
            "{cancelled:?}"
        );
        let swap = swap.join().map_err(|_| anyhow::anyhow!("it panicked"))??;
        ensure!(
            !swap.success && object(&swap)?["outcome"] == "cancelled",
            "{swap:?}"
        );
        Ok(())
    })
}

#[test]
fn events_are_lines_of_json_until_the_server_ends() -> Result<()> {
    let mut operated = Operated::start(&[("chat", &scripted("")?)])?;
    let mut listener = Command::new(artifacts()?.join("met-host"))
        .args(["events", "--admin", &operated.admin()])
        .stdout(Stdio::piped())
        .spawn()?;
    let lines = BufReader::new(listener.stdout.take().context("no output")?).lines();
    // It may not listen yet: what it misses is the first swaps.
    let swap = with(&scripted("")?, json!({"plan": "side_by_side"}));
    let (tell, told) = std::sync::mpsc::channel();
    let reader = thread::spawn(move || -> Result<Vec<Value>> {
        let mut events = Vec::new();
        for line in lines {
            events.push(serde_json::from_str(&line?)?);
            // Nobody waits any more after the first one.
            let _ = tell.send(());
        }
        Ok(events)
    });
    eventually("an event", || {
        operated.swap("chat", &swap)?;
        Ok(told.try_recv().is_ok())
    })?;
    let last = operated.swap("chat", &swap)?;
    ensure!(operated.server.stop()?.success(), "{}", operated.server.log());
    ensure!(listener.wait()?.success(), "the server's end is no failure");
    let events = reader.join().map_err(|_| anyhow::anyhow!("it panicked"))??;
    ensure!(
        events.last().is_some_and(|last| last["event"] == "stopped"),
        "{events:?}"
    );
    let of_last: Vec<&Value> = events.iter().filter(|event| event["id"] == last["id"]).collect();
    let said = |name: &str| of_last.iter().filter(|event| event["event"] == name).count();
    ensure!(
        (said("begun"), said("step_begun"), said("step"), said("ended")) == (1, 6, 6, 1),
        "{of_last:?}"
    );
    let ended = with(of_last.last().context("no event")?, json!({"event": null}));
    ensure!(
        ended == with(&last, json!({"event": null})),
        "the report is the last event"
    );
    Ok(())
}
