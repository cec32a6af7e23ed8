//! Builds the test plug-ins of `tests/plugins`.

use anyhow::{Context, Result, bail, ensure};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// An edit of a copied file: the file, what is replaced, and by what.
pub type Edit<'a> = (&'a str, &'a str, &'a str);

/// The test plug-in called `name`, as a shared library.
pub fn plugin(name: &str) -> Result<PathBuf> {
    build(
        &workspace().join("Cargo.toml"),
        &["-p", "met-test-plugins", "--example", name],
        name,
        None,
    )
}

/// The library of the workspace's package `name`.
pub fn backend(name: &str) -> Result<PathBuf> {
    let library = name.replace('-', "_");
    build(
        &workspace().join("Cargo.toml"),
        &["-p", name, "--lib"],
        &library,
        None,
    )
}

/// The plug-in `echo` as the author of another contract would build it: `edits` are made in a copy of
/// `backend-api`, and the linker gets `link_arguments`. The copy lies in `folder`, and is built there.
pub fn echo_with(folder: &Path, edits: &[Edit<'_>], link_arguments: &[&str]) -> Result<PathBuf> {
    let workspace = workspace();
    let _ = fs::remove_dir_all(folder.join("backend-api"));
    copy_folder(&workspace.join("backend-api"), &folder.join("backend-api"))?;
    for (file, from, to) in edits {
        let file = folder.join("backend-api/src").join(file);
        let text = fs::read_to_string(&file)?;
        ensure!(text.contains(from), "{} has no {from:?}", file.display());
        fs::write(&file, text.replace(from, to))?;
    }
    fs::create_dir_all(folder.join("echo"))?;
    fs::copy(
        workspace.join("tests/plugins/echo.rs"),
        folder.join("echo/echo.rs"),
    )?;
    fs::write(folder.join("echo/Cargo.toml"), ECHO_MANIFEST)?;
    let arguments: String = link_arguments
        .iter()
        .map(|argument| format!("println!(\"cargo::rustc-cdylib-link-arg={argument}\");"))
        .collect();
    fs::write(
        folder.join("echo/build.rs"),
        format!("fn main() {{ {arguments} }}"),
    )?;
    fs::copy(workspace.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let manifest: String = fs::read_to_string(workspace.join("Cargo.toml"))?
        .lines()
        .filter(|line| !line.starts_with("default-members"))
        .map(|line| match line.starts_with("members") {
            true => "members = [\"backend-api\", \"echo\"]\n".to_owned(),
            false => format!("{line}\n"),
        })
        .collect();
    let path = folder.join("Cargo.toml");
    fs::write(&path, manifest)?;
    let target = folder
        .parent()
        .context("the folder has no parent")?
        .join("target");
    build(&path, &["-p", "echo"], "echo", Some(&target))
}

const ECHO_MANIFEST: &str = r#"
[package]
name = "echo"
version = "1.0.0"
edition.workspace = true

[lib]
path = "echo.rs"
crate-type = ["cdylib"]

[dependencies]
met-backend-api.workspace = true
libc.workspace = true
"#;

/// Builds a library and gives its file as cargo names it.
fn build(manifest: &Path, what: &[&str], name: &str, target: Option<&Path>) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // What cargo tells this test of its own package would have build scripts run again.
    for (name, _) in std::env::vars_os() {
        let of_package = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"];
        if name
            .to_str()
            .is_some_and(|name| of_package.iter().any(|p| name.starts_with(p)))
        {
            command.env_remove(&name);
        }
    }
    command.args([
        "build",
        "--offline",
        "--message-format=json-render-diagnostics",
        "--manifest-path",
    ]);
    command.arg(manifest).args(what);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    if let Some(target) = target {
        command.arg("--target-dir").arg(target);
    }
    let output = command.output().context("cargo does not run")?;
    if !output.status.success() {
        bail!("{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    let file_name = format!("lib{name}.so");
    for line in String::from_utf8(output.stdout)?.lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        let files = message["filenames"].as_array().into_iter().flatten();
        for file in files.filter_map(|f| f.as_str()) {
            if file.ends_with(&file_name) {
                return Ok(PathBuf::from(file));
            }
        }
    }
    bail!("{command:?} made no {file_name}")
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}
