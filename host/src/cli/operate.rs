//! What operators say to a server that runs.

use super::{
    args::{Operate, Target},
    say, show,
};
use crate::{
    admin::client::{self, Answer, Client, Events},
    config::SlotConfig,
};
use anyhow::{Context, Error, Result, anyhow, bail};
use hyper::Method;
use serde_json::Value;
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// Does it. The result is whether the server is now as it was asked to be.
pub fn operate(what: &Operate) -> Result<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    runtime.block_on(run(what))
}

async fn run(what: &Operate) -> Result<bool> {
    let server = what.server();
    let address = match &server.admin {
        Some(address) => address.clone(),
        None => client::find()?,
    };
    let teller = Teller {
        client: Client::new(address),
        json: server.json,
    };
    match what {
        Operate::Swap { target, .. } => {
            let path = format!("{}/swap", slot(&target.slot)?);
            teller
                .change(Method::POST, &path, &target.slot, Some(&body(target)?))
                .await
        }
        Operate::Load { target, .. } => {
            teller
                .change(
                    Method::POST,
                    &slot(&target.slot)?,
                    &target.slot,
                    Some(&body(target)?),
                )
                .await
        }
        Operate::Unload {
            slot: name,
            in_flight,
            drain_deadline_s,
            ..
        } => {
            let in_flight = in_flight.map(|in_flight| format!("in_flight={}", in_flight.name()));
            let deadline = drain_deadline_s.map(|seconds| format!("drain_deadline_s={seconds}"));
            let query: Vec<String> = in_flight.into_iter().chain(deadline).collect();
            let path = format!("{}?{}", slot(name)?, query.join("&"));
            teller.change(Method::DELETE, &path, name, None).await
        }
        Operate::Cancel { id, .. } => {
            let path = format!("/swaps/{id}/cancel");
            teller
                .say(Method::POST, &path, |_| format!("swap {id} is being cancelled"))
                .await
        }
        Operate::Status { .. } => teller.say(Method::GET, "/slots", show::status).await,
        Operate::Ledger { slot: name, .. } => {
            teller
                .say(Method::GET, &format!("{}/ledger", slot(name)?), show::ledger)
                .await
        }
        Operate::Reload { .. } => teller.reload().await,
        Operate::Events { .. } => teller.events().await,
    }
}

/// How often it is told how far a step is that takes long.
const PROGRESS: Duration = Duration::from_secs(1);
/// How long the last events of a swap may take to arrive.
const LAST_EVENTS: Duration = Duration::from_secs(1);

struct Teller {
    client: Client,
    json: bool,
}

impl Teller {
    /// Asks for a change, tells of its steps as they are made, and of the outcome.
    async fn change(&self, method: Method, path: &str, slot: &str, body: Option<&Value>) -> Result<bool> {
        let mut steps = Steps {
            events: self.listen().await?,
            slot,
            id: None,
            ended: false,
            quiet: self.json,
            told: Instant::now(),
        };
        let change = self.client.send(method, path, body);
        tokio::pin!(change);
        let answer = loop {
            tokio::select! {
                answer = &mut change => break answer?,
                told = steps.tell_next(), if !steps.ended => told?,
            }
        };
        let report = self.done(answer)?;
        // The last ones may still be on their way.
        let rest = async {
            while !steps.ended {
                steps.tell_next().await?;
            }
            Ok::<_, anyhow::Error>(())
        };
        let _ = tokio::time::timeout(LAST_EVENTS, rest).await;
        self.print(&report, show::report);
        Ok(is_as_asked(&report))
    }

    async fn say(&self, method: Method, path: &str, show: impl FnOnce(&Value) -> String) -> Result<bool> {
        let json = self.done(self.client.send(method, path, None).await?)?;
        self.print(&json, show);
        Ok(true)
    }

    async fn reload(&self) -> Result<bool> {
        let answer = self.done(self.client.send(Method::POST, "/reload", None).await?)?;
        self.print(&answer, show::changes);
        let changes = answer["changes"]
            .as_array()
            .context("the server's answer names no changes")?;
        let waits = answer["at_restart"]
            .as_array()
            .is_some_and(|fields| !fields.is_empty());
        Ok(!waits && changes.iter().all(|change| is_as_asked(&change["report"])))
    }

    async fn listen(&self) -> Result<Events> {
        match self.client.events().await? {
            Ok(events) => Ok(events),
            Err(refused) => Err(self.refusal(&refused)),
        }
    }

    /// Each event as a line of JSON, until the server ends or nobody reads any more.
    async fn events(&self) -> Result<bool> {
        let mut events = self.listen().await?;
        while let Some(event) = events.next().await? {
            if !say(event) {
                break;
            }
        }
        Ok(true)
    }

    /// The answer's JSON, or its error in the server's words: that is an object too, where one is wanted.
    fn done(&self, answer: Answer) -> Result<Value> {
        match answer.status.is_success() {
            true => Ok(answer.json),
            false => Err(self.refusal(&answer)),
        }
    }

    fn refusal(&self, answer: &Answer) -> Error {
        if self.json {
            say(&answer.json);
        }
        match answer.json["error"]["message"].as_str() {
            Some(message) => anyhow!("{message}"),
            None => anyhow!("the server answered {}", answer.status),
        }
    }

    fn print(&self, json: &Value, show: impl FnOnce(&Value) -> String) {
        match self.json {
            true => say(json),
            false => say(show(json).trim_end()),
        };
    }
}

/// The steps of a slot's next swap, as they are made.
struct Steps<'a> {
    events: Events,
    slot: &'a str,
    id: Option<u64>,
    ended: bool,
    quiet: bool,
    /// When something was told last.
    told: Instant,
}

impl Steps<'_> {
    /// Waits for an event and tells it, if it is of the swap.
    async fn tell_next(&mut self) -> Result<()> {
        let event = self
            .events
            .next()
            .await?
            .context("the server has closed the connection")?;
        // One at a time a slot: what begins now is ours, and before that what downloads, or ends already.
        let is_named = event["event"] == "begun"
            || self.id.is_none() && (event["event"] == "ended" || event["event"] == "progress");
        if is_named && event["slot"] == *self.slot {
            self.id = event["id"].as_u64();
        }
        let is_ours = self.id.is_some() && event["id"].as_u64() == self.id;
        let is_progress = event["event"] == "progress";
        if is_ours && !self.quiet && (!is_progress || self.told.elapsed() >= PROGRESS) {
            show::event(&event).map(say);
            self.told = Instant::now();
        }
        self.ended |= is_ours && event["event"] == "ended";
        Ok(())
    }
}

/// Whether a swap's report says that the slot is as it was asked to be, and that all that was to go is gone.
fn is_as_asked(report: &Value) -> bool {
    let is_done = matches!(
        report["outcome"].as_str(),
        Some("swapped" | "loaded" | "unloaded")
    );
    let released = &report["released"];
    let is_gone = released["stuck"].is_null()
        && released["left"].as_array().is_some_and(Vec::is_empty)
        && report["library"]["state"] != "retained";
    is_done && is_gone
}

/// What the server is to load. Paths are those of this terminal, which may stand elsewhere than the server.
fn body(target: &Target) -> Result<Value> {
    let mut config = target.config.clone();
    config.backend = config.backend.map(|backend| absolute(&backend)).transpose()?;
    config.model = config.model.map(|model| absolute(&model)).transpose()?;
    if !target.options.is_empty() {
        config.options = Some(target.options.iter().cloned().collect());
    }
    config.verify = target.verify();
    Ok(serde_json::to_value::<SlotConfig>(config)?)
}

fn absolute(text: &str) -> Result<String> {
    match Path::new(text).exists() {
        false => Ok(text.to_owned()),
        true => {
            let path = std::path::absolute(text)?;
            path.into_os_string()
                .into_string()
                .ok()
                .with_context(|| format!("{text:?} is no text"))
        }
    }
}

fn slot(name: &str) -> Result<String> {
    if name.is_empty() {
        bail!("a slot has a name");
    }
    Ok(format!("/slots/{}", encode(name)))
}

/// A name as a part of a path.
fn encode(name: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    name.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_part_of_a_path() {
        assert_eq!(
            slot("code 7b/ä").ok().as_deref(),
            Some("/slots/code%207b%2F%C3%A4")
        );
        assert!(slot("").is_err());
    }

    #[test]
    fn paths_are_those_of_this_terminal() {
        assert_eq!(absolute("hf:org/repo").ok().as_deref(), Some("hf:org/repo"));
        let here = absolute("Cargo.toml").expect("it is there");
        assert!(here.starts_with('/') && here.ends_with("/Cargo.toml"), "{here}");
    }
}
