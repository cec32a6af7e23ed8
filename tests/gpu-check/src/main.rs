//! What only a card can tell, in at most eight minutes: parity of every operation, the model's tokens against the CPU
//! backend's, rates beside the card's own limits, its free memory over load and teardown, and a live swap.
//!
//! Each part runs in a process of its own, with an end: what hangs, crashes or loses the card takes no other part
//! along. What comes is one JSON object, and a table for people.

mod card;
mod cycles;
mod limits;
mod parity;
mod rates;
mod swap;
mod table;
mod tokens;

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use met_host::loader::{BackendSource, Builtins};
use serde_json::{Value, json};
use std::{
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How often it is looked whether a part has ended.
const POLL: Duration = Duration::from_millis(20);

/// Checks the CUDA backend on this machine's card.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The model file; SmolLM2-135M-Instruct is what the figures are of.
    #[arg(long)]
    model: PathBuf,
    /// The folder of `libmet_cuda.so` and `libmet_cpu.so`; else that of this program.
    #[arg(long)]
    libraries: Option<PathBuf>,
    /// Only enough of each part to see that it runs: for a simulated card.
    #[arg(long)]
    small: bool,
    /// Where the JSON object goes, besides standard output.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Only this part, in this process.
    #[arg(long)]
    part: Option<Part>,
}

/// The parts, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Card,
    Parity,
    Tokens,
    Rates,
    Cycles,
    Swap,
}

/// What the parts work on.
struct Setup {
    model: PathBuf,
    cpu: PathBuf,
    cuda: PathBuf,
}

impl Part {
    /// How long it may take: together less than eight minutes.
    fn limit(self) -> Duration {
        Duration::from_secs(match self {
            Self::Card => 20,
            Self::Parity => 120,
            Self::Tokens => 90,
            Self::Rates => 90,
            Self::Cycles => 90,
            Self::Swap => 60,
        })
    }

    fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn run(self, setup: &Setup, small: bool) -> Result<Value> {
        match self {
            Self::Card => card::describe(),
            Self::Parity => parity::run(small.then_some(&["rms_norm", "route"])),
            Self::Tokens => tokens::run(setup, if small { 2 } else { 64 }),
            Self::Rates => rates::run(
                setup,
                &if small {
                    rates::Size::small()
                } else {
                    rates::Size::full()
                },
            ),
            Self::Cycles => cycles::run(setup, if small { 2 } else { 20 }),
            Self::Swap => swap::run(
                setup,
                if small {
                    swap::Size::SMALL
                } else {
                    swap::Size::FULL
                },
            ),
        }
    }
}

impl Setup {
    fn cpu(&self) -> Result<BackendSource> {
        library(&self.cpu)
    }

    fn cuda(&self) -> Result<BackendSource> {
        library(&self.cuda)
    }

    fn model_path(&self) -> Result<&str> {
        self.model.to_str().context("the model's path is not UTF-8")
    }
}

fn library(path: &Path) -> Result<BackendSource> {
    let path = path.to_str().context("the library's path is not UTF-8")?;
    Ok(BackendSource::parse(path, &Builtins::default())?)
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let folder = match &arguments.libraries {
        Some(folder) => folder.clone(),
        None => {
            let program = std::env::current_exe()?;
            program
                .parent()
                .context("this program is in no folder")?
                .to_owned()
        }
    };
    let setup = Setup {
        model: arguments.model.clone(),
        cpu: folder.join("libmet_cpu.so"),
        cuda: folder.join("libmet_cuda.so"),
    };
    for file in [&setup.model, &setup.cpu, &setup.cuda] {
        ensure!(file.exists(), "{} is not there", file.display());
    }
    if let Some(part) = arguments.part {
        println!("{}", or_error(part.run(&setup, arguments.small)));
        return Ok(());
    }
    let began = Instant::now();
    let mut all = json!({});
    for part in Part::value_variants() {
        let one = in_a_process(*part, &setup, &folder, arguments.small);
        eprint!("{}", table::of(&part.name(), &one));
        all[part.name()] = one;
        // Without a card there is nothing to check.
        if *part == Part::Card && all["card"].get("error").is_some() {
            break;
        }
    }
    all["s"] = json!(began.elapsed().as_secs_f64());
    let text = serde_json::to_string_pretty(&all)?;
    println!("{text}");
    if let Some(path) = &arguments.json {
        std::fs::write(path, &text).with_context(|| path.display().to_string())?;
    }
    let failed: Vec<String> = all
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, part)| has_failed(part))
        .map(|(name, _)| name.clone())
        .collect();
    match failed.is_empty() {
        true => Ok(()),
        false => bail!("failed: {}", failed.join(", ")),
    }
}

fn or_error(result: Result<Value>) -> Value {
    result.unwrap_or_else(|error| json!({"error": format!("{error:#}")}))
}

fn has_failed(part: &Value) -> bool {
    part.get("error").is_some() || part["failed"].as_u64() > Some(0)
}

/// What a part gives; `{"error": …}` where it fails, or takes longer than it may.
fn in_a_process(part: Part, setup: &Setup, folder: &Path, small: bool) -> Value {
    let began = Instant::now();
    let child = start(part, setup, folder, small);
    let mut value = or_error(child.and_then(|child| wait(child, part.limit())));
    value["s"] = json!(began.elapsed().as_secs_f64());
    value
}

fn start(part: Part, setup: &Setup, folder: &Path, small: bool) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["--part", &part.name(), "--model"])
        .arg(&setup.model)
        .arg("--libraries")
        .arg(folder)
        // What went wrong is to be told, not where.
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if small {
        command.arg("--small");
    }
    Ok(command.spawn()?)
}

fn wait(mut child: Child, limit: Duration) -> Result<Value> {
    let (out, error) = (child.stdout.take().context("no output")?, child.stderr.take());
    let out = thread::spawn(|| all_of(out));
    let error = thread::spawn(|| error.map(all_of).unwrap_or_default());
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if began.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            bail!("it took longer than {} s", limit.as_secs());
        }
        thread::sleep(POLL);
    };
    let text = |reader: thread::JoinHandle<String>| reader.join().unwrap_or_default();
    let (out, error) = (text(out), text(error));
    let last: Vec<&str> = error.lines().rev().take(20).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    ensure!(status.success(), "{status}: {}", last.join("\n"));
    serde_json::from_str(out.trim()).with_context(|| format!("it printed {out:?}"))
}

fn all_of(mut from: impl Read) -> String {
    let mut bytes = Vec::new();
    // What came before an error is told all the same.
    let _ = from.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_together_end_within_eight_minutes() {
        let all: Duration = Part::value_variants().iter().map(|part| part.limit()).sum();
        assert!(all < Duration::from_secs(8 * 60), "{all:?}");
    }
}
