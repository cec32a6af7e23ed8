//! The command line.

mod args;
mod bench;
mod log;
mod operate;
mod serve;
mod show;

pub use args::{BenchArgs, Cli, Command, FetchArgs, Operate, ServeArgs};
pub use bench::{bench, fetch};
pub use log::{Logged, log};
pub use operate::operate;
pub use serve::serve;

use crate::fetch::{self, ModelSource};
use std::{io::Write, path::PathBuf};

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
