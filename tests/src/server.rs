//! The real server as a child process on a free port.

use crate::plugins;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, OnceLock,
        mpsc::{self, RecvTimeoutError},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

const START_LIMIT: Duration = Duration::from_secs(60);

/// Where cargo puts the binaries and libraries of the profile that this test was built with.
pub fn artifacts() -> Result<&'static Path> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT
        .get_or_init(|| build().map_err(|e| format!("{e:#}")))
        .as_deref()
        .map_err(|e| anyhow::anyhow!(e.clone()))
}

fn executable() -> Result<PathBuf> {
    Ok(artifacts()?.join("met-host"))
}

/// Builds the server and the backend libraries; quick where `cargo test` has built them already.
fn build() -> Result<PathBuf> {
    let mut cargo = plugins::cargo();
    cargo.args([
        "build",
        "--quiet",
        "--package",
        "met-host",
        "--package",
        "met-cpu",
        "--package",
        "met-scripted",
    ]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let status = cargo
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .context("cargo didn't start")?;
    ensure!(status.success(), "cargo build failed: {status}");
    // The test runs from target/PROFILE/deps.
    let exe = std::env::current_exe()?;
    exe.ancestors()
        .find(|dir| dir.join("met-host").is_file())
        .map(Path::to_owned)
        .with_context(|| format!("no met-host above {}", exe.display()))
}

/// A server that listens. Killed when dropped.
pub struct Server {
    child: Child,
    url: String,
    log: Arc<Mutex<Vec<String>>>,
    log_reader: JoinHandle<Option<()>>,
}

impl Server {
    /// Starts `met-host --listen 127.0.0.1:0 ARGS` and waits for the line that says where it listens.
    pub fn start(args: &[&str]) -> Result<Self> {
        Self::start_with(args, &[])
    }

    /// The same with environment variables.
    pub fn start_with(args: &[&str], env: &[(&str, &str)]) -> Result<Self> {
        Self::listening(Self::spawn(args, env)?)
    }

    /// The same in a shell's surroundings: after its commands `setup`, which find the variables.
    pub fn start_after(setup: &str, args: &[&str], env: &[(&str, &str)]) -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{setup}; exec \"$0\" \"$@\"")]);
        Self::listening(Self::spawn_by(shell.arg(executable()?), args, env)?)
    }

    fn listening((mut server, lines): (Self, mpsc::Receiver<String>)) -> Result<Self> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Some(url) = line.strip_prefix("listening on ") {
                        server.url = url.to_owned();
                        return Ok(server);
                    }
                }
                Err(RecvTimeoutError::Timeout) => bail!("met-host did not listen in time:\n{}", server.log()),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = server.wait()?;
                    bail!(
                        "met-host ended with {status} before it listened:\n{}",
                        server.log()
                    )
                }
            }
        }
    }

    /// Starts it and waits until its log has `line`, though it may not listen yet.
    pub fn start_until(line: &str, args: &[&str], env: &[(&str, &str)]) -> Result<Self> {
        let (server, _) = Self::spawn(args, env)?;
        let deadline = Instant::now() + START_LIMIT;
        while !server.log().contains(line) {
            ensure!(
                Instant::now() < deadline,
                "no {line:?} in time:\n{}",
                server.log()
            );
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Starts it; its standard output comes line by line.
    fn spawn(args: &[&str], env: &[(&str, &str)]) -> Result<(Self, mpsc::Receiver<String>)> {
        Self::spawn_by(&mut Command::new(executable()?), args, env)
    }

    fn spawn_by(
        command: &mut Command,
        args: &[&str],
        env: &[(&str, &str)],
    ) -> Result<(Self, mpsc::Receiver<String>)> {
        let mut child = command
            .args(["--listen", "127.0.0.1:0"])
            .args(args)
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("met-host didn't start")?;
        let (sender, lines) = mpsc::channel();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        thread::spawn(move || {
            for line in BufReader::new(stdout.into_iter().next()?)
                .lines()
                .map_while(Result::ok)
            {
                sender.send(line).ok()?;
            }
            Some(())
        });
        let kept = log.clone();
        let log_reader = thread::spawn(move || {
            for line in BufReader::new(stderr.into_iter().next()?)
                .lines()
                .map_while(Result::ok)
            {
                kept.lock().ok()?.push(line);
            }
            Some(())
        });
        let server = Self {
            child,
            url: String::new(),
            log,
            log_reader,
        };
        Ok((server, lines))
    }

    /// `http://ADDR:PORT`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// `ADDR:PORT`.
    pub fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// The JSON of an answer, which must be a success.
    pub fn post(&self, route: &str, body: &Value) -> Result<Value> {
        let mut answer = ureq::post(format!("{}{route}", self.url)).send_json(body)?;
        Ok(answer.body_mut().read_json()?)
    }

    /// The value of a metric, of the first model that has it.
    pub fn metric(&self, name: &str) -> Result<f64> {
        let mut answer = ureq::get(format!("{}/metrics", self.url)).call()?;
        let page = answer.body_mut().read_to_string()?;
        let line = page.lines().find(|line| line.starts_with(name));
        let line = line.with_context(|| format!("no {name} in\n{page}"))?;
        Ok(line.rsplit(' ').next().context("a value")?.parse()?)
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged: all of it after [`wait`](Self::wait), before that what was read so far.
    pub fn log(&self) -> String {
        self.log.lock().map(|lines| lines.join("\n")).unwrap_or_default()
    }

    /// Sends SIGTERM and waits for the end.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        let status = Command::new("kill").arg(self.pid().to_string()).status()?;
        ensure!(status.success(), "kill failed: {status}");
        self.wait()
    }

    /// Waits for the end of the process and of its log, at most a minute.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        let deadline = Instant::now() + START_LIMIT;
        while Instant::now() < deadline {
            // The last lines may still be on their way when the process is gone.
            if let Some(status) = self.child.try_wait()?
                && self.log_reader.is_finished()
            {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(20));
        }
        bail!("met-host did not end in time:\n{}", self.log())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail where it has ended already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
