//! A live swap CPU → CUDA → CPU while clients stream, and their longest pause.

use crate::Setup;
use anyhow::{Context, Result, bail, ensure};
use futures_util::StreamExt;
use met_backend_api::{ModelSpec, OpenSpec};
use met_host::{
    engine::EngineOptions,
    loader::BackendSource,
    request::{Event, Request},
    slot::{
        LOAD_DEADLINE, LoadSpec, ModelText, Slots,
        swap::{InFlight, Order, Plan, Supervisor, SwapOrder, SwapReport},
    },
    text::Text,
};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::runtime::Runtime;

/// How long the end may take.
const END: Duration = Duration::from_secs(30);

/// How much is done.
#[derive(Clone, Copy)]
pub struct Size {
    /// Streams at a time.
    pub clients: usize,
    /// Tokens of an answer.
    pub tokens: u32,
    /// How long clients stream before, between and after the swaps.
    pub between: Duration,
}

impl Size {
    /// For a card.
    pub const FULL: Self = Self {
        clients: 4,
        tokens: 128,
        between: Duration::from_secs(3),
    };
    /// To see that it runs.
    pub const SMALL: Self = Self {
        clients: 2,
        tokens: 16,
        between: Duration::from_millis(200),
    };
}

/// What a client had.
#[derive(Default)]
struct Heard {
    answers: usize,
    tokens: usize,
    longest_pause: Duration,
}

type Slot = Arc<Supervisor<Text>>;

/// There and back, requests carried over.
pub fn run(setup: &Setup, size: Size) -> Result<Value> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let supervisor: Slot = Supervisor::new(Arc::new(Slots::new()));
    let result = under_load(setup, size, &runtime, &supervisor);
    let ends = supervisor.shutdown(END);
    let report = result?;
    for (_, end) in &ends {
        ensure!(end.teardown.is_clean(), "at the end: {:?}", end.teardown);
    }
    Ok(report)
}

fn under_load(setup: &Setup, size: Size, runtime: &Runtime, supervisor: &Slot) -> Result<Value> {
    let order = |backend: BackendSource| -> Result<SwapOrder> {
        let spec = spec(setup, backend, size)?;
        Ok(SwapOrder {
            plan: Some(Plan::SideBySide),
            in_flight: InFlight::Carry,
            ..SwapOrder::new(spec)
        })
    };
    perform(runtime, supervisor, Order::Load(order(setup.cpu()?)?))?;
    let is_done = Arc::new(AtomicBool::new(false));
    let text = Text::from_checkpoint(&setup.model)?;
    let prompt = text
        .tokens("Once upon a time, in a small village at the edge of a forest,")
        .map_err(anyhow::Error::msg)?;
    let clients: Vec<_> = (0..size.clients)
        .map(|client| {
            let (supervisor, is_done, mut prompt) = (supervisor.clone(), is_done.clone(), prompt.clone());
            let turn = client % prompt.len();
            prompt.rotate_left(turn);
            runtime.spawn(async move { stream(&supervisor, prompt, size.tokens, &is_done).await })
        })
        .collect();
    let swaps = || -> Result<[SwapReport; 2]> {
        std::thread::sleep(size.between);
        let there = perform(runtime, supervisor, Order::Swap(order(setup.cuda()?)?))?;
        std::thread::sleep(size.between);
        let back = perform(runtime, supervisor, Order::Swap(order(setup.cpu()?)?))?;
        std::thread::sleep(size.between);
        Ok([there, back])
    };
    let swapped = swaps();
    is_done.store(true, Ordering::Relaxed);
    let mut heard = Heard::default();
    for client in clients {
        let one = runtime.block_on(client)??;
        heard.answers += one.answers;
        heard.tokens += one.tokens;
        heard.longest_pause = heard.longest_pause.max(one.longest_pause);
    }
    let reports = swapped?;
    let told = reports.iter().map(|report| {
        let steps = report.steps.iter();
        json!({
            "to": report.to.as_ref().map(|card| &card.device),
            "ms": report.ms,
            "steps": steps.map(|step| json!({"step": step.step.verb.name(), "ms": step.ms})).collect::<Vec<_>>(),
            "carried": report.carried,
            "cancelled": report.cancelled,
            "clean": report.is_clean(),
            "library": report.library,
        })
    });
    let told: Vec<Value> = told.collect();
    Ok(json!({
        "answers": heard.answers,
        "tokens": heard.tokens,
        "longest_pause_ms": heard.longest_pause.as_secs_f64() * 1e3,
        "swaps": told,
    }))
}

/// One answer after another, each of which must be whole.
async fn stream(supervisor: &Slot, prompt: Vec<u32>, tokens: u32, is_done: &AtomicBool) -> Result<Heard> {
    let mut heard = Heard::default();
    while !is_done.load(Ordering::Relaxed) {
        let mut last = Instant::now();
        let lease = supervisor.slots().enter("chat").await?;
        let streams = lease.submit(vec![Request {
            prompt: prompt.clone(),
            max_tokens: tokens,
            ..Request::default()
        }])?;
        let mut stream = streams.into_iter().next().context("no stream")?;
        let mut count = 0;
        loop {
            match stream.next().await {
                Some(Event::Token(_)) => {
                    heard.longest_pause = heard.longest_pause.max(last.elapsed());
                    last = Instant::now();
                    count += 1;
                }
                Some(Event::Started { .. }) => {}
                Some(Event::Finished(_)) => break,
                other => bail!("after {count} tokens an answer was cut: {other:?}"),
            }
        }
        ensure!(count == tokens, "an answer had {count} tokens, not {tokens}");
        heard.answers += 1;
        heard.tokens += count as usize;
    }
    Ok(heard)
}

fn perform(runtime: &Runtime, supervisor: &Slot, order: Order) -> Result<SwapReport> {
    let begun = supervisor.begin("chat", order)?;
    let report = runtime.block_on(begun.report)?;
    ensure!(report.is_as_asked(), "{:?}", report.error);
    ensure!(report.is_clean(), "something is left: {:?}", report.released);
    Ok(report)
}

fn spec(setup: &Setup, backend: BackendSource, size: Size) -> Result<LoadSpec> {
    Ok(LoadSpec {
        backend,
        device: OpenSpec::default(),
        model: ModelSpec {
            path: setup.model_path()?.into(),
            context: 4 * size.tokens,
            max_rows: size.clients as u32,
            max_batch_tokens: 256,
            ..ModelSpec::default()
        },
        engine: EngineOptions::default(),
        deadline: LOAD_DEADLINE,
    })
}
