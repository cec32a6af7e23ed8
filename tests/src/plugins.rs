//! Builds the test plug-ins of `tests/plugins`.

use anyhow::{Context, Result, bail, ensure};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
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
        "",
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
        "",
    )
}

/// How a variant of the plug-in `echo` differs from it. It is made in a copy of `backend-api` and `echo`, as the
/// author of another contract, with other tools, would make it.
#[derive(Clone, Copy, Default)]
pub struct Variant<'a> {
    /// Edits of the copies: `backend-api/src/...`, `echo/echo.rs`.
    pub edits: &'a [Edit<'a>],
    /// Files of `tests/plugins` whose text is put at the end of `echo.rs`.
    pub more: &'a [&'a str],
    /// A C++ file of `tests/plugins` that is linked in.
    pub cpp: Option<&'a str>,
    /// Arguments for the linker.
    pub link_arguments: &'a [&'a str],
    /// Flags for the compiler of all that is in the library, the standard library excepted.
    pub flags: &'a str,
}

/// The variant called `name`, built below `folder`.
///
/// # Panics
/// Where it cannot be built, with what the tools said.
pub fn built(folder: &Path, name: &str, variant: &Variant<'_>) -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = folder.join("variants").join(name);
    let library = echo_with(&folder, variant).unwrap_or_else(|e| panic!("{name}: {e:#}"));
    let named = folder.join(format!("{name}.so"));
    // Whole or not at all: a test beside this one may be loading the last one.
    let fresh = named.with_extension("fresh");
    let copied = fs::copy(library, &fresh).and_then(|_| fs::rename(&fresh, &named));
    copied.unwrap_or_else(|e| panic!("{}: {e}", named.display()));
    named
}

/// Makes a variant in `folder`. Variants whose folders are neighbours share what they have in common.
fn echo_with(folder: &Path, variant: &Variant<'_>) -> Result<PathBuf> {
    let (workspace, echo) = (workspace(), folder.join("echo"));
    let _ = fs::remove_dir_all(folder.join("backend-api"));
    copy_folder(&workspace.join("backend-api"), &folder.join("backend-api"))?;
    fs::create_dir_all(&echo)?;
    let mut source = fs::read_to_string(sources().join("echo.rs"))?;
    for more in variant.more {
        source.push('\n');
        source.push_str(&fs::read_to_string(sources().join(more))?);
    }
    fs::write(echo.join("echo.rs"), source)?;
    for (file, from, to) in variant.edits {
        let file = folder.join(file);
        let text = fs::read_to_string(&file)?;
        ensure!(text.contains(from), "{} has no {from:?}", file.display());
        fs::write(&file, text.replace(from, to))?;
    }
    let mut arguments: Vec<String> = variant.link_arguments.iter().map(|&a| a.to_owned()).collect();
    if let Some(cpp) = variant.cpp {
        arguments.push(compile_cpp(&sources().join(cpp), "-c", &echo.join("parts.o"))?);
        arguments.push("-lstdc++".to_owned());
    }
    let lines = arguments
        .iter()
        .map(|a| format!("println!(\"cargo::rustc-cdylib-link-arg={a}\");"));
    fs::write(
        echo.join("build.rs"),
        format!("fn main() {{ {} }}", lines.collect::<String>()),
    )?;
    fs::write(echo.join("Cargo.toml"), ECHO_MANIFEST)?;
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
    let target = beside(
        folder,
        if variant.flags.is_empty() {
            "target"
        } else {
            "target-flags"
        },
    )?;
    build(&path, &["-p", "echo"], "echo", Some(&target), variant.flags)
}

/// Builds the package `name` from these files, in `folder`, which must lie outside of the workspace; what is made on
/// the way goes to `target`.
pub fn outside(folder: &Path, target: &Path, name: &str, files: &[(&str, &str)]) -> Result<PathBuf> {
    for (file, text) in files {
        let file = folder.join(file);
        fs::create_dir_all(file.parent().context("a file in a folder")?)?;
        fs::write(file, text)?;
    }
    // The versions that are here already: nothing is fetched for a test.
    fs::copy(workspace().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let library = name.replace('-', "_");
    build(&folder.join("Cargo.toml"), &[], &library, Some(target), "")
}

fn beside(folder: &Path, name: &str) -> Result<PathBuf> {
    Ok(folder.parent().context("the folder has no parent")?.join(name))
}

/// A C++ file of `tests/plugins` as a library to preload, made in `folder`.
pub fn preload(folder: &Path, name: &str) -> Result<String> {
    compile_cpp(&sources().join(name), "-shared", &folder.join("preload.so"))
}

/// Compiles a C++ file and gives the path of what it was made into.
fn compile_cpp(source: &Path, kind: &str, made: &Path) -> Result<String> {
    let output = Command::new("g++")
        .args(["-std=c++17", "-O1", "-fPIC", "-Wall", "-Werror", "-pthread", kind])
        .arg(source)
        .arg("-o")
        .arg(made)
        .output()
        .context("this test needs g++, which does not run here: install it")?;
    ensure!(
        output.status.success(),
        "g++ failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(made.to_str().context("a path in UTF-8")?.to_owned())
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

/// Cargo, as this test was built with it.
pub(crate) fn cargo() -> Command {
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
    command
}

/// Builds a library and gives its file as cargo names it.
fn build(manifest: &Path, what: &[&str], name: &str, target: Option<&Path>, flags: &str) -> Result<PathBuf> {
    let mut command = cargo();
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
    if !flags.is_empty() {
        command.env("RUSTFLAGS", flags);
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

fn sources() -> PathBuf {
    workspace().join("tests/plugins")
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
