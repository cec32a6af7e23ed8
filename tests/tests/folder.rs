//! The real server with a Hugging Face folder: its tokens are those that transformers takes.

use anyhow::{Context, Result, ensure};
use met_host::{slot::ModelText, text::Text};
use met_tests::Server;
use serde_json::{Value, json};
use std::path::Path;

#[test]
fn a_folder_is_served_and_takes_the_tokens_of_transformers() -> Result<()> {
    let folder = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/fixtures/architectures/llama"
    ));
    let expected: Value = serde_json::from_str(&std::fs::read_to_string(folder.join("expected.json"))?)?;
    let prompt = expected["prompt"].as_u64().context("a number")? as usize;
    let prompt = expected["tokens"]
        .as_array()
        .and_then(|t| t.get(..prompt))
        .context("tokens")?;
    let mut server = Server::start(&["--model", folder.to_str().context("UTF-8")?, "--threads", "1"])?;
    let body = json!({"model": "chat", "prompt": prompt, "max_tokens": 64, "temperature": 0});
    let answer = server.post("/v1/completions", &body)?;
    let usage = &answer["usage"];
    ensure!(usage["prompt_tokens"] == prompt.len(), "{answer}");
    let text = answer["choices"][0]["text"].as_str().context("a text")?;
    let greedy: Vec<u32> = serde_json::from_value(expected["greedy"].clone())?;
    let written = Text::from_checkpoint(folder)?.text(&greedy);
    ensure!(
        text == written && usage["completion_tokens"] == greedy.len(),
        "{written:?}, but {answer}"
    );

    let chat = json!({
        "model": "chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0,
    });
    let answer = server.post("/v1/chat/completions", &chat)?;
    ensure!(answer["choices"][0]["message"]["role"] == "assistant", "{answer}");
    ensure!(server.stop()?.success(), "{}", server.log());
    Ok(())
}
