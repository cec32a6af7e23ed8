//! More conversations than the KV cache holds: each gets the answer that it gets alone, wherever its blocks go meanwhile.

use anyhow::{Context, Result, ensure};
use met_tests::{Server, model_path};
use serde_json::{Value, json};
use std::{fs, io::Write as _, path::Path, thread};

const CLIENTS: usize = 12;
const TOKENS: u32 = 60;

/// Slots that differ in where parked blocks go: nothing is parked in the first.
const SLOTS: [(&str, &str); 4] = [
    ("roomy", "kv_memory = \"256M\""),
    ("memory", "kv_memory = \"12M\"\npark_disk = 0"),
    ("disk", "kv_memory = \"12M\"\npark_memory = 0"),
    ("nowhere", "kv_memory = \"12M\"\npark_memory = 0\npark_disk = 0"),
];

#[test]
fn answers_are_the_same_under_pressure_wherever_parked_blocks_go() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let expected = answers(&server, "roomy")?;
    ensure!(counts(&server, folder.path(), "roomy")?["preemptions"] == 0);
    for (slot, _) in &SLOTS[1..] {
        let got = answers(&server, slot)?;
        ensure!(got == expected, "{slot}: {got:#?}\n{expected:#?}");
        let counts = counts(&server, folder.path(), slot)?;
        let count = |name: &str| {
            counts[name]
                .as_u64()
                .with_context(|| format!("no {name} in {counts}"))
        };
        ensure!(
            count("preemptions")? > 0,
            "{slot} was not under pressure: {counts}"
        );
        // Those that are not kept are computed again.
        ensure!((count("swaps")? > 0) == (*slot != "nowhere"), "{slot}: {counts}");
        ensure!(count("blocks_used")? == 0, "{slot}: {counts}");
    }
    Ok(())
}

#[test]
fn a_second_turn_finds_the_first_in_the_cache() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let history: String = (0..60).map(|at| format!("Item {at} is a thing. ")).collect();
    let first = ask(&server, "roomy", &history, 8)?;
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    ensure!(cached(&first) == Some(0), "{first}");
    let text = first["choices"][0]["text"].as_str().context("a text")?;
    let second = ask(&server, "roomy", &format!("{history}{text} And then"), 8)?;
    let (cached, prompt) = (cached(&second), second["usage"]["prompt_tokens"].as_u64());
    let (Some(cached), Some(prompt)) = (cached, prompt) else {
        anyhow::bail!("{second}")
    };
    ensure!(cached + 64 >= prompt && cached < prompt, "{cached} of {prompt}");
    let elsewhere = ask(&server, "memory", &history, 8)?;
    ensure!(elsewhere["choices"][0]["text"] == first["choices"][0]["text"]);
    Ok(())
}

fn start(folder: &Path) -> Result<Server> {
    let config = folder.join("met-host.toml");
    let mut file = fs::File::create(&config)?;
    for (name, options) in SLOTS {
        writeln!(
            file,
            "[slot.{name}]\nmodel = {:?}\nctx = 1024\nmax_seqs = 12\nthreads = 2\n{options}\n",
            model_path()
        )?;
    }
    let text = |path: &Path| path.to_str().map(str::to_owned).context("a path in UTF-8");
    let admin = format!("unix:{}", text(&folder.join("admin.sock"))?);
    Server::start(&["--config", &text(&config)?, "--admin", &admin])
}

fn answers(server: &Server, slot: &str) -> Result<Vec<String>> {
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                scope.spawn(move || {
                    let prompt = format!(
                        "Story number {client}: once upon a time, {}",
                        "far away, ".repeat(client)
                    );
                    let answer = ask(server, slot, &prompt, TOKENS)?;
                    ensure!(answer["usage"]["completion_tokens"] == TOKENS, "{answer}");
                    Ok(answer["choices"][0]["text"]
                        .as_str()
                        .context("a text")?
                        .to_owned())
                })
            })
            .collect();
        let answers = clients.into_iter().map(|client| client.join().expect("no panic"));
        answers.collect()
    })
}

fn ask(server: &Server, slot: &str, prompt: &str, max_tokens: u32) -> Result<Value> {
    let body = json!({
        "model": slot, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0.8, "seed": 7, "ignore_eos": true,
        "presence_penalty": 0.4,
    });
    server.post("/v1/completions", &body)
}

/// The scheduler's counts of a slot, once nothing of it runs.
fn counts(server: &Server, folder: &Path, slot: &str) -> Result<Value> {
    let status = std::process::Command::new(met_tests::server::artifacts()?.join("met-host"))
        .args(["status", "--json", "--admin"])
        .arg(format!("unix:{}", folder.join("admin.sock").display()))
        .output()?;
    ensure!(status.status.success(), "{}", server.log());
    let status: Value = serde_json::from_slice(&status.stdout)?;
    let slots = status["slots"].as_array().context("slots")?;
    let slot = slots
        .iter()
        .find(|found| found["slot"] == slot)
        .context("the slot")?;
    Ok(slot["counts"].clone())
}
