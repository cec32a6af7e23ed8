//! `met-host serve`: from the command line to a listening server, and down again in order.

use super::{ServeArgs, say};
use crate::{
    admin::{self, AdminAddress, AdminListener, Operators},
    config::{Config, Reloaded, Reloader, SlotConfig, seconds},
    http::{self, AppState},
    loader::Builtins,
    slot::{
        GenerationEnd, Slots, check_name,
        swap::{DRAIN_DEADLINE, Order, Supervisor},
    },
    text::Text,
};
use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    sync::{Notify, oneshot},
    task::JoinHandle,
};

/// HTTP takes little work, and leaves the cores to the model.
const HTTP_THREADS: usize = 2;
/// What is left to send when the last request has ended.
const FLUSH: Duration = Duration::from_secs(2);
/// Signals within so long of the first one ask for the same stop.
const SAME_STOP: Duration = Duration::from_millis(500);
/// Where the HTTP API listens unless it is told otherwise.
const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// Serves until SIGTERM or SIGINT, then lets running requests finish and tears every model down.
pub fn serve(args: &ServeArgs, builtins: &Builtins) -> Result<()> {
    // Before the engine, which takes hold of its metrics when it starts.
    http::metrics::install();
    check_name(&args.slot).map_err(|problem| anyhow!("--slot: {problem}"))?;
    let config = match &args.config {
        Some(path) => Config::read(path, builtins).map_err(|problem| anyhow!(problem))?,
        None => of_command_line(args),
    };
    raise_descriptor_limit();
    check_threads(HTTP_THREADS + 1)
        .context("the system gives no threads for HTTP; allow more (ulimit -u)")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(HTTP_THREADS)
        .thread_name("http")
        // One for blocking work is always there: where tokio has none and the system gives none, it panics.
        .thread_keep_alive(Duration::MAX)
        .enable_all()
        .build()
        .context("no threads for HTTP")?;
    let served = runtime.block_on(async {
        tokio::task::spawn_blocking(|| ()).await?;
        run(args, config, builtins).await
    });
    // A load that was given up may still be in a call of the backend; the end doesn't wait for it.
    runtime.shutdown_timeout(FLUSH);
    served
}

/// Each connection takes a descriptor, and the limit that is usual, 1,024, is there for the sake of programs that wait
/// with `select`.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
}

/// Whether the system gives so many threads: tokio panics where it does not, or never comes to its end.
fn check_threads(count: usize) -> io::Result<()> {
    let gate = Mutex::new(());
    thread::scope(|scope| {
        // All are there at the same time.
        let closed = gate.lock();
        let start = |_| thread::Builder::new().spawn_scoped(scope, || drop(gate.lock()));
        let threads: io::Result<Vec<_>> = (0..count).map(start).collect();
        drop(closed);
        // Joined: then the system has them back.
        threads.map(|threads| threads.into_iter().for_each(|thread| drop(thread.join())))
    })
}

async fn run(args: &ServeArgs, config: Config, builtins: &Builtins) -> Result<()> {
    // Before anything says that the server is there: a signal then stops it in order.
    let mut signals = Signals::listen()?;
    // Taken before the load: a port that is in use shows at once.
    let listen = args.listen.or(config.listen).unwrap_or(LISTEN);
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("can't listen on {listen}; is another server there?"))?;
    let address = listener.local_addr()?;
    let admin = args.admin.clone().or_else(|| config.admin.clone());
    let admin = admin.unwrap_or_else(|| AdminAddress::Unix(admin::default_path(address.port())));
    let admin = AdminListener::bind(&admin)
        .await
        .context("the operators' listener")?;
    tracing::info!("operators connect to {}", admin.address()?);
    let deadline = drain_deadline(args, &config)?;

    let supervisor = Supervisor::new(Arc::new(Slots::new()));
    let reloader = Reloader::new(
        args.config.clone(),
        config.clone(),
        builtins.clone(),
        supervisor.clone(),
    );
    let operators = Arc::new(Operators {
        supervisor: supervisor.clone(),
        reloader,
        builtins: builtins.clone(),
    });
    // Open while the models load, so that operators see how far that is.
    let (admin_stop, admin_stopped) = oneshot::channel::<()>();
    let for_admin = operators.clone();
    let admin = tokio::spawn(admin.serve(move |token| admin::router(for_admin, token), async {
        let _ = admin_stopped.await;
    }));
    let loaded = tokio::select! {
        loaded = load_all(&supervisor, &config, builtins) => loaded,
        () = signals.stop() => Err(anyhow!("stopped while the model was loading")),
    };
    if let Err(problem) = loaded {
        let supervisor = supervisor.clone();
        tokio::task::spawn_blocking(move || supervisor.shutdown(FLUSH)).await?;
        return Err(problem);
    }

    let state = AppState {
        slots: supervisor.slots().clone(),
        api_key: args
            .api_key
            .clone()
            .or(config.api_key)
            .filter(|key| !key.is_empty()),
    };
    let (stop, stopped) = oneshot::channel();
    let server = tokio::spawn(http::serve(listener, http::router(state), async {
        let _ = stopped.await;
    }));
    say(format!("listening on http://{address}"));

    let reloads = tokio::spawn(reload_when(signals.hangups(), operators.reloader.clone()));
    signals.stop().await;
    reloads.abort();
    tracing::info!(
        deadline_s = deadline.as_secs_f64(),
        "stopping; running requests may finish; a second signal cuts them"
    );
    let _ = stop.send(());
    let ends = {
        let supervisor = supervisor.clone();
        let down = tokio::task::spawn_blocking(move || supervisor.shutdown(deadline));
        tokio::select! {
            ends = down => ends.context("the teardown panicked; its message is above")?,
            () = signals.stop_again() => bail!("cut short by a second signal"),
        }
    };
    flush(server, admin, admin_stop).await?;
    let mut clean = supervisor.stuck().is_empty() && supervisor.is_idle();
    for (slot, end) in &ends {
        clean &= end.teardown.is_clean();
        log_end(slot, end);
    }
    ensure!(clean, "not everything came back; the report is above");
    Ok(())
}

/// The one slot of a server without a file.
fn of_command_line(args: &ServeArgs) -> Config {
    let slot = SlotConfig {
        backend: Some(args.backend.clone()),
        model: args.model.clone(),
        threads: Some(args.threads),
        ctx: Some(args.ctx),
        max_seqs: Some(args.max_seqs),
        kv_memory: Some(args.kv_memory),
        park_memory: args.park_memory,
        park_disk: args.park_disk,
        session_ttl_s: args.session_ttl,
        quantize: args.quantize.clone(),
        ..SlotConfig::default()
    };
    Config {
        slots: BTreeMap::from([(args.slot.clone(), slot)]),
        ..Config::default()
    }
}

fn drain_deadline(args: &ServeArgs, config: &Config) -> Result<Duration> {
    let given = args.drain_deadline.or(config.drain_deadline_s);
    Ok(seconds("drain_deadline_s", given, DRAIN_DEADLINE)?)
}

/// Loads every slot, all at the same time. The first failure is the server's.
async fn load_all(supervisor: &Arc<Supervisor<Text>>, config: &Config, builtins: &Builtins) -> Result<()> {
    let mut begun = Vec::new();
    for (name, slot) in &config.slots {
        let order = slot.order(None, builtins).map_err(|problem| anyhow!(problem))?;
        begun.push((name, supervisor.begin(name, Order::Load(order))?));
    }
    for (name, begun) in begun {
        let report = begun.report.await.context("a load ended without a report")?;
        if !report.is_as_asked() {
            let error = report.error.unwrap_or_else(|| report.outcome.name().to_owned());
            match config.slots.len() {
                1 => bail!("{error}"),
                _ => bail!("slot {name}: {error}"),
            }
        }
    }
    Ok(())
}

/// Reads the file again at every hang-up; all that come during a reload are one.
async fn reload_when(hangups: Arc<Notify>, reloader: Arc<Reloader<Text>>) {
    loop {
        hangups.notified().await;
        match reloader.reload().await {
            Err(problem) => tracing::error!("nothing was changed: {problem}"),
            Ok(Reloaded { changes, at_restart }) => {
                for change in &changes {
                    let outcome = change.report.as_ref().map(|report| report.outcome.name());
                    tracing::info!(slot = change.slot, change = ?change.change, outcome, error = change.error, "reloaded");
                }
                for field in at_restart {
                    tracing::warn!("{field} has changed in the file: restart the server to apply it");
                }
                tracing::info!(changes = changes.len(), "the configuration file was read again");
            }
        }
    }
}

/// Lets what was answered reach its clients, and closes both listeners.
async fn flush(
    mut server: JoinHandle<()>,
    admin: JoinHandle<Result<()>>,
    admin_stop: oneshot::Sender<()>,
) -> Result<()> {
    // Every request has its last event by now.
    if tokio::time::timeout(FLUSH, &mut server).await.is_err() {
        server.abort();
    }
    let _ = admin_stop.send(());
    if let Ok(ended) = tokio::time::timeout(FLUSH, admin).await {
        ended.context("the operators' listener panicked")??;
    }
    Ok(())
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

/// SIGTERM, SIGINT and SIGHUP.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    hangups: Arc<Notify>,
}

impl Signals {
    fn listen() -> Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            hangups: Arc::default(),
        })
    }

    /// Told of every hang-up that comes while a stop is waited for.
    fn hangups(&self) -> Arc<Notify> {
        self.hangups.clone()
    }

    /// Waits until the server is asked to stop.
    async fn stop(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => self.hangups.notify_one(),
            }
        }
    }

    /// Waits until it is asked once more. Whoever ends a process together with its group, as `timeout` does, sends two
    /// signals at once and means one stop.
    async fn stop_again(&mut self) {
        let asked = Instant::now();
        loop {
            self.stop().await;
            if asked.elapsed() >= SAME_STOP {
                return;
            }
        }
    }
}
