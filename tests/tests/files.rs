//! Files that change under the real server: nothing that it serves is read from them any more.

use anyhow::{Context, Result, ensure};
use met_tests::{Server, fixture, server::artifacts};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::FileExt,
    path::Path,
};

/// What befalls a file, and how it is said.
type Change = (&'static str, fn(&Path) -> std::io::Result<()>);

const CHANGES: [Change; 5] = [
    ("overwritten in place", overwrite),
    ("cut to nothing", |file| write(file)?.set_len(0)),
    ("replaced by another", |file| {
        let other = file.with_extension("new");
        fs::write(&other, "another file")?;
        fs::rename(other, file)
    }),
    ("renamed", |file| fs::rename(file, file.with_extension("away"))),
    ("removed", |file| fs::remove_file(file)),
];

fn write(file: &Path) -> std::io::Result<fs::File> {
    fs::File::options().write(true).open(file)
}

fn overwrite(file: &Path) -> std::io::Result<()> {
    let len = fs::metadata(file)?.len();
    write(file)?.write_all_at(&vec![0xA5; len as usize], 0)
}

#[test]
fn an_unquantised_model_and_its_library_change_on_disk_and_every_answer_stays_the_same() -> Result<()> {
    answers_stay_the_same("tiny-f16.gguf")
}

#[test]
fn a_quantised_model_and_its_library_change_on_disk_and_every_answer_stays_the_same() -> Result<()> {
    answers_stay_the_same("tiny-q4_1.gguf")
}

/// On a busy machine a stream may be over before its files have changed; then another one is tried.
const TRIES: usize = 20;

fn answers_stay_the_same(model: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let library = artifacts()?.join("libmet_cpu.so");
    let files = [
        (fixture(model), folder.path().join("model.gguf")),
        (library, folder.path().join("libbackend.so")),
    ];
    let restore = || {
        files
            .iter()
            .try_for_each(|(from, to)| fs::copy(from, to).map(drop))
    };
    restore()?;
    let [model, library] = [0, 1].map(|i| files[i].1.to_str().unwrap_or_default());
    let mut server = Server::start(&["--model", model, "--backend", library, "--threads", "2"])?;
    let undisturbed = Stream::start(&server)?.rest()?;
    ensure!(
        undisturbed.iter().any(|choice| choice.len() > 100),
        "{undisturbed:?}"
    );
    let maps = fs::read_to_string(format!("/proc/{}/maps", server.pid()))?;
    ensure!(
        !maps.contains("model.gguf") && !maps.contains("libbackend.so"),
        "{maps}"
    );

    for (change, make) in CHANGES {
        let mut was_under_a_stream = false;
        for _ in 0..TRIES {
            restore()?;
            let stream = Stream::start(&server)?;
            for (_, file) in &files {
                make(file).with_context(|| format!("{} can't be {change}", file.display()))?;
            }
            was_under_a_stream = running(&server)? > 0.0;
            ensure!(
                stream.rest()? == undisturbed,
                "a stream under which they were {change}"
            );
            if was_under_a_stream {
                break;
            }
        }
        ensure!(
            was_under_a_stream,
            "{TRIES} streams ended before the files were {change}"
        );
        ensure!(
            Stream::start(&server)?.rest()? == undisturbed,
            "an answer after they were {change}"
        );
        restore()?;
    }
    let status = server.stop()?;
    let log = server.log();
    ensure!(status.success() && log.contains("torn down"), "{status}\n{log}");
    Ok(())
}

/// A stream of several choices, of which the first event has come.
struct Stream {
    events: std::io::Lines<BufReader<ureq::BodyReader<'static>>>,
    first: Value,
}

const CHOICES: usize = 4;

impl Stream {
    fn start(server: &Server) -> Result<Self> {
        let answer = ureq::post(format!("{}/v1/completions", server.url())).send_json(json!({
            "model": "chat", "prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": true,
            "seed": 7, "n": CHOICES, "logprobs": 2, "stream": true,
        }))?;
        let mut events = BufReader::new(answer.into_body().into_reader()).lines();
        let first = next(&mut events)?.context("an empty stream")?;
        Ok(Self { events, first })
    }

    /// Of each choice: every token with its log-probability, and the text.
    fn rest(mut self) -> Result<Vec<String>> {
        let mut choices = vec![(String::new(), String::new()); CHOICES];
        let mut event = Some(self.first);
        while let Some(chunk) = event {
            let choice = &chunk["choices"][0];
            let index = choice["index"].as_u64().context("no index")? as usize;
            let (tokens, text) = &mut choices[index];
            text.push_str(choice["text"].as_str().context("no text")?);
            for logprob in choice["logprobs"]["token_logprobs"]
                .as_array()
                .into_iter()
                .flatten()
            {
                tokens.push_str(&format!("{logprob} "));
            }
            event = next(&mut self.events)?;
        }
        Ok(choices.into_iter().map(|(tokens, text)| tokens + &text).collect())
    }
}

/// The next event; `None` at the stream's proper end.
fn next(events: &mut impl Iterator<Item = std::io::Result<String>>) -> Result<Option<Value>> {
    loop {
        let line = events.next().context("the stream was cut off")??;
        match line.strip_prefix("data: ") {
            None => {}
            Some("[DONE]") => return Ok(None),
            Some(event) => {
                let event: Value = serde_json::from_str(event)?;
                ensure!(event.get("error").is_none(), "{event}");
                return Ok(Some(event));
            }
        }
    }
}

fn running(server: &Server) -> Result<f64> {
    let mut answer = ureq::get(format!("{}/metrics", server.url())).call()?;
    let page = answer.body_mut().read_to_string()?;
    let line = page.lines().find(|line| line.starts_with("met_requests_running"));
    let value = line.and_then(|line| line.rsplit(' ').next());
    Ok(value.context("no such metric")?.parse()?)
}
