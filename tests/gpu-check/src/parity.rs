//! Every operation of the CUDA backend against the plain reference, check by check.

use anyhow::{Context, Result};
use met_cuda::CudaOps;
use met_kernels::{Ledger, optest};
use serde_json::{Value, json};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Instant,
};

/// Runs the checks, each on kernels and memory of its own, so that one that fails says nothing of the others. `only`
/// has the names of checks, where not all are wanted.
pub fn run(only: Option<&[&str]>) -> Result<Value> {
    let mut results = Vec::new();
    let wanted = |name: &str| only.is_none_or(|only| only.contains(&name));
    for (name, check) in optest::checks::<CudaOps>()
        .into_iter()
        .filter(|(name, _)| wanted(name))
    {
        let ledger = Ledger::default();
        let mut ops = CudaOps::new(0, &ledger).context("the card can't be opened")?;
        let began = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| check(&mut ops, &ledger)));
        let problem = outcome.err().map(|panic| message(&*panic)).or_else(|| {
            let closed = ops.shutdown().err().map(|error| error.to_string());
            drop(ops);
            closed.or_else(|| (ledger.total() != (0, 0)).then(|| "the ledger is not empty".to_owned()))
        });
        results.push(json!({
            "check": name,
            "passed": problem.is_none(),
            "problem": problem,
            "s": began.elapsed().as_secs_f64(),
        }));
    }
    let failed = results.iter().filter(|result| result["passed"] == false).count();
    Ok(json!({"checks": results.len(), "failed": failed, "results": results}))
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panicked").to_owned()
}
