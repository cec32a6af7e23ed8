//! Log lines on their way to standard error. Whoever logs never waits for whoever reads: a pipe that nobody empties, a
//! full disk or a reader that has gone stops no request and no swap.

use anyhow::{Context, Result};
use std::{
    io::{self, IsTerminal, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, SyncSender},
    },
    thread,
    time::Duration,
};
use tracing_subscriber::EnvFilter;

/// Lines that wait for the reader; further ones are dropped, and counted.
const WAITING: usize = 4096;
/// How long the last lines may take.
const FLUSH: Duration = Duration::from_secs(1);

/// Sends log lines to standard error; `MET_LOG` says which (`debug`, `met_host::http=trace`, …). When what it returns is
/// dropped, the lines so far have been written, where somebody reads them.
pub fn log() -> Result<Logged> {
    let filter = EnvFilter::try_from_env("MET_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let writer = Writer::start(io::stderr()).context("no thread to write the log")?;
    let logged = Logged(writer.clone());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || writer.clone())
        .with_ansi(io::stderr().is_terminal())
        .init();
    Ok(logged)
}

/// See [`log`].
#[must_use = "the last lines are lost where the program ends without dropping it"]
pub struct Logged(Writer);

impl Drop for Logged {
    fn drop(&mut self) {
        let (written, wait) = mpsc::channel();
        // Where no place is free, nobody reads.
        if self.0.lines.try_send(Line::Flush(written)).is_ok() {
            let _ = wait.recv_timeout(FLUSH);
        }
    }
}

enum Line {
    Text(Vec<u8>),
    /// Tell when the lines before it are written.
    Flush(mpsc::Sender<()>),
}

/// Takes a line a call.
#[derive(Clone)]
struct Writer {
    lines: SyncSender<Line>,
    dropped: Arc<AtomicU64>,
}

impl Writer {
    /// Starts the thread that writes to `to`; it ends with the last writer.
    fn start(mut to: impl Write + Send + 'static) -> io::Result<Self> {
        let (lines, waiting) = mpsc::sync_channel(WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let lost = Arc::clone(&dropped);
        thread::Builder::new().name("log".to_owned()).spawn(move || {
            for line in waiting {
                // Nowhere is left to tell of a line that can't be written.
                let _ = match line {
                    Line::Text(text) => to.write_all(&text),
                    Line::Flush(written) => written.send(()).map_err(io::Error::other),
                };
                let lost = lost.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    let _ = writeln!(
                        to,
                        "{lost} log lines are missing here: they were not read in time"
                    );
                }
            }
        })?;
        Ok(Self { lines, dropped })
    }
}

impl Write for Writer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.lines.try_send(Line::Text(line.to_vec())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Read, sync::Mutex};

    #[test]
    fn a_log_that_nobody_reads_holds_nobody_and_says_what_is_missing() {
        let (mut read, write) = io::pipe().unwrap();
        let mut writer = Writer::start(write).unwrap();
        let line = [b'x'; 999];
        // More than the pipe and the line hold.
        for _ in 0..3 * WAITING {
            writer.write_all(&line).unwrap();
        }
        drop(writer);
        let mut text = String::new();
        read.read_to_string(&mut text).unwrap();
        assert!(text.contains(" log lines are missing here"), "{}", text.len());
    }

    #[test]
    fn the_end_waits_for_the_last_line() {
        /// Takes its time.
        struct Slow(Arc<Mutex<Vec<u8>>>);
        impl Write for Slow {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                thread::sleep(Duration::from_millis(10));
                self.0.lock().unwrap().extend(bytes);
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        let written = Arc::new(Mutex::new(Vec::new()));
        let writer = Writer::start(Slow(written.clone())).unwrap();
        for line in ["one\n", "two\n"] {
            writer.clone().write_all(line.as_bytes()).unwrap();
        }
        drop(Logged(writer));
        assert_eq!(*written.lock().unwrap(), b"one\ntwo\n");
    }

    #[test]
    fn a_reader_that_has_gone_is_no_error() {
        let (read, write) = io::pipe().unwrap();
        let writer = Writer::start(write).unwrap();
        drop(read);
        for line in ["one\n", "two\n"] {
            writer.clone().write_all(line.as_bytes()).unwrap();
        }
        let (written, wait) = mpsc::channel();
        writer.lines.send(Line::Flush(written)).unwrap();
        assert!(wait.recv().is_ok(), "the thread has ended");
    }
}
