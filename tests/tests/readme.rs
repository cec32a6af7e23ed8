//! The backend that `backend-api/README.md` tells how to write: built as a newcomer would, loaded, and asked.

use anyhow::{Context, Result, ensure};
use met_host::loader::{BackendSource, Builtins, Library, Services, Unload};
use met_tests::{Server, cycles::Lives, fixture, life::PATIENCE, plugins};
use serde_json::json;
use std::{fs, path::Path, thread};

#[test]
fn the_backend_of_the_readme_is_built_loaded_and_served() -> Result<()> {
    let api = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../backend-api")
        .canonicalize()?;
    let readme = fs::read_to_string(api.join("README.md"))?;
    let manifest = block(&readme, "toml")?;
    let path = "../met-host/backend-api";
    ensure!(manifest.contains(path), "{manifest}");
    let manifest = manifest.replace(path, api.to_str().context("a path in UTF-8")?);
    let folder = tempfile::tempdir()?;
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("variants/target");
    let files = [
        ("Cargo.toml", manifest.as_str()),
        ("src/lib.rs", block(&readme, "rust")?),
    ];
    let library = plugins::outside(folder.path(), &target, "my-backend", &files)?;

    a_probe_finds_its_device(&library)?;
    let model = fixture("tiny-q4_0.gguf");
    // Checks the ledger and the unload, too.
    Lives::of(&library, &model)?.run(0, 3, |_, _| {})?;

    let [library, model] = [&library, &model].map(|path| path.to_str().unwrap_or_default());
    let mut server = Server::start(&["--backend", library, "--model", model])?;
    let body = json!({"model": "chat", "prompt": [70, 71], "max_tokens": 4, "temperature": 0, "logprobs": 1});
    let answer = server.post("/v1/completions", &body)?;
    // Tokens 72 to 75 of the fixture's vocabulary.
    ensure!(answer["choices"][0]["text"] == "fghi", "{answer}");
    ensure!(answer["usage"]["completion_tokens"] == 4, "{answer}");
    let status = server.stop()?;
    let log = server.log();
    ensure!(status.success() && log.contains("torn down"), "{status}\n{log}");
    ensure!(
        log.contains("my_backend") && log.contains("opened device 0"),
        "{log}"
    );
    Ok(())
}

fn a_probe_finds_its_device(library: &Path) -> Result<()> {
    let path = library.to_str().context("a path in UTF-8")?;
    let mut library = Library::load(&BackendSource::parse(path, &Builtins::default())?)?;
    let opener = library.opener();
    let probed = thread::spawn(move || opener.probe(&Services::default())).join();
    let probed = probed.map_err(|_| anyhow::anyhow!("the probe panicked"))??;
    ensure!(
        probed.devices.len() == 1 && probed.problem.is_empty(),
        "{probed:?}"
    );
    ensure!(library.close(PATIENCE) == Unload::Unmapped, "it does not go");
    Ok(())
}

/// The one block of a language.
fn block<'a>(text: &'a str, language: &str) -> Result<&'a str> {
    let fence = format!("```{language}\n");
    let mut blocks = text.split(fence.as_str()).skip(1);
    let (block, more) = (blocks.next(), blocks.next());
    ensure!(more.is_none(), "several blocks of {language}");
    block
        .and_then(|block| block.split_once("```"))
        .map(|(block, _)| block)
        .with_context(|| format!("no block of {language}"))
}
