//! A changed configuration file, applied by `reload` and by SIGHUP.

use anyhow::{Result, ensure};
use met_tests::{
    Server, fixture,
    operator::{Operated, builtin, configuration, eventually, scripted, with},
    server::artifacts,
};
use serde_json::{Value, json};
use std::{fs, process::Command};

fn hang_up(server: &Server) -> Result<()> {
    let status = Command::new("kill")
        .args(["-HUP", &server.pid().to_string()])
        .status()?;
    ensure!(status.success(), "{status}");
    Ok(())
}

fn generation(operated: &Operated, slot: &str) -> Result<Value> {
    Ok(operated.slot(slot)?["generation"].clone())
}

#[test]
fn new_slots_load_changed_ones_swap_gone_ones_unload_and_the_rest_stay() -> Result<()> {
    let slot = scripted("")?;
    let operated = Operated::start(&[("changed", &slot), ("gone", &slot), ("same", &slot)])?;
    let before = operated.answer("changed")?;
    // Made by hand: no file says that it should go.
    operated.send("POST", "/slots/hand", &slot)?;
    let unchanged = operated.command(&["reload"])?;
    ensure!(
        unchanged.success && unchanged.out.contains("nothing has changed"),
        "{unchanged:?}"
    );

    let other = scripted("set salt 2")?;
    let new = builtin(&fixture("tiny-q4_1.gguf"));
    operated.configure(&configuration(
        "",
        &[("changed", &other), ("new", &new), ("same", &slot)],
    ))?;
    let told = operated.command(&["reload", "--json"])?;
    let json: Value = serde_json::from_str(&told.out)?;
    let changes: Vec<String> = json["changes"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|c| format!("{} {} {}", c["change"], c["slot"], c["report"]["outcome"]).replace('"', ""))
        .collect();
    ensure!(
        told.success && changes == ["swap changed swapped", "unload gone unloaded", "load new loaded"],
        "{told:?}"
    );
    ensure!(operated.models()? == ["changed", "hand", "new", "same"]);
    ensure!(operated.answer("changed")? != before);
    ensure!(generation(&operated, "changed")? == 2 && generation(&operated, "same")? == 1);
    Ok(())
}

#[test]
fn a_bad_file_changes_nothing_and_names_the_line() -> Result<()> {
    let slot = scripted("")?;
    let operated = Operated::start(&[("chat", &slot)])?;
    // A good change before the bad line, which must not be applied either.
    let text = configuration("", &[("chat", &scripted("set salt 2")?), ("new", &slot)]);
    for (at, (bad, says)) in [
        ("modle = \"a.gguf\"", "modle"),
        ("plan = \"both\"", "both"),
        ("model = ", ""),
        ("threads = -1", "-1"),
        ("max_seqs = 0", "[slot.bad]: max_seqs"),
        ("drain_deadline_s = -1", "[slot.bad]: drain_deadline_s"),
        ("backend = \"builtin:tpu\"", "[slot.bad]: there is no built-in"),
    ]
    .into_iter()
    .enumerate()
    {
        let text = format!("{text}\n[slot.bad]\n{bad}\n");
        let line = format!("line {}", text.lines().count());
        operated.configure(&text)?;
        let told = operated.command(&["reload"])?;
        ensure!(
            !told.success && told.error.contains(&line) && told.error.contains(says),
            "{line} {told:?}"
        );
        hang_up(&operated.server)?;
        // The file must stay as it is until it was read.
        eventually("the log names the line", || {
            let log = operated.server.log();
            let said: Vec<&str> = log
                .lines()
                .filter(|line| line.contains("nothing was changed"))
                .collect();
            Ok(said
                .get(at)
                .is_some_and(|said| said.contains(&line) && said.contains(says)))
        })?;
    }
    // As an editor leaves it for a moment.
    operated.configure("")?;
    let told = operated.command(&["reload"])?;
    ensure!(!told.success && told.error.contains("names no slot"), "{told:?}");
    operated.configure(&format!("drain_deadline_s = -1\n{text}"))?;
    let told = operated.command(&["reload"])?;
    ensure!(
        !told.success && told.error.contains("line 1: drain_deadline_s"),
        "{told:?}"
    );
    ensure!(operated.models()? == ["chat"] && generation(&operated, "chat")? == 1);
    Ok(())
}

#[test]
fn a_hang_up_applies_the_file_while_clients_are_served() -> Result<()> {
    let operated = Operated::start(&[("chat", &scripted("")?)])?;
    let before = operated.answer("chat")?;
    let other = scripted("set salt 2")?;
    operated.configure(&configuration("", &[("chat", &other), ("more", &other)]))?;
    hang_up(&operated.server)?;
    eventually("both slots are as the file says", || {
        let chat = operated.answer("chat")?;
        Ok(operated.models()? == ["chat", "more"] && chat != before && chat == operated.answer("more")?)
    })
}

#[test]
fn what_fails_in_a_reload_keeps_what_it_has_and_is_tried_again() -> Result<()> {
    let slot = scripted("")?;
    let operated = Operated::start(&[("bad", &slot), ("good", &slot)])?;
    let before = operated.answer("bad")?;
    let folder = tempfile::tempdir()?;
    let missing = folder.path().join("later.gguf");
    let later = with(&scripted("set salt 2")?, json!({"model": missing}));
    operated.configure(&configuration(
        "",
        &[("bad", &later), ("good", &scripted("set salt 2")?)],
    ))?;
    let told = operated.command(&["reload"])?;
    ensure!(
        !told.success && told.out.contains("swap bad: failed") && told.out.contains("swap good: swapped"),
        "{told:?}"
    );
    ensure!(operated.answer("bad")? == before);
    std::fs::copy(fixture("tiny-q4_1.gguf"), &missing)?;
    let told = operated.command(&["reload"])?;
    ensure!(
        told.success && told.out.trim() == "swap bad: swapped",
        "only what was left to do: {told:?}"
    );
    ensure!(operated.answer("bad")? == operated.answer("good")?);
    Ok(())
}

#[test]
fn what_only_a_restart_applies_is_named() -> Result<()> {
    let slot = scripted("")?;
    let operated = Operated::start_with("drain_deadline_s = 5", &[("chat", &slot)])?;
    operated.configure(&configuration("drain_deadline_s = 6", &[("chat", &slot)]))?;
    let told = operated.command(&["reload"])?;
    ensure!(
        !told.success && told.out.contains("drain_deadline_s has changed: restart"),
        "{told:?}"
    );
    operated.configure(&configuration("drain_deadline_s = 5", &[("chat", &slot)]))?;
    ensure!(operated.command(&["reload"])?.success);
    Ok(())
}

#[test]
fn a_reload_whose_asker_has_gone_is_carried_out_and_remembered() -> Result<()> {
    let operated = Operated::start(&[("chat", &scripted("")?)])?;
    operated.configure(&configuration(
        "",
        &[("chat", &scripted("set salt 2\nset load_ms 500")?)],
    ))?;
    let mut events = operated.events()?;
    let mut asker = Command::new(artifacts()?.join("met-host"))
        .args(["reload", "--admin", &operated.admin()])
        .spawn()?;
    events.wait_for("step_begun", Some("load"))?;
    asker.kill()?;
    asker.wait()?;
    // Waits for the one that is under way.
    let told = operated.command(&["reload"])?;
    ensure!(
        told.success && told.out.contains("nothing has changed"),
        "{told:?}"
    );
    ensure!(generation(&operated, "chat")? == 2);
    Ok(())
}

#[test]
fn hang_ups_that_come_during_a_reload_are_one() -> Result<()> {
    let slot = scripted("")?;
    let mut operated = Operated::start(&[("chat", &slot)])?;
    operated.configure(&configuration("", &[("chat", &scripted("set load_ms 3600000")?)]))?;
    let mut events = operated.events()?;
    hang_up(&operated.server)?;
    let id = events.wait_for("step_begun", Some("load"))?["id"].clone();
    operated.configure(&configuration("", &[("chat", &slot)]))?;
    for _ in 0..20 {
        hang_up(&operated.server)?;
    }
    operated.send("POST", &format!("/swaps/{id}/cancel"), &Value::Null)?;
    let reloads = |operated: &Operated| operated.server.log().matches("was read again").count();
    eventually("the file was read again", || Ok(reloads(&operated) >= 2))?;
    // After every other that may be waiting.
    ensure!(operated.command(&["reload"])?.success);
    ensure!(generation(&operated, "chat")? == 1);
    operated.server.stop()?;
    ensure!(reloads(&operated) <= 3, "{}", operated.server.log());
    Ok(())
}

#[test]
fn without_a_file_there_is_nothing_to_reload() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("admin.sock");
    let admin = format!("unix:{}", socket.display());
    let model = fixture("tiny-q4_1.gguf");
    let _server = Server::start(&["--model", &model.to_string_lossy(), "--admin", &admin])?;
    let stream = std::os::unix::net::UnixStream::connect(&socket)?;
    let reply = met_tests::operator::send(stream, "POST", "/reload", &Value::Null, "")?;
    ensure!(
        reply.status == 400 && reply.json.to_string().contains("--config"),
        "{reply:?}"
    );
    Ok(())
}

#[test]
fn a_hang_up_while_the_models_load_is_applied_once_they_are_there() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("met.toml");
    let slow = scripted("set load_ms 1000")?;
    fs::write(&file, configuration("", &[("chat", &slow)]))?;
    let args = ["--config", &*file.to_string_lossy(), "--admin"];
    let admin = format!("unix:{}", folder.path().join("admin.sock").display());
    let args = [&args[..], &[&admin]].concat();
    let mut server = Server::start_until("operators connect to", &args, &[])?;
    fs::write(
        &file,
        configuration("", &[("chat", &slow), ("new", &scripted("")?)]),
    )?;
    hang_up(&server)?;
    eventually("the reload", || Ok(server.log().contains("was read again")))?;
    let log = server.log();
    let loaded = log.find("swap ended id=1 slot=\"chat\" outcome=\"loaded\"");
    let reloaded = log.find("reloaded slot=\"new\" change=Load outcome=\"loaded\"");
    ensure!(loaded.is_some() && loaded < reloaded, "{log}");
    ensure!(server.stop()?.success(), "{}", server.log());
    Ok(())
}

#[test]
fn a_pipe_in_place_of_the_file_is_not_waited_for() -> Result<()> {
    let slot = scripted("")?;
    let operated = Operated::start(&[("chat", &slot)])?;
    let file = operated.configuration_file();
    fs::remove_file(&file)?;
    ensure!(Command::new("mkfifo").arg(&file).status()?.success());
    let told = operated.command(&["reload"])?;
    ensure!(
        !told.success && told.error.contains("it is no regular file"),
        "{told:?}"
    );
    operated.answer("chat")?;
    Ok(())
}
