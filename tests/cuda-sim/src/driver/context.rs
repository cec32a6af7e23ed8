//! The device's primary context.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_uint};

use super::Driver;
use super::pointer::put;
use super::pool::Pool;
use super::state::{CONTEXT_BYTES, Context};
use super::stream::{LEGACY, Stream};
use crate::arena::Arena;
use crate::code::Code;

/// Address space a byte of device memory: freed addresses are not used again soon.
const SPREAD: u64 = 16;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The handle of the context that is current on this thread, or 0.
pub(super) fn current() -> usize {
    CURRENT.get()
}

impl Driver {
    fn new_context(&mut self) -> Result<usize, Code> {
        if self.settings.memory < CONTEXT_BYTES {
            return Err(Code::OUT_OF_MEMORY);
        }
        // Pinned host memory is taken from the arena too.
        let arena = Arena::new((self.settings.memory.max(1 << 28) * SPREAD) as usize)?;
        let (handle, pool) = (self.handle(), self.handle());
        self.context = Some(Context {
            handle,
            retained: 0,
            poison: None,
            arena,
            allocations: BTreeMap::new(),
            pools: HashMap::from([(pool, Pool::default())]),
            default_pool: pool,
            current_pool: pool,
            streams: HashMap::from([(LEGACY, Stream::default())]),
            events: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            graphs: HashMap::new(),
            executables: HashMap::new(),
            captures: HashMap::new(),
            limits: HashMap::from([(0, 1024), (1, 1 << 20), (2, 8 << 20)]),
        });
        Ok(handle)
    }
}

api! {
    /// Makes the primary context, or counts one more user of it.
    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) |d| {
        d.device(device)?;
        let handle = match &d.context {
            Some(context) => context.handle,
            None => d.new_context()?,
        };
        if let Some(context) = &mut d.context {
            context.retained += 1;
        }
        put(context, handle)
    }

    /// Gives up one use of the primary context; with the last one everything in it is gone.
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) |d| {
        d.device(device)?;
        let Some(context) = &mut d.context else { return Err(Code::INVALID_CONTEXT) };
        context.retained -= 1;
        if context.retained == 0 {
            d.drain_all();
            d.end_context();
        }
        Ok(())
    }

    /// Destroys everything in the primary context, whoever uses it.
    fn cuDevicePrimaryCtxReset_v2(device: c_int) |d| {
        d.device(device)?;
        d.end_context();
        Ok(())
    }

    /// Whether the primary context exists.
    fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) |d| {
        d.device(device)?;
        put(flags, 0)?;
        put(active, d.context.is_some() as c_int)
    }

    /// Sets how a thread waits, which makes no difference here.
    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint) |d| {
        d.device(device)
    }

    /// The context that is current on this thread.
    fn cuCtxGetCurrent(context: *mut usize) |d| {
        if !d.initialised {
            return Err(Code::NOT_INITIALIZED);
        }
        put(context, current())
    }

    /// Makes a context current on this thread.
    fn cuCtxSetCurrent(context: usize) |d| {
        if !d.initialised {
            return Err(Code::NOT_INITIALIZED);
        }
        if context != 0 && d.context.as_ref().is_none_or(|known| known.handle != context) {
            return Err(Code::INVALID_CONTEXT);
        }
        CURRENT.set(context);
        Ok(())
    }

    /// The device of the current context.
    fn cuCtxGetDevice(device: *mut c_int) |d| {
        d.context()?;
        put(device, 0)
    }

    /// Waits for all work.
    fn cuCtxSynchronize() |d| {
        d.refuse_while_capturing()?;
        d.drain_all();
        let context = d.context()?;
        context.trim_pools();
        Ok(())
    }

    /// Sets how a thread waits, which makes no difference here.
    fn cuCtxSetFlags(flags: c_uint) |d| {
        d.context().map(drop)
    }

    /// A limit of the context.
    fn cuCtxGetLimit(value: *mut usize, limit: c_int) |d| {
        let known = d.context()?.limits.get(&limit).copied().ok_or(Code::INVALID_VALUE)?;
        put(value, known)
    }

    /// Sets a limit of the context, which is remembered and nothing else.
    fn cuCtxSetLimit(limit: c_int, value: usize) |d| {
        d.context()?.limits.insert(limit, value);
        Ok(())
    }

    /// The priorities that streams may have.
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) |d| {
        d.context()?;
        put(least, 0)?;
        put(greatest, -5)
    }
}
