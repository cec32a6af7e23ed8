//! The official Python client against the real server: `tests/python` says what it does.

use anyhow::{Context, Result, ensure};
use met_tests::{Server, fixture, model_path, server::artifacts};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
};

#[test]
fn the_official_python_client_is_served() -> Result<()> {
    let python = environment()?;
    let model = model_path();
    let server = Server::start(&["--model", &model.to_string_lossy()])?;
    let tests = Command::new(python)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .arg(suite())
        .env("MET_URL", server.url())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()?;
    let output = String::from_utf8_lossy(&tests.stdout);
    ensure!(
        tests.status.success(),
        "{output}\nthe server's log:\n{}",
        server.log()
    );
    Ok(())
}

#[test]
fn streams_of_the_official_client_survive_every_kind_of_swap() -> Result<()> {
    let python = environment()?;
    let built = artifacts()?;
    let tests = Command::new(python)
        .arg(suite().join("swaps.py"))
        .arg("--host")
        .arg(built.join("met-host"))
        .arg("--library")
        .arg(built.join("libmet_cpu.so"))
        .args(["--clients", "4", "--swaps", "16", "--tokens", "24"])
        .args([model_path(), fixture("tiny-q8_0.gguf")])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()?;
    ensure!(
        tests.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&tests.stdout),
        String::from_utf8_lossy(&tests.stderr)
    );
    Ok(())
}

fn suite() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python")
}

/// A Python with the suite's packages, kept in the target folder for as long as they stay the same.
fn environment() -> Result<PathBuf> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    let python = folder.join("bin/python");
    let (requirements, installed) = (suite().join("requirements.txt"), folder.join("installed.txt"));
    if fs::read(&installed).ok() == Some(fs::read(&requirements)?) {
        return Ok(python);
    }
    run(Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(&folder))?;
    run(Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--requirement"])
        .arg(&requirements))?;
    fs::copy(&requirements, &installed)?;
    Ok(python)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command
        .output()
        .with_context(|| format!("{command:?} didn't start"))?;
    ensure!(
        output.status.success(),
        "{command:?} failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
