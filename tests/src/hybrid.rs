//! Models with recurrent state, as a server serves them.

use crate::operator::{Operated, builtin, with};
use anyhow::{Context, Result};
use met_host::{slot::ModelText, text::Text};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};
use tempfile::TempDir;

/// Their folders among the fixtures.
pub const HYBRIDS: [&str; 3] = ["granitemoehybrid", "granitemoehybrid-experts", "qwen3_next"];

/// A model with the tokenizer of another one, which has as many tokens.
pub struct Hybrid {
    folder: TempDir,
    /// A prompt.
    pub prompt: Vec<u32>,
    /// What transformers continues it with.
    pub greedy: Vec<u32>,
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/architectures")
}

impl Hybrid {
    /// Of this folder.
    pub fn new(name: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let texts = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];
        for file in texts {
            fs::copy(fixtures().join("llama").join(file), folder.path().join(file))?;
        }
        for entry in fs::read_dir(fixtures().join(name))? {
            let entry = entry?;
            fs::copy(entry.path(), folder.path().join(entry.file_name()))?;
        }
        let expected: Value = serde_json::from_slice(&fs::read(folder.path().join("expected.json"))?)?;
        let prompt = expected["prompt"].as_u64().context("a number")? as usize;
        let tokens: Vec<u32> = serde_json::from_value(expected["tokens"].clone())?;
        Ok(Self {
            folder,
            prompt: tokens[..prompt].to_vec(),
            greedy: serde_json::from_value(expected["greedy"].clone())?,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A slot that the built-in CPU backend serves.
    pub fn slot(&self) -> Value {
        with(
            &builtin(self.folder.path()),
            json!({"kv_memory": "1M", "max_seqs": 8}),
        )
    }

    /// The text of what transformers continues with, from token `from` on.
    pub fn text(&self, from: usize) -> Result<String> {
        let text = Text::from_checkpoint(self.folder.path())?;
        Ok(text.text(&self.greedy[from..]))
    }
}

/// The greedy continuation of tokens, and how many of these were found in the cache.
pub fn complete(operated: &Operated, prompt: &[u32], tokens: usize, more: Value) -> Result<(String, u64)> {
    let body = with(
        &json!({"model": "chat", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true}),
        more,
    );
    let answer = operated.server.post("/v1/completions", &body)?;
    let text = answer["choices"][0]["text"].as_str().context("a text")?;
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    Ok((text.to_owned(), cached.as_u64().context("a number")?))
}

/// Asks for some conversations at once, each of `tokens` tokens; gives their continuations.
pub fn at_once(operated: &Operated, conversations: u32, tokens: usize) -> Result<Vec<String>> {
    let ask = |conversation: u32| {
        let prompt: Vec<u32> = (0..20).map(|at| 3 + (conversation * 37 + at * 5) % 90).collect();
        let sampling = json!({"temperature": 0.8, "seed": conversation});
        Ok(complete(operated, &prompt, tokens, sampling)?.0)
    };
    thread::scope(|scope| {
        let asked: Vec<_> = (0..conversations)
            .map(|one| scope.spawn(move || ask(one)))
            .collect();
        let answers = asked.into_iter().map(|one| one.join());
        answers
            .map(|answer| answer.map_err(|_| anyhow::anyhow!("it panicked"))?)
            .collect()
    })
}

/// A KV cache of so many blocks, of a slot that is served.
pub fn kv_of(operated: &Operated, blocks: u64) -> Result<Value> {
    let total = operated.slot("chat")?["counts"]["blocks_total"].as_u64();
    let total = total.filter(|total| *total > 0).context("no blocks")?;
    Ok(json!({"kv_memory": blocks * ((1 << 20) / total)}))
}
