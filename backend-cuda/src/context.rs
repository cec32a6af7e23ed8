//! The primary context of a card, its streams and events.

use crate::error::Checked;
use cudarc::driver::{
    result::{self, ctx, event, stream},
    sys::{self, CUdevice, CUdevice_attribute, CUevent_flags, CUevent_wait_flags},
};
use met_kernels::{Error, Kind, Ledger, Result, Serial};
use std::{
    cell::OnceCell,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

/// Owner label of the streams.
const STREAMS: &str = "streams";

/// A card's primary context, on the ledger, and current on the thread that opened it. The last handle releases it where
/// [`close`](Self::close) did not.
#[derive(Debug)]
pub(crate) struct Context {
    device: CUdevice,
    pub(crate) has_pool: bool,
    ledger: Ledger,
    serial: Serial,
    /// What the card said last, once there is no context to ask it in.
    memory: OnceCell<(u64, u64)>,
}

impl Context {
    /// Retains the primary context of the `ordinal`-th card and makes it current.
    pub(crate) fn open(ordinal: u32, ledger: &Ledger) -> Result<Rc<Self>> {
        result::init().while_doing("starting the driver")?;
        let count = result::device::get_count().while_doing("counting the cards")?;
        let index = i32::try_from(ordinal).ok().filter(|&i| i < count);
        let index = index.ok_or_else(|| {
            Error::invalid(format!(
                "there is no CUDA device {ordinal}; the driver finds {count}"
            ))
        })?;
        let device = result::device::get(index).while_doing("opening the card")?;
        let has_pool = attribute(
            device,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
        )? != 0;
        let serial = ledger.enter(Kind::Context, "context", 0)?;
        // SAFETY: `device` was given by the driver; the release is what the ledger gives back.
        let retained = unsafe { result::primary_ctx::retain(device) }.while_doing("making the context");
        let context = retained.inspect_err(|_| strike(ledger, serial))?;
        ledger.attach(serial, Box::new(move || leave(device)))?;
        let this = Rc::new(Self {
            device,
            has_pool,
            ledger: ledger.clone(),
            serial,
            memory: OnceCell::new(),
        });
        // SAFETY: retained above.
        unsafe { ctx::set_current(context) }.while_doing("making the context current")?;
        Ok(this)
    }

    /// The device's number at the driver.
    pub(crate) fn device(&self) -> CUdevice {
        self.device
    }

    /// Free and total bytes of the card; after [`close`](Self::close) as it was at the end.
    pub(crate) fn memory(&self) -> Result<(u64, u64)> {
        if let Some(&last) = self.memory.get() {
            return Ok(last);
        }
        let (free, total) = result::mem_get_info().while_doing("asking for free memory")?;
        Ok((free as u64, total as u64))
    }

    /// Waits for all work in it.
    pub(crate) fn synchronize(&self) -> Result<()> {
        ctx::synchronize().while_doing("waiting for the card")
    }

    /// Releases it; a second call does nothing. What is left in it then, the driver takes where nobody else of the
    /// process uses the card.
    pub(crate) fn close(&self) -> Result<()> {
        if !self.ledger.holds(self.serial) {
            return Ok(());
        }
        if let Ok(last) = self.memory() {
            // It is set once, by the first who tries.
            let _ = self.memory.set(last);
        }
        let release = || self.ledger.release(self.serial).map(|_| ());
        // It may be the last call of all.
        release().or_else(|_| release())
    }

    /// Its entry on the ledger, while it is there.
    pub(crate) fn serial(&self) -> Serial {
        self.serial
    }
}

/// Releases a device's context, once.
fn leave(device: CUdevice) -> Result<()> {
    // SAFETY: the thread has no context then; nothing is called in it afterwards.
    let left = unsafe { ctx::set_current(std::ptr::null_mut()) }.while_doing("leaving the context");
    if let Err(e) = left {
        met_backend_api::event!(Error, "{e}");
    }
    // SAFETY: retained once, in `open`; a release that failed didn't happen.
    unsafe { result::primary_ctx::release(device) }.while_doing("releasing the context")
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Err(e) = self.close() {
            met_backend_api::event!(Error, "{e}");
        }
    }
}

/// A number that the driver gives of a card.
pub(crate) fn attribute(device: CUdevice, which: CUdevice_attribute) -> Result<i32> {
    // SAFETY: `device` was given by the driver.
    unsafe { result::device::get_attribute(device, which) }.while_doing("asking what the card can do")
}

/// A stream on the ledger. After [`close`](Self::close) its handle is that of the driver's default stream, so that
/// what is freed later still is.
#[derive(Debug)]
pub(crate) struct Stream {
    handle: Arc<AtomicUsize>,
    ledger: Ledger,
    serial: Serial,
}

impl Stream {
    pub(crate) fn new(ledger: &Ledger) -> Result<Self> {
        let serial = ledger.enter(Kind::Stream, STREAMS, 0)?;
        let made = stream::create(stream::StreamKind::NonBlocking).while_doing("making a stream");
        let made = made.inspect_err(|_| strike(ledger, serial))? as usize;
        let handle = Arc::new(AtomicUsize::new(made));
        let shared = handle.clone();
        let give_back = move || {
            let stream = shared.load(SeqCst) as sys::CUstream;
            // SAFETY: made above, and destroyed once: afterwards the entry is off the ledger.
            unsafe { stream::destroy(stream) }.while_doing("destroying a stream")?;
            shared.store(0, SeqCst);
            Ok(())
        };
        ledger.attach(serial, Box::new(give_back))?;
        Ok(Self {
            handle,
            ledger: ledger.clone(),
            serial,
        })
    }

    pub(crate) fn raw(&self) -> sys::CUstream {
        self.handle.load(SeqCst) as sys::CUstream
    }

    pub(crate) fn shared(&self) -> Arc<AtomicUsize> {
        self.handle.clone()
    }

    /// Waits for all its work.
    pub(crate) fn synchronize(&self) -> Result<()> {
        // SAFETY: a live stream, or the default one.
        unsafe { stream::synchronize(self.raw()) }.while_doing("waiting for the card")
    }

    /// Makes later work on this stream wait for an event.
    pub(crate) fn wait(&self, event: &Event) -> Result<()> {
        // SAFETY: both are alive.
        unsafe { stream::wait_event(self.raw(), event.raw, CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }
            .while_doing("waiting for an event")
    }

    /// Destroys it. A second call does nothing.
    pub(crate) fn close(&self) -> Result<()> {
        match self.raw().is_null() {
            true => Ok(()),
            false => self.ledger.release(self.serial).map(|_| ()),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // A failure leaves it on the ledger, and the sweep reports it.
        let _ = self.close();
    }
}

/// An event on the ledger.
#[derive(Debug)]
pub(crate) struct Event {
    raw: sys::CUevent,
    ledger: Ledger,
    serial: Serial,
}

impl Event {
    pub(crate) fn new(ledger: &Ledger, owner: &str) -> Result<Self> {
        let serial = ledger.enter(Kind::Event, owner, 0)?;
        let made = event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING).while_doing("making an event");
        let raw = made.inspect_err(|_| strike(ledger, serial))?;
        let address = raw as usize;
        let give_back = move || {
            // SAFETY: made above; destroyed once, since the entry goes with it.
            unsafe { event::destroy(address as sys::CUevent) }.while_doing("destroying an event")
        };
        ledger.attach(serial, Box::new(give_back))?;
        Ok(Self {
            raw,
            ledger: ledger.clone(),
            serial,
        })
    }

    /// Marks the end of a stream's work so far.
    pub(crate) fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both are alive.
        unsafe { event::record(self.raw, stream.raw()) }.while_doing("recording an event")
    }

    /// Waits for what was recorded; nothing where nothing was.
    pub(crate) fn synchronize(&self) -> Result<()> {
        // SAFETY: it is alive.
        unsafe { event::synchronize(self.raw) }.while_doing("waiting for an event")
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // What fails here stays on the ledger, and the sweep reports it.
        let _ = self.ledger.release(self.serial);
    }
}

/// Takes back an entry that was made just now, for a resource that wasn't to be had.
pub(crate) fn strike(ledger: &Ledger, serial: Serial) {
    // It can't be unknown.
    let _ = ledger.strike(serial);
}
