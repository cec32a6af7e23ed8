//! `met-host`: reads the command line and registers the built-in backend.

use clap::Parser;
use met_host::{
    cli::{self, Cli, Command},
    loader::Builtins,
};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    cli::log();
    let builtins = Builtins::default().with("cpu", met_cpu::root_module);
    let result = match &cli.command {
        None => cli::serve(&cli.serve, &builtins),
        Some(Command::Serve(args)) => cli::serve(args, &builtins),
        Some(Command::Bench(args)) => cli::bench(args, &builtins),
        Some(Command::Fetch(args)) => cli::fetch(args),
        Some(Command::Operate(what)) => match cli::operate(what) {
            Ok(true) => Ok(()),
            // It has said why.
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => Err(error),
        },
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("met-host: {error:#}");
            ExitCode::FAILURE
        }
    }
}
