//! The official Python client against the real server: `tests/python` says what it does.

use anyhow::{Context, Result, ensure};
use met_tests::Server;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

#[test]
fn the_official_python_client_is_served() -> Result<()> {
    let python = environment()?;
    let model = met_tests::model_path();
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

fn suite() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python")
}

/// A Python with the suite's packages, kept in the target folder for as long as they stay the same.
fn environment() -> Result<PathBuf> {
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
