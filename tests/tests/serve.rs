//! The real server with the real model: what README promises, seen from outside.

use anyhow::{Context, Result, ensure};
use met_tests::{
    Server, model_path,
    operator::{self, Operated, eventually},
    scripted,
    server::artifacts,
    stream::Stream,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::Duration,
};

const LIMIT: Duration = Duration::from_secs(60);

fn start(args: &[&str]) -> Result<Server> {
    let model = model_path();
    let model = model.to_str().context("a path in UTF-8")?;
    Server::start(&[&["--model", model, "--ctx", "2048", "--threads", "2"], args].concat())
}

fn chat(content: &str, max_tokens: u32) -> Value {
    json!({
        "model": "chat", "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens, "temperature": 0,
    })
}

fn text(answer: &Value) -> Option<&str> {
    answer["choices"][0]["message"]["content"].as_str()
}

fn threads(server: &Server) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{}/task", server.pid()))?.count())
}

#[test]
fn a_library_and_the_built_in_backend_answer_alike_and_stop_clean() -> Result<()> {
    let library = artifacts()?.join("libmet_cpu.so");
    let mut answers = Vec::new();
    for backend in ["builtin:cpu", library.to_str().context("a path in UTF-8")?] {
        let mut server = start(&["--backend", backend])?;
        let answer = server.post(
            "/v1/chat/completions",
            &chat("What is the capital of France?", 24),
        )?;
        ensure!(
            text(&answer).is_some_and(|text| text.contains("Paris")),
            "{answer}"
        );
        answers.push(text(&answer).map(str::to_owned));
        let status = server.stop()?;
        let log = server.log();
        ensure!(status.success() && log.contains("torn down"), "{status}\n{log}");
    }
    assert_eq!(answers[0], answers[1]);
    Ok(())
}

#[test]
fn a_request_alone_and_among_fifteen_others_gives_the_same_tokens() -> Result<()> {
    let server = start(&[])?;
    let ask = || {
        server.post(
            "/v1/chat/completions",
            &chat("Write three words about the sea.", 32),
        )
    };
    let alone = text(&ask()?).map(str::to_owned);
    let among = thread::scope(|scope| {
        for i in 0..15 {
            let server = &server;
            scope.spawn(move || {
                let body = chat(&format!("Tell me of the number {i}."), 48);
                server.post("/v1/chat/completions", &body).expect("an answer");
            });
        }
        ask()
    })?;
    assert_eq!(alone.as_deref(), text(&among));
    Ok(())
}

#[test]
fn clients_that_leave_leave_nothing_behind() -> Result<()> {
    let server = start(&[])?;
    server.post("/v1/chat/completions", &chat("Hi", 4))?;
    let before = threads(&server)?;
    for wave in 0..8 {
        let mut clients = Vec::new();
        for i in 0..25 {
            let mut body = chat(&format!("Count slowly from {i}."), 500);
            // Every other one waits for a whole answer, and leaves without it.
            body["stream"] = json!(i % 2 == 0);
            let body = body.to_string();
            let mut client = TcpStream::connect(server.address())?;
            client.set_read_timeout(Some(LIMIT))?;
            write!(
                client,
                "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )?;
            clients.push(client);
        }
        if wave % 2 == 0 {
            // Leave in the middle of an answer: the first has begun.
            clients[0].read_exact(&mut [0; 64])?;
        }
    }
    eventually("no sequence runs or waits", || {
        Ok(server.metric("met_requests_running")? + server.metric("met_requests_waiting")? == 0.0)
    })?;
    eventually("no block is taken", || {
        Ok(server.metric("met_kv_blocks_used")? == 0.0)
    })?;
    eventually("no thread is left", || Ok(threads(&server)? <= before))?;
    let answer = server.post(
        "/v1/chat/completions",
        &chat("What is the capital of France?", 24),
    )?;
    ensure!(
        text(&answer).is_some_and(|text| text.contains("Paris")),
        "{answer}"
    );
    Ok(())
}

#[test]
fn a_stop_lets_a_running_stream_finish() -> Result<()> {
    let mut server = start(&[])?;
    let mut client = TcpStream::connect(server.address())?;
    client.set_read_timeout(Some(LIMIT))?;
    let mut body = chat("Write a long story about a lighthouse.", 150);
    body["stream"] = json!(true);
    let body = body.to_string();
    write!(
        client,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = vec![0; 256];
    client.read_exact(&mut answer)?;
    // As one hears it who is ended together with the program that started it: that is one stop, not two.
    let twice = ["-c", "kill -TERM $0; kill -INT $0", &server.pid().to_string()];
    ensure!(std::process::Command::new("sh").args(twice).status()?.success());
    let status = server.wait()?;
    client.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    ensure!(status.success(), "{status}\n{}", server.log());
    ensure!(
        answer.contains("data: [DONE]") && !answer.contains("\"error\""),
        "{answer}"
    );
    Ok(())
}

#[test]
fn a_second_signal_cuts_what_still_runs() -> Result<()> {
    let slow = operator::scripted("set step_us 100000")?;
    let mut server = Operated::start(&[("chat", &slow)])?.server;
    let body = json!({"model": "chat", "prompt": "Once", "max_tokens": 300, "temperature": 0});
    let _stream = Stream::start(&server, &body)?;
    // Those that come at once with the first one are not the second.
    eventually("it is cut", || {
        let _ended = std::process::Command::new("kill")
            .arg(server.pid().to_string())
            .status()?;
        Ok(server.log().contains("cut short by a second signal"))
    })?;
    ensure!(!server.wait()?.success());
    Ok(())
}

#[test]
fn a_stop_while_the_model_loads_ends_the_process() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let library = artifacts()?.join("libmet_scripted.so");
    let socket = folder.path().join("admin.sock");
    // One load looks at the cancel flag; the other is in a call that does not come back for minutes.
    for script in ["set load_ms 600000", "at load_model 1 hang 600000"] {
        let model = scripted::model(folder.path(), script)?;
        let path = |path: &std::path::Path| path.to_str().map(str::to_owned).context("a path in UTF-8");
        let admin = format!("unix:{}", socket.display());
        let args = [
            "--backend",
            &path(&library)?,
            "--model",
            &path(&model)?,
            "--admin",
            &admin,
        ];
        let mut server = Server::start_until("operators connect", &args, &[])?;
        server.stop()?;
        let log = server.log();
        ensure!(
            log.contains("stopped while the model was loading"),
            "{script}:\n{log}"
        );
        ensure!(!socket.exists(), "{script}: the socket is left over");
    }
    Ok(())
}

#[test]
fn a_top_p_of_zero_leaves_the_likeliest_token() -> Result<()> {
    let server = start(&[])?;
    let ask = |fields: Value| -> Result<Option<String>> {
        let mut body = chat("Write three words about the sea.", 24);
        body.as_object_mut()
            .context("an object")?
            .extend(fields.as_object().cloned().unwrap_or_default());
        Ok(text(&server.post("/v1/chat/completions", &body)?).map(str::to_owned))
    };
    let greedy = ask(json!({}))?;
    assert_eq!(ask(json!({"temperature": 2, "top_p": 0, "seed": 1}))?, greedy);
    assert_ne!(ask(json!({"temperature": 2, "top_p": 1, "seed": 1}))?, greedy);
    Ok(())
}

#[test]
fn what_cannot_be_served_is_one_clear_error() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let no_library = folder.path().join("libbad.so");
    std::fs::write(&no_library, "not a library")?;
    let cut = folder.path().join("cut.gguf");
    std::fs::write(&cut, &std::fs::read(model_path())?[..1 << 20])?;
    let path = |path: &std::path::Path| path.to_str().map(str::to_owned).context("a path in UTF-8");
    let pipe = folder.path().join("pipe");
    ensure!(
        std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()?
            .success()
    );
    let cases = BTreeMap::from([
        ("named pipe", vec!["--model".to_owned(), path(&pipe)?]),
        ("backend", vec!["--backend".to_owned(), path(&no_library)?]),
        ("built-in", vec!["--backend".to_owned(), "builtin:tpu".to_owned()]),
        ("model", vec!["--model".to_owned(), path(&cut)?]),
        ("no model", vec!["--model".to_owned(), "nowhere.gguf".to_owned()]),
    ]);
    for (name, args) in cases {
        let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
        let model = path(&model_path())?;
        if !args.contains(&"--model") {
            args.extend(["--model", &model]);
        }
        let error = Server::start(&args)
            .err()
            .with_context(|| format!("{name} was served"))?
            .to_string();
        let said: Vec<&str> = error
            .lines()
            .filter(|line| line.starts_with("met-host: "))
            .collect();
        ensure!(said.len() == 1 && !error.contains("panicked"), "{name}: {error}");
    }
    Ok(())
}

#[test]
fn the_operators_listener_tells_of_the_slot_and_its_ledger() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("admin.sock");
    let admin = format!("unix:{}", socket.display());
    let server = start(&["--admin", &admin])?;
    let get = |route: &str| -> Result<String> {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket)?;
        write!(
            stream,
            "GET {route} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let slots = get("/slots")?;
    ensure!(
        slots.contains(r#""slot":"chat""#) && slots.contains(r#""ready":true"#),
        "{slots}"
    );
    let ledger = get("/slots/chat/ledger")?;
    for owner in ["kv cache", "derived weights", "buffer arena"] {
        ensure!(ledger.contains(owner), "{ledger}");
    }
    let public = ureq::get(format!("{}/slots", server.url())).call();
    ensure!(
        matches!(public, Err(ureq::Error::StatusCode(404))),
        "the public listener knows no slots"
    );
    Ok(())
}
