//! The command line.

mod args;
mod bench;
mod operate;
mod serve;
mod show;

pub use args::{BenchArgs, Cli, Command, FetchArgs, Operate, ServeArgs};
pub use bench::{bench, fetch};
pub use operate::operate;
pub use serve::serve;

use crate::fetch::{self, ModelSource};
use std::{
    io::{IsTerminal, Write},
    path::PathBuf,
};
use tracing_subscriber::EnvFilter;

/// Sends log lines to standard error; `MET_LOG` says which (`debug`, `met_host::http=trace`, …).
pub fn log() {
    let filter = EnvFilter::try_from_env("MET_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}

/// Prints a line at once. False where nobody reads standard output any more, which is no reason to give up what was
/// begun.
fn say(line: impl std::fmt::Display) -> bool {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).is_ok()
}

/// The file of the model that `--model` names, or of the default one; fetched where it has to be.
fn model(text: Option<&str>) -> anyhow::Result<PathBuf> {
    let source = text
        .map(ModelSource::parse)
        .transpose()?
        .unwrap_or(ModelSource::Default);
    Ok(fetch::resolve(&source)?)
}
