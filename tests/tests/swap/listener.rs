//! Where operators connect, and what becomes of a swap when the server is stopped.

use anyhow::{Context, Result, ensure};
use met_tests::{
    Server, fixture,
    operator::{Operated, eventually, scripted, send, with},
    server::artifacts,
    stream::Stream,
};
use serde_json::{Value, json};
use std::{net::TcpStream, os::unix::net::UnixStream, process::Command};

#[test]
fn a_tcp_listener_answers_only_to_its_token() -> Result<()> {
    let model = fixture("tiny-q4_1.gguf");
    let args = ["--model", &model.to_string_lossy(), "--admin", "127.0.0.1:0"];
    let refused = Server::start(&args).err().context("it serves without a token")?;
    ensure!(refused.to_string().contains("MET_ADMIN_TOKEN"), "{refused}");

    let server = Server::start_with(&args, &[("MET_ADMIN_TOKEN", "open sesame")])?;
    let address = || {
        let log = server.log();
        let (_, after) = log.split_once("operators connect to ")?;
        after.lines().next().map(str::to_owned)
    };
    // The log is read beside standard output.
    eventually("the log says where operators connect", || Ok(address().is_some()))?;
    let address = address().context("just seen")?;
    for (method, route) in [
        ("GET", "/slots"),
        ("POST", "/slots/chat/swap"),
        ("DELETE", "/slots/chat"),
        ("GET", "/events"),
        ("GET", "/nothing"),
    ] {
        for header in [
            "",
            "authorization: Bearer open sesam\r\n",
            "authorization: open sesame\r\n",
        ] {
            let reply = send(TcpStream::connect(&address)?, method, route, &Value::Null, header)?;
            ensure!(
                reply.status == 401 && reply.json["error"]["code"] == "invalid_token",
                "{method} {route} {header}: {reply:?}"
            );
        }
    }
    let header = "authorization: Bearer open sesame\r\n";
    let reply = send(
        TcpStream::connect(&address)?,
        "GET",
        "/slots",
        &Value::Null,
        header,
    )?;
    ensure!(
        reply.status == 200 && reply.json["slots"][0]["generation"] == 1,
        "{reply:?}"
    );

    // The bounds of the public listener hold for whoever has no token.
    let many = "a: b\r\n".repeat(100);
    let reply = send(
        TcpStream::connect(&address)?,
        "GET",
        "/slots",
        &Value::Null,
        &many,
    )?;
    ensure!(
        reply.status == 431 && reply.json["error"]["code"] == "headers_too_large",
        "{reply:?}"
    );

    let command = |verb: &[&str], token: &str| {
        Command::new(artifacts()?.join("met-host"))
            .args(verb)
            .args(["--json", "--admin", &address])
            .env("MET_ADMIN_TOKEN", token)
            .output()
            .context("met-host didn't start")
    };
    ensure!(command(&["status"], "open sesame")?.status.success());
    for verb in [&["status"][..], &["swap", "chat"], &["events"]] {
        let refused = command(verb, "open sesam")?;
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        ensure!(
            !refused.status.success() && error.contains("MET_ADMIN_TOKEN"),
            "{error}"
        );
        let json: Value = serde_json::from_slice(&refused.stdout)?;
        ensure!(json["error"]["code"] == "invalid_token", "{verb:?}: {json}");
    }
    Ok(())
}

#[test]
fn a_server_that_ends_leaves_the_socket_of_the_next_one() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("admin.sock");
    let admin = format!("unix:{}", socket.display());
    let model = fixture("tiny-q4_1.gguf");
    let args = ["--model", &*model.to_string_lossy(), "--admin", &admin];
    let mut first = Server::start(&args)?;
    ensure!(Server::start(&args).is_err(), "the first one listens there");
    std::fs::remove_file(&socket)?;
    let mut second = Server::start(&args)?;
    ensure!(first.stop()?.success(), "{}", first.log());
    let reply = send(UnixStream::connect(&socket)?, "GET", "/slots", &Value::Null, "")?;
    ensure!(reply.status == 200, "{reply:?}");
    ensure!(second.stop()?.success(), "{}", second.log());
    ensure!(!socket.exists(), "its own is gone with it");
    Ok(())
}

#[test]
fn the_one_server_that_runs_here_needs_no_name() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let runtime = [(
        "XDG_RUNTIME_DIR",
        folder.path().to_str().context("a path in UTF-8")?,
    )];
    let status = || {
        Command::new(artifacts()?.join("met-host"))
            .args(["status"])
            .envs(runtime)
            .output()
            .context("met-host didn't start")
    };
    let nobody = status()?;
    let error = String::from_utf8_lossy(&nobody.stderr).into_owned();
    ensure!(!nobody.status.success() && error.contains("--admin"), "{error}");

    let model = fixture("tiny-q4_1.gguf");
    let model = model.to_string_lossy();
    let _one = Server::start_with(&["--model", &model], &runtime)?;
    let found = status()?;
    ensure!(
        found.status.success() && String::from_utf8_lossy(&found.stdout).contains("chat"),
        "{found:?}"
    );
    let _two = Server::start_with(&["--model", &model], &runtime)?;
    let several = status()?;
    ensure!(
        !several.status.success() && String::from_utf8_lossy(&several.stderr).contains("several servers"),
        "{several:?}"
    );
    Ok(())
}

#[test]
fn a_runtime_folder_that_is_none_is_not_used() -> Result<()> {
    let model = fixture("tiny-q4_1.gguf");
    for folder in ["", "relative"] {
        let env = [("XDG_RUNTIME_DIR", folder)];
        let server = Server::start_with(&["--model", &model.to_string_lossy()], &env)?;
        eventually("where operators connect", || {
            Ok(server.log().contains("operators connect to unix:/"))
        })?;
    }
    Ok(())
}

#[test]
fn a_stop_during_a_load_gives_the_candidate_up_and_lets_streams_finish() -> Result<()> {
    for plan in ["side_by_side", "drain_first"] {
        let mut operated = Operated::start(&[("chat", &scripted("set step_us 2000")?)])?;
        let body = json!({"model": "chat", "prompt": "Once", "max_tokens": 300, "temperature": 0});
        let undisturbed = Stream::start(&operated.server, &body)?.rest()?;
        let mut events = operated.events()?;
        let slow = with(&scripted("set load_ms 3600000")?, json!({"plan": plan}));
        let stream = (plan == "side_by_side").then(|| Stream::start(&operated.server, &body));
        operated.begin_swap("chat", &slow)?;
        events.wait_for("step_begun", Some("load"))?;
        let status = operated.server.stop()?;
        let log = operated.server.log();
        ensure!(
            status.success() && !log.contains("panicked"),
            "{plan}: {status}\n{log}"
        );
        ensure!(
            log.contains("outcome=\"cancelled\"") || log.contains("outcome=\"down\""),
            "{log}"
        );
        // A stop brings no incumbent back.
        ensure!(
            log.contains("torn down") == (plan == "side_by_side") && !log.contains("generation=3"),
            "{plan}: {log}"
        );
        if let Some(stream) = stream {
            ensure!(stream?.rest()? == undisturbed, "the incumbent's stream finishes");
        }
    }
    Ok(())
}

#[test]
fn a_stop_during_a_drain_ends_what_the_swap_has_begun() -> Result<()> {
    let mut operated = Operated::start_with(
        "drain_deadline_s = 60",
        &[("chat", &scripted("set step_us 2000")?)],
    )?;
    let body = json!({"model": "chat", "prompt": "Once", "max_tokens": 500, "temperature": 0});
    let undisturbed = Stream::start(&operated.server, &body)?.rest()?;
    let mut events = operated.events()?;
    let stream = Stream::start(&operated.server, &body)?;
    operated.begin_swap("chat", &with(&scripted("")?, json!({"plan": "side_by_side"})))?;
    events.wait_for("step_begun", Some("drain"))?;
    let status = operated.server.stop()?;
    let log = operated.server.log();
    ensure!(status.success() && !log.contains("panicked"), "{status}\n{log}");
    ensure!(log.contains("swapped"), "the swap comes to its end: {log}");
    ensure!(stream.rest()? == undisturbed, "the stream finishes");
    Ok(())
}

#[test]
fn a_stop_cuts_what_a_swap_drains_at_its_own_deadline_and_tears_it_down() -> Result<()> {
    for plan in ["side_by_side", "drain_first"] {
        let mut operated = Operated::start_with(
            "drain_deadline_s = 0.5",
            &[("chat", &scripted("set step_us 20000")?)],
        )?;
        let body = json!({"model": "chat", "prompt": "Once", "max_tokens": 1500, "temperature": 0});
        let mut events = operated.events()?;
        let stream = Stream::start(&operated.server, &body)?;
        let order = json!({"plan": plan, "drain_deadline_s": 3600});
        operated.begin_swap("chat", &with(&scripted("")?, order))?;
        events.wait_for("step_begun", Some("drain"))?;
        let status = operated.server.stop()?;
        let log = operated.server.log();
        ensure!(status.success() && !log.contains("panicked"), "{status}\n{log}");
        let heard = stream.rest()?;
        ensure!(
            heard.error.is_some() && heard.done,
            "{plan}: it ends in due form: {heard:?}"
        );
        let torn_down = match plan {
            // By the swap, once it is cut.
            "side_by_side" => "teardown id=2 slot=\"chat\" of=Incumbent",
            // By the server, to which the swap gives it back.
            _ => "torn down slot=\"chat\" generation=1",
        };
        ensure!(log.contains(torn_down), "{plan}: {log}");
    }
    Ok(())
}
