//! A changed configuration file, applied to a server that runs.

use super::{Change, Config, SlotConfig, changes};
use crate::{
    loader::Builtins,
    slot::{
        ModelText,
        swap::{Begun, Order, Refusal, Supervisor, SwapReport},
    },
};
use serde::Serialize;
use std::{path::PathBuf, sync::Arc};
use tokio::sync::{Mutex, OwnedMutexGuard};

/// Knows the file, and what of it has been applied.
pub struct Reloader<T> {
    path: Option<PathBuf>,
    builtins: Builtins,
    supervisor: Arc<Supervisor<T>>,
    applied: Arc<Mutex<Config>>,
}

/// What a reload did.
#[derive(Clone, Debug, Serialize)]
pub struct Reloaded {
    /// What became of each slot that was to change.
    pub changes: Vec<Applied>,
    /// Other fields that have changed: they are taken from the file when the server starts.
    pub at_restart: Vec<&'static str>,
}

/// What became of one slot's change.
#[derive(Clone, Debug, Serialize)]
pub struct Applied {
    /// The slot.
    pub slot: String,
    /// What was to become of it.
    pub change: Change,
    /// Why that was not begun.
    pub error: Option<String>,
    /// How it went.
    pub report: Option<SwapReport>,
}

impl Applied {
    /// Whether the slot is as the file says.
    pub fn is_as_asked(&self) -> bool {
        self.report.as_ref().is_some_and(SwapReport::is_as_asked)
    }
}

impl<T: ModelText> Reloader<T> {
    /// Of a server that has applied `config`, which was read from `path`, where there is one.
    pub fn new(
        path: Option<PathBuf>,
        config: Config,
        builtins: Builtins,
        supervisor: Arc<Supervisor<T>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            path,
            builtins,
            supervisor,
            applied: Arc::new(Mutex::new(config)),
        })
    }

    /// Reads the file again and applies the difference, every slot at the same time. A bad file changes nothing; a
    /// slot whose change fails keeps what it has, and is tried again with the next reload. One at a time; what has
    /// begun goes on whether anybody waits for it or not.
    ///
    /// # Errors
    /// What is wrong with the file, and on which line.
    pub async fn reload(self: &Arc<Self>) -> Result<Reloaded, String> {
        let applied = Arc::clone(&self.applied).lock_owned().await;
        let reloader = Arc::clone(self);
        let applying = tokio::spawn(async move { reloader.apply(applied).await });
        let gone = |error| Err(format!("the reload came to no end: {error}"));
        applying.await.unwrap_or_else(gone)
    }

    async fn apply(&self, mut applied: OwnedMutexGuard<Config>) -> Result<Reloaded, String> {
        let path = self
            .path
            .as_ref()
            .ok_or("this server was started without --config: there is nothing to reload")?;
        if path.metadata().is_ok_and(|file| !file.is_file()) {
            // To open a pipe waits for whoever writes to it.
            return Err(format!(
                "{}: it is no regular file, so it can't be read again",
                path.display()
            ));
        }
        let new = Config::read(path, &self.builtins)?;
        if new.slots.is_empty() && !applied.slots.is_empty() {
            // An editor may have emptied it before it writes it.
            return Err(format!(
                "{}: it names no slot, which is taken for a file that is being written; unload the last slot with `met-host unload`",
                path.display()
            ));
        }
        let at_restart = at_restart(&applied, &new);
        let slots = self.supervisor.slots();
        let present = slots.all().iter().map(|slot| slot.name().to_owned()).collect();
        let mut begun = Vec::new();
        for (name, change) in changes(&applied.slots, &new.slots, &present) {
            let config = new.slots.get(&name).or_else(|| applied.slots.get(&name));
            let started = self.begin(&name, change, config);
            begun.push((name, change, started));
        }
        let mut done = Vec::new();
        for (slot, change, started) in begun {
            let (error, report) = match started {
                Ok(begun) => (None, begun.report.await.ok()),
                Err(error) => (Some(error), None),
            };
            let one = Applied {
                slot: slot.clone(),
                change,
                error,
                report,
            };
            if one.is_as_asked() {
                match new.slots.get(&slot) {
                    Some(config) => applied.slots.insert(slot, config.clone()),
                    None => applied.slots.remove(&slot),
                };
            }
            done.push(one);
        }
        Ok(Reloaded {
            changes: done,
            at_restart,
        })
    }

    fn begin(&self, name: &str, change: Change, config: Option<&SlotConfig>) -> Result<Begun, String> {
        let usual = SlotConfig::default();
        let config = config.unwrap_or(&usual);
        // The file says all of it, so nothing stays as it was.
        let bring = || config.order(None, &self.builtins);
        let order = match change {
            Change::Load => bring().map(Order::Load),
            Change::Swap => bring().map(Order::Swap),
            Change::Unload => config.drain_deadline().map(|drain_deadline| Order::Unload {
                in_flight: config.in_flight.unwrap_or_default(),
                drain_deadline,
            }),
        };
        let order = order.map_err(|misfit| misfit.to_string())?;
        self.supervisor
            .begin(name, order)
            .map_err(|refusal: Refusal| refusal.to_string())
    }
}

/// The fields in which the two differ and that are taken when a server starts.
fn at_restart(applied: &Config, new: &Config) -> Vec<&'static str> {
    let fields = [
        ("listen", applied.listen != new.listen),
        ("admin", applied.admin != new.admin),
        ("api_key", applied.api_key != new.api_key),
        (
            "drain_deadline_s",
            applied.drain_deadline_s != new.drain_deadline_s,
        ),
    ];
    fields
        .into_iter()
        .filter_map(|(name, differs)| differs.then_some(name))
        .collect()
}
