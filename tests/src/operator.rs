//! The operators' side of a server: its routes, its events, and the command line as their client.

use crate::{Server, fixture, plugins, server::artifacts};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, Lines, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Longest wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A server with an operators' socket and a configuration file of its own.
pub struct Operated {
    /// The process.
    pub server: Server,
    folder: TempDir,
}

/// An answer of the operators' listener.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The body.
    pub json: Value,
}

/// What a run of the command line said.
#[derive(Debug)]
pub struct Told {
    /// Whether the exit code was 0.
    pub success: bool,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub error: String,
}

/// The server's events from a moment on.
pub struct Events(Lines<BufReader<UnixStream>>);

impl Operated {
    /// A server with these slots, as the configuration file has them.
    pub fn start(slots: &[(&str, &Value)]) -> Result<Self> {
        Self::start_with("", slots)
    }

    /// The same with lines before the slots.
    pub fn start_with(head: &str, slots: &[(&str, &Value)]) -> Result<Self> {
        Self::start_in(&[], head, slots)
    }

    /// The same with environment variables.
    pub fn start_in(env: &[(&str, &str)], head: &str, slots: &[(&str, &Value)]) -> Result<Self> {
        Self::start_by(head, slots, |args| Server::start_with(args, env))
    }

    /// The same in a shell's surroundings, after its commands `setup`.
    pub fn start_after(setup: &str, slots: &[(&str, &Value)]) -> Result<Self> {
        Self::start_by("", slots, |args| Server::start_after(setup, args, &[]))
    }

    fn start_by(
        head: &str,
        slots: &[(&str, &Value)],
        start: impl FnOnce(&[&str]) -> Result<Server>,
    ) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let config = folder.path().join("met.toml");
        fs::write(&config, configuration(head, slots))?;
        let admin = format!("unix:{}", folder.path().join("admin.sock").display());
        let config = config.to_str().context("a path in UTF-8")?;
        let server = start(&["--config", config, "--admin", &admin])?;
        Ok(Self { server, folder })
    }

    /// Where operators connect, as `--admin` takes it.
    pub fn admin(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    /// Writes the configuration file anew.
    pub fn configure(&self, text: &str) -> Result<()> {
        Ok(fs::write(self.configuration_file(), text)?)
    }

    /// Where the configuration file is.
    pub fn configuration_file(&self) -> PathBuf {
        self.folder.path().join("met.toml")
    }

    /// Asks the operators' listener.
    pub fn send(&self, method: &str, route: &str, body: &Value) -> Result<Reply> {
        let mut stream = UnixStream::connect(self.socket())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        send(&mut stream, method, route, body, "")
    }

    /// Swaps a slot and gives the report.
    pub fn swap(&self, slot: &str, body: &Value) -> Result<Value> {
        let reply = self.send("POST", &format!("/slots/{slot}/swap"), body)?;
        ensure!(reply.status == 200, "{reply:?}");
        Ok(reply.json)
    }

    /// Begins to swap a slot and gives the swap's number.
    pub fn begin_swap(&self, slot: &str, body: &Value) -> Result<u64> {
        let reply = self.send("POST", &format!("/slots/{slot}/swap?wait=false"), body)?;
        ensure!(reply.status == 202, "{reply:?}");
        reply.json["id"].as_u64().context("no id")
    }

    /// Waits for a swap's report.
    pub fn report(&self, id: u64) -> Result<Value> {
        let mut report = Value::Null;
        eventually(&format!("the report of swap {id}"), || {
            let reply = self.send("GET", &format!("/swaps/{id}"), &Value::Null)?;
            report = reply.json;
            Ok(reply.status == 200)
        })?;
        Ok(report)
    }

    /// What `GET /slots` says of a slot.
    pub fn slot(&self, name: &str) -> Result<Value> {
        let reply = self.send("GET", "/slots", &Value::Null)?;
        let slots = reply.json["slots"].as_array().cloned().unwrap_or_default();
        let slot = slots.into_iter().find(|slot| slot["slot"] == name);
        slot.with_context(|| format!("no slot {name}"))
    }

    /// Everything that happens from now on.
    pub fn events(&self) -> Result<Events> {
        let mut stream = UnixStream::connect(self.socket())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        // Of this version bodies come as they are, and end with the connection.
        write!(stream, "GET /events HTTP/1.0\r\n\r\n")?;
        let mut lines = BufReader::new(stream).lines();
        for line in lines.by_ref() {
            if line?.is_empty() {
                return Ok(Events(lines));
            }
        }
        anyhow::bail!("no answer")
    }

    /// Runs `met-host ARGS --admin …`.
    pub fn command(&self, args: &[&str]) -> Result<Told> {
        let output = Command::new(artifacts()?.join("met-host"))
            .args(args)
            .args(["--admin", &self.admin()])
            .output()?;
        Ok(Told {
            success: output.status.success(),
            out: String::from_utf8(output.stdout)?,
            error: String::from_utf8(output.stderr)?,
        })
    }

    /// The greedy continuation of a fixed prompt by a slot's model.
    pub fn answer(&self, slot: &str) -> Result<String> {
        let body = json!({"model": slot, "prompt": "Once upon a time", "max_tokens": 24, "temperature": 0});
        let answer = self.server.post("/v1/completions", &body)?;
        let text = answer["choices"][0]["text"].as_str();
        Ok(text.with_context(|| format!("no text in {answer}"))?.to_owned())
    }

    /// The names of the models that are served.
    pub fn models(&self) -> Result<Vec<String>> {
        let mut answer = ureq::get(format!("{}/v1/models", self.server.url())).call()?;
        let answer: Value = answer.body_mut().read_json()?;
        let models = answer["data"].as_array().into_iter().flatten();
        Ok(models
            .filter_map(|model| model["id"].as_str().map(str::to_owned))
            .collect())
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("admin.sock")
    }
}

impl Events {
    /// The next one.
    fn next(&mut self) -> Result<Value> {
        loop {
            let line = self.0.next().context("no more events")??;
            if let Some(data) = line.strip_prefix("data:") {
                return Ok(serde_json::from_str(data.trim())?);
            }
        }
    }

    /// Waits for one of this name and of this step, where it is of a step.
    pub fn wait_for(&mut self, name: &str, step: Option<&str>) -> Result<Value> {
        loop {
            let event = self.next()?;
            if event["event"] == name && event["step"].as_str() == step {
                return Ok(event);
            }
        }
    }
}

/// Sends a request over a new connection and reads its answer. `header` is one more line of the head.
pub fn send(
    mut stream: impl Read + Write,
    method: &str,
    route: &str,
    body: &Value,
    header: &str,
) -> Result<Reply> {
    let body = match body {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    write!(
        stream,
        "{method} {route} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{header}content-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    let json = serde_json::from_str(body).with_context(|| format!("no JSON: {answer}"))?;
    Ok(Reply { status, json })
}

/// A configuration file with these slots.
pub fn configuration(head: &str, slots: &[(&str, &Value)]) -> String {
    // Texts, numbers and booleans are written alike in JSON and in TOML.
    fn value(json: &Value) -> String {
        match json.as_object() {
            None => json.to_string(),
            Some(fields) => {
                let fields: Vec<String> = fields
                    .iter()
                    .map(|(k, v)| format!("{k} = {}", value(v)))
                    .collect();
                format!("{{ {} }}", fields.join(", "))
            }
        }
    }
    let mut text = format!("{head}\n");
    for (name, slot) in slots {
        text += &format!("\n[slot.{name}]\n");
        for (key, json) in slot.as_object().into_iter().flatten() {
            text += &format!("{key} = {}\n", value(json));
        }
    }
    text
}

/// A slot that the scripted backend serves, with printable text and 16 sequences at a time.
pub fn scripted(script: &str) -> Result<Value> {
    static LIBRARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| plugins::backend("met-scripted").map_err(|e| format!("{e:#}")));
    let library = library.as_ref().map_err(|e| anyhow::anyhow!(e.clone()))?;
    // The tokens of the printable characters.
    let script = format!("set first 3\nset last 97\n{script}");
    Ok(json!({"backend": library, "model": fixture("tiny-q4_1.gguf"), "options": {"script": script}}))
}

/// A slot that the built-in CPU backend serves.
pub fn builtin(model: &Path) -> Value {
    json!({"backend": "builtin:cpu", "model": model, "threads": 2, "kv_memory": "64M"})
}

/// A slot that the CPU backend's library serves.
pub fn library(model: &Path) -> Result<Value> {
    Ok(with(
        &builtin(model),
        json!({"backend": artifacts()?.join("libmet_cpu.so")}),
    ))
}

/// A JSON object with the fields of another one besides, or instead.
pub fn with(object: &Value, more: Value) -> Value {
    let mut all = object.clone();
    for (key, value) in more.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    all
}

/// Waits until it holds.
///
/// # Errors
/// Where it fails, or does not come to hold within [`PATIENCE`].
pub fn eventually(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !holds()? {
        ensure!(Instant::now() < end, "not in time: {what}");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
