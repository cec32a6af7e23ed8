//! Whole lives of a backend library, one after another, and what the process holds after each.

use crate::Bytes;
use anyhow::{Context, Result, ensure};
use met_backend_api::{ModelSpec, OpenSpec};
use met_host::{
    engine::EngineOptions,
    loader::{BackendSource, Builtins, Services, Unload},
    request::{Event, FinishReason, Request},
    slot::{LOAD_DEADLINE, LoadSpec, Slots, load},
};
use std::{fs, path::Path, time::Duration};

/// How long a life may take to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// Tokens that each life generates.
const TOKENS: u32 = 4;

/// What the process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Bytes of anonymous memory, resident or swapped out.
    pub anonymous: u64,
    /// Entries of its memory map.
    pub mappings: usize,
    /// Of these, parts of staged libraries.
    pub staged: usize,
    /// Threads.
    pub threads: usize,
    /// Open descriptors.
    pub descriptors: usize,
    /// Thread-specific keys that can still be taken.
    pub free_keys: usize,
}

/// What a number of lives did to the process.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Lives that were counted.
    pub cycles: usize,
    /// Before the first of them.
    pub before: Holdings,
    /// After the last.
    pub after: Holdings,
    /// Anonymous bytes a life: the slope of the straight line that fits all lives best.
    pub slope: f64,
}

/// Lives of one library with one model.
pub struct Lives {
    spec: LoadSpec,
    runtime: tokio::runtime::Runtime,
}

impl Lives {
    /// Of the library and the model in these files.
    pub fn of(library: &Path, model: &Path) -> Result<Self> {
        let text = |path: &Path| path.to_str().map(str::to_owned).context("a path in UTF-8");
        Ok(Self {
            spec: LoadSpec {
                backend: BackendSource::parse(&text(library)?, &Builtins::default())?,
                device: OpenSpec {
                    threads: 2,
                    ..OpenSpec::default()
                },
                model: ModelSpec {
                    path: text(model)?.into(),
                    max_rows: 4,
                    max_batch_tokens: 64,
                    kv_bytes: 4 << 20,
                    ..ModelSpec::default()
                },
                engine: EngineOptions::default(),
                deadline: LOAD_DEADLINE,
            },
            runtime: tokio::runtime::Builder::new_current_thread().build()?,
        })
    }

    /// Lives `warm_up` lives, in which is made what is made once, then `cycles` that are counted. `each` is told
    /// how many of these are over, and what the process holds then.
    pub fn run(
        &self,
        warm_up: usize,
        cycles: usize,
        mut each: impl FnMut(usize, &Holdings),
    ) -> Result<Report> {
        let mut anonymous = Vec::with_capacity(cycles);
        for _ in 0..warm_up {
            self.live()?;
        }
        let before = Holdings::now()?;
        let mut after = before;
        each(0, &before);
        for cycle in 0..cycles {
            self.live().with_context(|| format!("cycle {cycle}"))?;
            after = Holdings::now()?;
            anonymous.push(after.anonymous as f64);
            each(cycle + 1, &after);
        }
        Ok(Report {
            cycles,
            before,
            after,
            slope: slope(&anonymous),
        })
    }

    /// Load, step, teardown, unload.
    fn live(&self) -> Result<()> {
        let slot = Slots::new().add("chat");
        let generation = load::<Bytes>(&slot, &self.spec, &Services::default())?;
        let mut stream = generation.engine().submit(Request {
            prompt: vec![1, 2, 3],
            max_tokens: TOKENS,
            ..Request::default()
        })?;
        let mut last = None;
        self.runtime.block_on(async {
            while let Some(event) = stream.next().await {
                last = Some(event);
            }
        });
        ensure!(last == Some(Event::Finished(FinishReason::Length)), "{last:?}");
        let end = generation.shutdown(PATIENCE);
        ensure!(end.teardown.is_clean(), "{:?}", end.teardown);
        let left = end
            .teardown
            .memory_after
            .map(|memory| (memory.ledger_bytes, memory.ledger_count));
        ensure!(left == Some((0, 0)), "the ledger holds {left:?}");
        ensure!(end.unload == Some(Unload::Unmapped), "{:?}", end.unload);
        Ok(())
    }
}

impl Holdings {
    /// Now.
    pub fn now() -> Result<Self> {
        let maps = fs::read_to_string("/proc/self/maps")?;
        let entries = |folder| -> Result<usize> { Ok(fs::read_dir(folder)?.count()) };
        Ok(Self {
            anonymous: anonymous()?,
            mappings: maps.lines().count(),
            staged: maps.lines().filter(|line| line.contains("memfd:met-")).count(),
            threads: threads()?,
            descriptors: entries("/proc/self/fd")?,
            free_keys: free_keys(),
        })
    }
}

/// Those that don't exit: one that was joined may be listed a moment longer.
fn threads() -> Result<usize> {
    const PF_EXITING: u32 = 4;
    let mut count = 0;
    for task in fs::read_dir("/proc/self/task")? {
        let Ok(stat) = fs::read_to_string(task?.path().join("stat")) else {
            continue;
        };
        // The name may have spaces, and is in parentheses.
        let after_name = stat.rsplit_once(')').map(|(_, fields)| fields.split_whitespace());
        let flags = after_name
            .and_then(|mut fields| fields.nth(6))
            .context("no flags")?;
        count += usize::from(flags.parse::<u32>()? & PF_EXITING == 0);
    }
    Ok(count)
}

/// From the page tables: the counters in `status` may be off by some pages a processor.
fn anonymous() -> Result<u64> {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup")?;
    let kilobytes = |name: &str| -> Result<u64> {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name));
        let value = line.and_then(|line| line.trim().strip_suffix(" kB"));
        Ok(value.with_context(|| format!("no {name}"))?.parse()?)
    };
    Ok((kilobytes("Anonymous:")? + kilobytes("Swap:")?) << 10)
}

fn free_keys() -> usize {
    let mut taken = Vec::new();
    let mut key = 0;
    // SAFETY: `key` is written where the call succeeds; every key taken is deleted.
    unsafe {
        while libc::pthread_key_create(&mut key, None) == 0 {
            taken.push(key);
        }
        for key in &taken {
            libc::pthread_key_delete(*key);
        }
    }
    taken.len()
}

/// Least squares over the index.
fn slope(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let middle = (count - 1.0) / 2.0;
    let mean = values.iter().sum::<f64>() / count;
    let (mut covariance, mut variance) = (0.0, 0.0);
    for (index, value) in values.iter().enumerate() {
        let x = index as f64 - middle;
        covariance += x * (value - mean);
        variance += x * x;
    }
    if variance > 0.0 {
        covariance / variance
    } else {
        0.0
    }
}
