//! Files that change under the real server: nothing that it serves is read from them any more.

use anyhow::{Context, Result, ensure};
use met_tests::{Server, fixture, server::artifacts, stream::Stream};
use serde_json::json;
use std::{fs, os::unix::fs::FileExt, path::Path};

/// What befalls a file, and how it is said.
type Change = (&'static str, fn(&Path) -> std::io::Result<()>);

const CHANGES: [Change; 5] = [
    ("overwritten in place", overwrite),
    ("cut to nothing", |file| write(file)?.set_len(0)),
    ("replaced by another", |file| {
        let other = file.with_extension("new");
        fs::write(&other, "another file")?;
        fs::rename(other, file)
    }),
    ("renamed", |file| fs::rename(file, file.with_extension("away"))),
    ("removed", |file| fs::remove_file(file)),
];

fn write(file: &Path) -> std::io::Result<fs::File> {
    fs::File::options().write(true).open(file)
}

fn overwrite(file: &Path) -> std::io::Result<()> {
    let len = fs::metadata(file)?.len();
    write(file)?.write_all_at(&vec![0xA5; len as usize], 0)
}

#[test]
fn an_unquantised_model_and_its_library_change_on_disk_and_every_answer_stays_the_same() -> Result<()> {
    answers_stay_the_same("tiny-f16.gguf")
}

#[test]
fn a_quantised_model_and_its_library_change_on_disk_and_every_answer_stays_the_same() -> Result<()> {
    answers_stay_the_same("tiny-q4_1.gguf")
}

/// On a busy machine a stream may be over before its files have changed; then another one is tried.
const TRIES: usize = 20;

fn answers_stay_the_same(model: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let library = artifacts()?.join("libmet_cpu.so");
    let files = [
        (fixture(model), folder.path().join("model.gguf")),
        (library, folder.path().join("libbackend.so")),
    ];
    let restore = || {
        files
            .iter()
            .try_for_each(|(from, to)| fs::copy(from, to).map(drop))
    };
    restore()?;
    let [model, library] = [0, 1].map(|i| files[i].1.to_str().unwrap_or_default());
    let mut server = Server::start(&["--model", model, "--backend", library, "--threads", "2"])?;
    let undisturbed = stream(&server)?.rest()?;
    ensure!(
        undisturbed.is_whole() && undisturbed.choices.len() == 4,
        "{undisturbed:?}"
    );
    let maps = fs::read_to_string(format!("/proc/{}/maps", server.pid()))?;
    ensure!(
        !maps.contains("model.gguf") && !maps.contains("libbackend.so"),
        "{maps}"
    );

    for (change, make) in CHANGES {
        let mut was_under_a_stream = false;
        for _ in 0..TRIES {
            restore()?;
            let under = stream(&server)?;
            for (_, file) in &files {
                make(file).with_context(|| format!("{} can't be {change}", file.display()))?;
            }
            was_under_a_stream = server.metric("met_requests_running")? > 0.0;
            ensure!(
                under.rest()? == undisturbed,
                "a stream under which they were {change}"
            );
            if was_under_a_stream {
                break;
            }
        }
        ensure!(
            was_under_a_stream,
            "{TRIES} streams ended before the files were {change}"
        );
        ensure!(
            stream(&server)?.rest()? == undisturbed,
            "an answer after they were {change}"
        );
        restore()?;
    }
    let status = server.stop()?;
    let log = server.log();
    ensure!(status.success() && log.contains("torn down"), "{status}\n{log}");
    Ok(())
}

fn stream(server: &Server) -> Result<Stream> {
    let body = json!({
        "model": "chat", "prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": true,
        "seed": 7, "n": 4, "logprobs": 2,
    });
    Stream::start(server, &body)
}
