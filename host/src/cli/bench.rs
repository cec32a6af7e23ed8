//! `met-host bench` and `met-host fetch`.

use super::{BenchArgs, FetchArgs, model, say};
use crate::{
    bench,
    loader::{BackendSource, Builtins},
};
use anyhow::Result;

/// Measures and prints.
pub fn bench(args: &BenchArgs, builtins: &Builtins) -> Result<()> {
    let plan = bench::Plan {
        backend: BackendSource::parse(&args.backend, builtins)?,
        model: model(args.model.as_deref())?,
        prompts: args.n_prompt.clone(),
        generations: args.n_gen.clone(),
        depths: args.n_depth.clone(),
        threads: args.threads.clone(),
        repetitions: args.repetitions,
        quantize: args.quantize.clone().unwrap_or_default(),
    };
    let rows = bench::run(&plan)?;
    if args.json {
        say(serde_json::to_string_pretty(&rows)?);
    } else {
        say(bench::table(&rows).trim_end());
    }
    Ok(())
}

/// Gets a model and prints its path.
pub fn fetch(args: &FetchArgs) -> Result<()> {
    say(model(args.model.as_deref())?.display());
    Ok(())
}
