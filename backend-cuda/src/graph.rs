//! Graphs: launches that come again, captured once and started as one.
//!
//! A graph stands for a list of launches, arguments included, and is started in the place of an equal list alone: so it
//! does what they would do, whatever was freed or made since.

use crate::{
    context::{Stream, strike},
    error::Checked,
    launch::Launches,
};
use cudarc::driver::{
    result::{graph, stream},
    sys::{self, CUgraphInstantiate_flags, CUstreamCaptureMode, CUstreamCaptureStatus},
};
use met_kernels::{Error, ErrorKind, Kind, Ledger, Result, Serial};

/// Owner label of the graphs.
const OWNER: &str = "decode graphs";
/// Lists that are known at a time: the one not met for longest goes.
const MOST: usize = 64;

/// Lists of launches that were met, the latest last.
#[derive(Debug)]
pub(crate) struct Graphs {
    ledger: Ledger,
    known: Vec<Known>,
}

#[derive(Debug)]
struct Known {
    launches: Launches,
    way: Way,
}

/// How a list is started.
#[derive(Debug)]
enum Way {
    /// Met once: it may never come again.
    Once,
    Graph(Graph),
    /// No graph was to be had.
    Plain,
}

impl Graphs {
    pub(crate) fn new(ledger: &Ledger) -> Self {
        Self {
            ledger: ledger.clone(),
            known: Vec::new(),
        }
    }

    /// Starts launches, as a graph where they were met before. Where there is no graph to be had, the log says why, and
    /// they are started one by one.
    ///
    /// # Safety
    /// As for [`Launches::start`], now.
    pub(crate) unsafe fn start(&mut self, launches: Launches, stream: &Stream) -> Result<()> {
        let found = self.known.iter().position(|known| known.launches == launches);
        let mut known = match found {
            Some(at) => self.known.remove(at),
            None => Known {
                launches,
                way: Way::Once,
            },
        };
        if found.is_some() && matches!(known.way, Way::Once) {
            // SAFETY: the caller's promise.
            let captured = unsafe { Graph::capture(&known.launches, stream, &self.ledger) };
            known.way = known
                .unless_lost("capturing", captured)?
                .map_or(Way::Plain, Way::Graph);
        }
        if let Way::Graph(graph) = &known.way {
            let started = known.unless_lost("starting", graph.launch(stream))?;
            if started.is_none() {
                known.way = Way::Plain;
            } else {
                self.known.push(known);
                return Ok(());
            }
        }
        // SAFETY: the caller's promise.
        let started = unsafe { known.launches.start(stream) };
        if self.known.len() == MOST {
            // A failure leaves its graph on the ledger, and the sweep reports it.
            self.known.remove(0);
        }
        self.known.push(known);
        started
    }

    /// Gives all of them back; the first failure is returned, and what failed stays on the ledger.
    pub(crate) fn release(&mut self) -> Result<()> {
        let results: Vec<_> = self.known.drain(..).map(|known| known.release()).collect();
        results.into_iter().collect()
    }
}

impl Known {
    /// What was to be had; nothing after an error that the log tells, unless the device is lost.
    fn unless_lost<T>(&self, what: &str, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(e) if e.kind == ErrorKind::Fault => Err(e),
            Err(e) => {
                met_backend_api::event!(
                    Warn,
                    "{what} a decode graph: {e}; its kernels are started one by one"
                );
                Ok(None)
            }
        }
    }

    fn release(self) -> Result<()> {
        match self.way {
            Way::Graph(mut graph) => graph.exec.release(),
            Way::Once | Way::Plain => Ok(()),
        }
    }
}

/// A graph that can be started.
#[derive(Debug)]
struct Graph {
    raw: sys::CUgraphExec,
    exec: Entry,
}

/// An entry on the ledger; dropping it gives back what it stands for, too.
#[derive(Debug)]
struct Entry {
    ledger: Ledger,
    serial: Option<Serial>,
}

impl Graph {
    /// # Safety
    /// As for [`Launches::start`].
    unsafe fn capture(launches: &Launches, stream: &Stream, ledger: &Ledger) -> Result<Self> {
        let serial = ledger.enter(Kind::Graph, OWNER, 0)?;
        // SAFETY: the caller's promise.
        let recorded = unsafe { record(launches, stream) };
        let recorded = recorded.inspect_err(|_| strike(ledger, serial))?;
        let address = recorded as usize;
        let give_back = move || {
            // SAFETY: recorded above, and destroyed once: the entry goes with it.
            unsafe { graph::destroy(address as sys::CUgraph) }.while_doing("destroying a recording")
        };
        ledger.attach(serial, Box::new(give_back))?;
        // What is made of it doesn't need it; a failure leaves it on the ledger, and the sweep reports it.
        let _recording = Entry::new(ledger, serial);

        let serial = ledger.enter(Kind::Graph, OWNER, 0)?;
        // SAFETY: a live recording.
        let made = unsafe { graph::instantiate(recorded, CUgraphInstantiate_flags(0)) };
        let made = made.while_doing("making a graph");
        let raw = made.inspect_err(|_| strike(ledger, serial))?;
        let address = raw as usize;
        let give_back = move || {
            // SAFETY: made above, and destroyed once: the entry goes with it. The driver lets it end where it runs.
            unsafe { graph::exec_destroy(address as sys::CUgraphExec) }.while_doing("destroying a graph")
        };
        ledger.attach(serial, Box::new(give_back))?;
        Ok(Self {
            raw,
            exec: Entry::new(ledger, serial),
        })
    }

    fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both are alive. What its kernels use is what the equal list does, by the caller's promise.
        unsafe { graph::launch(self.raw, stream.raw()) }.while_doing("starting a graph")
    }
}

/// Captures launches.
///
/// # Safety
/// As for [`Launches::start`].
unsafe fn record(launches: &Launches, on: &Stream) -> Result<sys::CUgraph> {
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: a live stream.
    unsafe { stream::begin_capture(on.raw(), mode) }.while_doing("beginning to capture")?;
    // SAFETY: the caller's promise.
    let started = unsafe { launches.start(on) };
    // SAFETY: a live stream.
    let end = || unsafe { stream::end_capture(on.raw()) }.while_doing("ending a capture");
    let ended = end().or_else(|e| {
        // A stream that goes on capturing is of no use any more.
        // SAFETY: a live stream.
        match unsafe { stream::is_capturing(on.raw()) } {
            Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE) => Err(e),
            _ => end().map_err(|e| Error::new(ErrorKind::Fault, format!("{e}; replace the generation"))),
        }
    });
    match (started, ended) {
        (Ok(()), Ok(recorded)) if !recorded.is_null() => Ok(recorded),
        (Ok(()), Ok(_)) => Err(Error::bug("a capture gave nothing")),
        (_, Err(e)) => Err(e),
        (Err(e), Ok(recorded)) => {
            if !recorded.is_null() {
                // SAFETY: given just now.
                unsafe { graph::destroy(recorded) }.while_doing("destroying a recording")?;
            }
            Err(e)
        }
    }
}

impl Entry {
    fn new(ledger: &Ledger, serial: Serial) -> Self {
        Self {
            ledger: ledger.clone(),
            serial: Some(serial),
        }
    }

    fn release(&mut self) -> Result<()> {
        match self.serial.take() {
            Some(serial) => self.ledger.release(serial).map(|_| ()),
            None => Ok(()),
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // A failure leaves it on the ledger, and the sweep reports it.
        let _ = self.release();
    }
}
