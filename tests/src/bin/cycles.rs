//! Loads a backend library, generates with it, tears it down and unloads it, many times, and says what of it
//! stays in the process. Fails where a life leaves something on its ledger, or the library mapped.

use anyhow::Result;
use clap::Parser;
use met_tests::{
    cycles::{Holdings, Lives},
    fixture, plugins,
};
use std::path::{Path, PathBuf};

/// Measures what lives of a backend library leave behind.
#[derive(Parser)]
struct Arguments {
    /// `cpu`, `scripted`, or the path of a library.
    #[arg(long, default_value = "scripted")]
    backend: String,
    /// The model file; a tiny one where it isn't given.
    #[arg(long)]
    model: Option<PathBuf>,
    /// Lives that are counted.
    #[arg(long, default_value_t = 3000)]
    cycles: usize,
    /// Lives before these.
    #[arg(long, default_value_t = 50)]
    warm_up: usize,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let library = match arguments.backend.as_str() {
        "cpu" => plugins::backend("met-cpu")?,
        "scripted" => plugins::backend("met-scripted")?,
        path => PathBuf::from(path),
    };
    let model = arguments.model.unwrap_or_else(|| fixture("tiny-q4_1.gguf"));
    let (cycles, every) = (arguments.cycles, (arguments.cycles / 10).max(1));
    println!("{cycles} lives of {} with {}", library.display(), name(&model));
    println!(
        "{:>8} {:>14} {:>9} {:>8} {:>12} {:>10}",
        "life", "anonymous KiB", "mappings", "threads", "descriptors", "free keys"
    );
    let report = Lives::of(&library, &model)?.run(arguments.warm_up, cycles, |lives, now| {
        if lives % every == 0 {
            print(lives, now);
        }
    })?;
    println!(
        "anonymous memory: {:+.0} bytes a life, {:+} KiB from before the first to after the last",
        report.slope,
        (report.after.anonymous.cast_signed() - report.before.anonymous.cast_signed()) / 1024
    );
    Ok(())
}

fn print(life: usize, now: &Holdings) {
    println!(
        "{life:>8} {:>14} {:>9} {:>8} {:>12} {:>10}",
        now.anonymous / 1024,
        now.mappings,
        now.threads,
        now.descriptors,
        now.free_keys
    );
}

fn name(path: &Path) -> std::borrow::Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}
