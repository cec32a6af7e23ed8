//! Memory of the card, and pinned memory of the host, on the ledger.

use crate::{
    context::{Context, Stream, strike},
    error::{Checked, failed, is_out_of_memory},
    pool::Pool,
};
use cudarc::driver::{
    result::{self, mem_pool},
    sys::{self, CUdeviceptr},
};
use met_kernels::{Error, Kind, Ledger, Result, Serial};
use std::{
    ops::{Deref, DerefMut},
    ptr::NonNull,
    rc::Rc,
    sync::atomic::Ordering::SeqCst,
};

/// What allocations need.
#[derive(Clone, Debug)]
pub(crate) struct Allocator {
    /// Where the card has pools.
    pub(crate) pool: Option<Rc<Pool>>,
    pub(crate) stream: Rc<Stream>,
    pub(crate) ledger: Ledger,
    /// Outlives what was made in it.
    pub(crate) context: Rc<Context>,
}

/// Bytes on the card. Dropping it gives them back, too; [`DeviceBuffer::release`] is the way that reports.
#[derive(Debug)]
pub(crate) struct DeviceBuffer {
    address: CUdeviceptr,
    bytes: usize,
    entry: Option<(Ledger, Serial)>,
}

impl Allocator {
    /// Bytes that live long, taken and given back at once.
    pub(crate) fn memory(&self, owner: &str, bytes: usize) -> Result<DeviceBuffer> {
        // SAFETY: memory of no address that anyone knows.
        self.enter(owner, bytes, false, || unsafe { result::malloc_sync(bytes) })
    }

    /// Bytes for a step's work, taken and given back in the order of the stream where the card has a pool.
    pub(crate) fn scratch(&self, owner: &str, bytes: usize) -> Result<DeviceBuffer> {
        let Some(pool) = &self.pool else {
            return self.memory(owner, bytes);
        };
        // SAFETY: as above; the stream and the pool are alive.
        self.enter(owner, bytes, true, || unsafe {
            mem_pool::alloc_async(pool.raw(), bytes, self.stream.raw())
        })
    }

    /// The same, filled.
    pub(crate) fn upload<T: Plain>(&self, owner: &str, values: &[T]) -> Result<DeviceBuffer> {
        let buffer = self.scratch(owner, size_of_val(values))?;
        buffer.write(0, as_bytes(values), &self.stream)?;
        Ok(buffer)
    }

    /// `len` zeros of `T`, of long life.
    pub(crate) fn zeroed<T: Plain>(&self, owner: &str, len: usize) -> Result<DeviceBuffer> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(|| {
                Error::exhausted(format!("{owner} of {len} elements exceeds the address space"))
            })?;
        let buffer = self.memory(owner, bytes)?;
        if bytes > 0 {
            // SAFETY: the whole of a live allocation.
            unsafe { result::memset_d8_async(buffer.address, 0, bytes, self.stream.raw()) }
                .while_doing("zeroing memory")?;
        }
        Ok(buffer)
    }

    fn enter(
        &self,
        owner: &str,
        bytes: usize,
        in_stream_order: bool,
        allocate: impl FnOnce() -> Result<CUdeviceptr, result::DriverError>,
    ) -> Result<DeviceBuffer> {
        let serial = self.ledger.enter(Kind::Memory, owner, bytes as u64)?;
        let address = match bytes {
            0 => 0,
            _ => allocate().map_err(|e| {
                strike(&self.ledger, serial);
                self.refused(owner, bytes, e)
            })?,
        };
        let stream = self.stream.shared();
        let give_back = move || {
            let freed = match (bytes, in_stream_order) {
                (0, _) => return Ok(()),
                // SAFETY: allocated above, and freed once: the entry goes with it. Work on the stream that uses it
                // was put there before.
                (_, true) => unsafe { result::free_async(address, stream.load(SeqCst) as sys::CUstream) },
                // SAFETY: as above; the driver waits for the work that uses it.
                (_, false) => unsafe { result::free_sync(address) },
            };
            freed.while_doing("freeing memory")
        };
        self.ledger.attach(serial, Box::new(give_back))?;
        Ok(DeviceBuffer {
            address,
            bytes,
            entry: Some((self.ledger.clone(), serial)),
        })
    }

    fn refused(&self, owner: &str, bytes: usize, error: result::DriverError) -> Error {
        match self.context.memory() {
            Ok((free, total)) if is_out_of_memory(&error) => Error::exhausted(format!(
                "{owner} needs {bytes} bytes more, but the card has {free} free of {total}; load a smaller model or free memory on the card"
            )),
            _ => failed(owner, error),
        }
    }
}

impl DeviceBuffer {
    /// Where it is.
    pub(crate) fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// Its size.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies `data` to byte `at` on, in the order of the stream. `data` may change when the call returns, unless it
    /// is pinned.
    pub(crate) fn write(&self, at: usize, data: &[u8], stream: &Stream) -> Result<()> {
        self.check(at, data.len())?;
        if data.is_empty() {
            return Ok(());
        }
        // SAFETY: the range lies within a live allocation; memory that isn't pinned is read before the call returns.
        unsafe { result::memcpy_htod_async(self.address + at as u64, data, stream.raw()) }
            .while_doing("copying to the card")
    }

    /// Copies `bytes` bytes of `from` to byte `at` on, in the order of the stream.
    pub(crate) fn copy_from(
        &self,
        at: usize,
        from: &Self,
        from_at: usize,
        bytes: usize,
        stream: &Stream,
    ) -> Result<()> {
        self.check(at, bytes)?;
        from.check(from_at, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let (to, from) = (self.address + at as u64, from.address + from_at as u64);
        // SAFETY: both ranges lie within live allocations.
        unsafe { result::memcpy_dtod_async(to, from, bytes, stream.raw()) }.while_doing("copying on the card")
    }

    /// Copies bytes from `at` on to `data`, after all work on the stream, and waits.
    pub(crate) fn read(&self, at: usize, data: &mut [u8], stream: &Stream) -> Result<()> {
        self.check(at, data.len())?;
        if !data.is_empty() {
            // SAFETY: the range lies within a live allocation, and the wait follows.
            unsafe { result::memcpy_dtoh_async(data, self.address + at as u64, stream.raw()) }
                .while_doing("copying from the card")?;
        }
        stream.synchronize()
    }

    /// Starts copying from the start on to pinned memory, in the order of the stream.
    ///
    /// # Safety
    /// `to` must live, unread and unwritten, until the copy is done.
    pub(crate) unsafe fn fetch(&self, to: &mut [u8], stream: &Stream) -> Result<()> {
        self.check(0, to.len())?;
        // SAFETY: the range lies within a live allocation; the rest is the caller's promise.
        unsafe { result::memcpy_dtoh_async(to, self.address, stream.raw()) }
            .while_doing("copying from the card")
    }

    fn check(&self, at: usize, len: usize) -> Result<()> {
        match at.checked_add(len) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(Error::bug(format!(
                "{len} bytes at {at} of an allocation of {}",
                self.bytes
            ))),
        }
    }

    /// Gives it back and returns its bytes.
    pub(crate) fn release(mut self) -> Result<u64> {
        self.free()
    }

    fn free(&mut self) -> Result<u64> {
        match self.entry.take() {
            Some((ledger, serial)) => ledger.release(serial),
            None => Ok(0),
        }
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // A failure leaves it on the ledger, and the sweep reports it.
        let _ = self.free();
    }
}

/// Pinned memory of the host, from which copies run by themselves.
#[derive(Debug)]
pub(crate) struct Pinned {
    start: NonNull<u8>,
    bytes: usize,
    ledger: Ledger,
    serial: Serial,
}

impl Pinned {
    pub(crate) fn new(ledger: &Ledger, owner: &str, bytes: usize) -> Result<Self> {
        let serial = ledger.enter(Kind::Pinned, owner, bytes as u64)?;
        // SAFETY: new memory of no address that anyone knows.
        let allocated = unsafe { result::malloc_host(bytes, 0) }
            .while_doing(&format!("pinning {bytes} bytes of the host's memory ({owner})"));
        let address = allocated.inspect_err(|_| strike(ledger, serial))? as usize;
        let give_back = move || {
            // SAFETY: allocated above, and freed once: the entry goes with it. Its owner waited for the copies.
            unsafe { result::free_host(address as *mut _) }.while_doing("freeing pinned memory")
        };
        ledger.attach(serial, Box::new(give_back))?;
        let start =
            NonNull::new(address as *mut u8).ok_or_else(|| Error::bug("pinned memory at address 0"))?;
        // SAFETY: `bytes` fresh bytes; written once so that they hold values.
        unsafe { start.as_ptr().write_bytes(0, bytes) };
        Ok(Self {
            start,
            bytes,
            ledger: ledger.clone(),
            serial,
        })
    }
}

impl Deref for Pinned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `bytes` bytes, initialised in `new`, that live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Pinned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is the only access of the host's.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // A failure leaves it on the ledger, and the sweep reports it.
        let _ = self.ledger.release(self.serial);
    }
}

/// Types without padding, any bytes of which are a value.
///
/// # Safety
/// The above must be true of the type.
pub(crate) unsafe trait Plain: Copy + 'static {}

// SAFETY: plain numbers.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}

/// The bytes of some values.
pub(crate) fn as_bytes<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: `T` has no padding, and the bytes are borrowed as the values are.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// The same, to be written.
pub(crate) fn as_bytes_mut<T: Plain>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and any bytes are values of `T`.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}
