//! `met-host`: reads the command line and registers the built-in backend.

use clap::Parser;
use met_host::{
    cli::{self, Cli, Command},
    loader::Builtins,
};
use std::{io::Write, process::ExitCode};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli::log() {
        // Its last lines come before ours.
        Ok(_logged) => run(&cli),
        Err(error) => Err(error),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // Nobody may read it.
            let _ = writeln!(std::io::stderr(), "met-host: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Does what the command line says. False where it has said already why the outcome is not what was asked.
fn run(cli: &Cli) -> anyhow::Result<bool> {
    let builtins = Builtins::default().with("cpu", met_cpu::root_module);
    match &cli.command {
        None => cli::serve(&cli.serve, &builtins)?,
        Some(Command::Serve(args)) => cli::serve(args, &builtins)?,
        Some(Command::Bench(args)) => cli::bench(args, &builtins)?,
        Some(Command::Fetch(args)) => cli::fetch(args)?,
        Some(Command::Operate(what)) => return cli::operate(what),
    }
    Ok(true)
}
