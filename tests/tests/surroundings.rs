//! A server in surroundings that lack something: nobody reads its log, it gets no threads, or no descriptors.

use anyhow::{Result, ensure};
use met_tests::{
    fixture,
    operator::{Operated, builtin, library, with},
    plugins,
};
use serde_json::json;
use std::{
    fs::File,
    io::{ErrorKind, Write},
    net::TcpStream,
    os::unix::fs::OpenOptionsExt,
    process::Command,
};

#[test]
fn a_log_that_can_not_be_written_stops_nothing() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let pipe = folder.path().join("log");
    ensure!(Command::new("mkfifo").arg(&pipe).status()?.success());
    let mut full = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&pipe)?;
    let end = std::iter::repeat_with(|| full.write(&[b' '; 4096])).find_map(Result::err);
    ensure!(end.is_some_and(|end| end.kind() == ErrorKind::WouldBlock));
    let model = fixture("tiny-q4_1.gguf");
    for log in ["/dev/full", &pipe.to_string_lossy()] {
        let mut operated = Operated::start_after(&format!("exec 2>{log}"), &[("chat", &builtin(&model))])?;
        let before = operated.answer("chat")?;
        let report = operated.swap("chat", &library(&model)?)?;
        ensure!(report["outcome"] == "swapped", "{log}: {report}");
        ensure!(operated.answer("chat")? == before, "{log}");
        let status = operated.server.stop()?;
        ensure!(status.success(), "{log}: {status}");
    }
    Ok(())
}

#[test]
fn idle_connections_leave_descriptors_for_operators_and_swaps() -> Result<()> {
    let model = fixture("tiny-q4_1.gguf");
    let mut operated = Operated::start_after("ulimit -n 64", &[("chat", &builtin(&model))])?;
    let idle: Vec<TcpStream> = (0..100)
        .map(|_| TcpStream::connect(operated.server.address()))
        .collect::<Result<_, _>>()?;
    let report = operated.swap("chat", &library(&model)?)?;
    ensure!(report["outcome"] == "swapped", "{report}");
    drop(idle);
    operated.answer("chat")?;
    operated.server.stop()?;
    let log = operated.server.log();
    ensure!(log.contains("at most 16 connections"), "{log}");
    Ok(())
}

/// However few threads the system gives: it serves and ends in order, or says what it lacks.
#[test]
fn without_threads_it_does_what_it_can_and_says_what_it_can_not() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let preload = plugins::preload(folder.path(), "no_threads.cpp")?;
    let model = fixture("tiny-q4_1.gguf");
    let (first, second) = (builtin(&model), library(&model)?);
    let (mut refused, mut failed) = (0, 0);
    for threads in 0..64 {
        let threads = threads.to_string();
        let env = [("LD_PRELOAD", &*preload), ("MET_TEST_THREADS", &threads)];
        let mut operated = match Operated::start_in(&env, "", &[("chat", &first)]) {
            Ok(operated) => operated,
            Err(error) => {
                let text = format!("{error:#}");
                let is_told = text.contains("exit status: 1 ") && text.contains("thread");
                ensure!(is_told && !text.contains("panicked"), "{threads} threads: {text}");
                refused += 1;
                continue;
            }
        };
        let before = operated.answer("chat")?;
        let reply = operated.send(
            "POST",
            "/slots/chat/swap",
            &with(&second, json!({"plan": "side_by_side"})),
        )?;
        let is_swapped = reply.json["outcome"] == "swapped" && reply.json["error"].is_null();
        ensure!(
            is_swapped || reply.json["error"].to_string().contains("thread"),
            "{threads} threads: {reply:?}"
        );
        ensure!(operated.answer("chat")? == before, "{threads} threads");
        let status = operated.server.stop()?;
        let log = operated.server.log();
        ensure!(!log.contains("panicked"), "{threads} threads: {log}");
        if is_swapped {
            ensure!(refused > 0 && failed > 0, "{refused}, {failed}");
            return Ok(());
        }
        ensure!(status.success(), "{threads} threads: {status}\n{log}");
        failed += 1;
    }
    anyhow::bail!("it needs more threads than these")
}

#[test]
fn a_folder_for_copies_that_is_not_there_is_named() -> Result<()> {
    let model = fixture("tiny-q4_1.gguf");
    let env = [("MET_STAGE_DIR", "/proc/none")];
    let operated = Operated::start_in(&env, "", &[("chat", &builtin(&model))])?;
    let report = operated.swap("chat", &library(&model)?)?;
    ensure!(
        report["outcome"] == "failed" && report["error"].to_string().contains("MET_STAGE_DIR=/proc/none"),
        "{report}"
    );
    Ok(())
}
