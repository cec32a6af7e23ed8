//! `met-host serve`: from the command line to a listening server, and down again in order.

use super::{ServeArgs, model};
use crate::{
    admin::{self, AdminAddress, AdminListener},
    engine::EngineOptions,
    http::{self, AppState},
    loader::{BackendSource, Builtins, Progress, Services},
    slot::{self, Generation, GenerationEnd, LoadSpec, Slots},
    text::Text,
};
use anyhow::{Context, Result, ensure};
use met_backend_api::{ModelSpec, OpenSpec};
use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

/// HTTP takes little work, and leaves the cores to the model.
const HTTP_THREADS: usize = 2;
/// Most new tokens of a step.
const MAX_BATCH_TOKENS: u32 = 512;
/// What is left to send when the last request has ended.
const FLUSH: Duration = Duration::from_secs(2);

/// Serves until SIGTERM or SIGINT, then lets running requests finish and tears the model down.
pub fn serve(args: &ServeArgs, builtins: &Builtins) -> Result<()> {
    // Before the engine, which takes hold of its metrics when it starts.
    http::metrics::install();
    let backend = BackendSource::parse(&args.backend, builtins)?;
    let model = model(args.model.as_deref())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(HTTP_THREADS)
        .thread_name("http")
        .enable_all()
        .build()
        .context("no threads for HTTP")?;
    let served = runtime.block_on(run(args, backend, model));
    // A load that was given up may still be in a call of the backend; the end doesn't wait for it.
    runtime.shutdown_timeout(FLUSH);
    served
}

async fn run(args: &ServeArgs, backend: BackendSource, model: PathBuf) -> Result<()> {
    // Taken first: a port that is in use shows before a minute of loading.
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("can't listen on {}; is another server there?", args.listen))?;
    let address = listener.local_addr()?;
    let admin = args
        .admin
        .clone()
        .unwrap_or_else(|| default_admin(address.port()));
    let admin = AdminListener::bind(&admin)
        .await
        .context("the operators' listener")?;
    tracing::info!("operators connect to {}", admin.address()?);
    let mut stop = Stop::listen()?;
    let slots = Arc::new(Slots::new());
    let slot = slots.add(&args.slot);
    let spec = load_spec(args, backend, &model);
    let services = Services::new(|Progress { stage, done, total }| {
        tracing::debug!(stage, done, total, "loading");
    });
    let loading = tokio::task::spawn_blocking({
        let (slot, services) = (slot.clone(), services.clone());
        move || slot::load(&slot, &spec, &services, || Text::from_checkpoint(&model))
    });
    let generation = tokio::select! {
        loaded = loading => loaded.context("the load panicked; its message is above")??,
        () = stop.asked() => {
            services.cancel();
            anyhow::bail!("stopped while the model was loading");
        }
    };
    log_load(&args.slot, &generation);
    slot.switch(Some(generation));

    let state = AppState {
        slots: slots.clone(),
        api_key: args.api_key.clone(),
    };
    let (asked, shutdown) = tokio::sync::oneshot::channel();
    let mut server = tokio::spawn(http::serve(listener, http::router(state), async {
        let _ = shutdown.await;
    }));
    let for_admin = slots.clone();
    let (admin_asked, admin_shutdown) = tokio::sync::oneshot::channel::<()>();
    let admin = tokio::spawn(admin.serve(move |token| admin::router(for_admin, token), async {
        let _ = admin_shutdown.await;
    }));
    announce(&format!("listening on http://{address}"));

    stop.asked().await;
    let deadline = Duration::from_secs(args.drain_deadline);
    tracing::info!(
        deadline_s = args.drain_deadline,
        "stopping; running requests may finish; a second signal cuts them"
    );
    let _ = asked.send(());
    let down = tokio::task::spawn_blocking(move || slots.shutdown(deadline));
    tokio::pin!(down);
    let reports = tokio::select! {
        reports = &mut down => reports.context("the teardown panicked; its message is above")?,
        () = stop.asked() => anyhow::bail!("cut short by a second signal"),
    };
    // Every request has its last event by now.
    if tokio::time::timeout(FLUSH, &mut server).await.is_err() {
        server.abort();
    }
    let _ = admin_asked.send(());
    if let Ok(ended) = tokio::time::timeout(FLUSH, admin).await {
        ended.context("the operators' listener panicked")??;
    }
    let mut clean = true;
    for (slot, end) in &reports {
        clean &= end.teardown.is_clean();
        log_end(slot, end);
    }
    ensure!(clean, "not everything came back; the report is above");
    Ok(())
}

/// One a port, so that servers beside each other don't meet.
fn default_admin(port: u16) -> AdminAddress {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    AdminAddress::Unix(folder.join(format!("met-host-{port}.sock")))
}

fn load_spec(args: &ServeArgs, backend: BackendSource, model: &Path) -> LoadSpec {
    LoadSpec {
        backend,
        device: OpenSpec {
            threads: args.threads,
            ..OpenSpec::default()
        },
        model: ModelSpec {
            path: model.to_string_lossy().as_ref().into(),
            context: args.ctx,
            max_rows: args.max_seqs,
            max_batch_tokens: MAX_BATCH_TOKENS,
            kv_bytes: args.kv_memory.0,
        },
        engine: EngineOptions::default(),
    }
}

fn log_load(slot: &str, generation: &Generation<Text>) {
    let info = generation.engine().info();
    tracing::info!(
        slot,
        generation = generation.number(),
        device = info.device.name.as_str(),
        model = info.model.name.as_str(),
        quantization = info.model.quantization.as_str(),
        context = info.model.context_length,
        kv_blocks = info.model.block_count,
        "loaded"
    );
}

fn announce(line: &str) {
    // Nobody listening on standard output is no reason to stop.
    let _ = writeln!(std::io::stdout(), "{line}");
    let _ = std::io::stdout().flush();
}

fn log_end(slot: &str, end: &GenerationEnd) {
    let report = &end.teardown;
    for pool in &report.pools {
        tracing::info!(
            slot,
            pool = pool.label,
            bytes = pool.bytes,
            error = pool.error,
            "released"
        );
    }
    let swept = &report.swept;
    if swept.count > 0 {
        tracing::warn!(
            slot,
            count = swept.count,
            bytes = swept.bytes,
            entries = ?swept.entries,
            "swept memory without an owner"
        );
    }
    if let Some((at, error)) = report.first_error() {
        tracing::error!(slot, at, error, "the teardown had an error");
    }
    if let Some(call) = &report.stuck {
        tracing::error!(slot, call, "a call of the backend did not come back");
    }
    let left = report.left.as_ref().map(Vec::len);
    tracing::info!(slot, generation = end.number, ledger_entries_left = left, library = ?end.unload, "torn down");
}

/// SIGTERM and SIGINT.
struct Stop {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Stop {
    fn listen() -> Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
