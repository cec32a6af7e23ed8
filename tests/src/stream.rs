//! A client that streams.

use crate::Server;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Lines};

/// A stream of completions that has begun.
pub struct Stream {
    lines: Lines<BufReader<ureq::BodyReader<'static>>>,
    heard: Heard,
}

/// What came of a stream, or of an answer that was no stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heard {
    /// By index.
    pub choices: Vec<Choice>,
    /// An error event.
    pub error: Option<Value>,
    /// Whether `[DONE]` came, and nothing after it.
    pub done: bool,
}

/// One choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// Its text.
    pub text: String,
    /// Its tokens' log-probabilities, where they were asked for.
    pub logprobs: Vec<Value>,
    /// Why it ended.
    pub finish: Option<String>,
}

impl Stream {
    /// Sends a body for `/v1/completions`, and waits for the first event.
    pub fn start(server: &Server, body: &Value) -> Result<Self> {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let answer = ureq::post(format!("{}/v1/completions", server.url())).send_json(body)?;
        let mut stream = Self {
            lines: BufReader::new(answer.into_body().into_reader()).lines(),
            heard: Heard::default(),
        };
        stream.hear()?;
        Ok(stream)
    }

    /// Waits for the next event; false at the end.
    pub fn hear(&mut self) -> Result<bool> {
        for line in self.lines.by_ref() {
            let line = line?;
            match line.strip_prefix("data: ") {
                None => {}
                Some("[DONE]") => self.heard.done = true,
                Some(_) if self.heard.done => anyhow::bail!("after [DONE]: {line}"),
                Some(event) => {
                    self.heard.take(&serde_json::from_str(event)?)?;
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Everything, to the end.
    pub fn rest(mut self) -> Result<Heard> {
        while self.hear()? {}
        Ok(self.heard)
    }
}

impl Heard {
    /// The answer to a body for `/v1/completions`, not streamed.
    pub fn whole(server: &Server, body: &Value) -> Result<Self> {
        let mut heard = Self::default();
        heard.take(&server.post("/v1/completions", body)?)?;
        Ok(heard)
    }

    /// Whether it ended as it should: no error, each choice finished, and `[DONE]` last.
    pub fn is_whole(&self) -> bool {
        self.error.is_none() && self.done && self.choices.iter().all(|choice| choice.finish.is_some())
    }

    fn take(&mut self, event: &Value) -> Result<()> {
        if let Some(error) = event.get("error") {
            ensure!(self.error.is_none(), "two errors: {error}");
            self.error = Some(error.clone());
        }
        for choice in event["choices"].as_array().into_iter().flatten() {
            let index = choice["index"].as_u64().context("no index")? as usize;
            if self.choices.len() <= index {
                self.choices.resize(index + 1, Choice::default());
            }
            let heard = &mut self.choices[index];
            ensure!(
                heard.finish.is_none(),
                "choice {index} goes on after its end: {choice}"
            );
            heard.text.push_str(choice["text"].as_str().unwrap_or_default());
            let logprobs = &choice["logprobs"];
            heard.logprobs.extend(
                logprobs["token_logprobs"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .cloned(),
            );
            heard.finish = choice["finish_reason"].as_str().map(str::to_owned);
        }
        Ok(())
    }
}
