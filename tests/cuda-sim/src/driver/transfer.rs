//! Copies and fills.

use std::ffi::{c_uchar, c_uint, c_ushort};

use super::Driver;
use super::memory::{Owned, Owner};
use super::pointer::bytes as copied;
use super::queue::Op;
use super::stream::LEGACY;
use crate::code::Code;

impl Driver {
    /// Refuses a device range that no allocation contains.
    fn device_range(&mut self, address: u64, bytes: usize) -> Result<(), Code> {
        let context = self.context()?;
        let Some((start, _)) = context.arena.allocation(address) else {
            return Err(Code::INVALID_VALUE);
        };
        let leaving = matches!(
            context.allocations.get(&start),
            Some(Owned { leaving: true, .. }) | None
        );
        if leaving || !context.arena.contains(address, bytes as u64) {
            return Err(Code::INVALID_VALUE);
        }
        Ok(())
    }

    /// Whether a host address lies in pinned memory, which a copy reads when it is done, not when it is asked for.
    fn is_pinned(&mut self, address: usize) -> Result<bool, Code> {
        let context = self.context()?;
        let Some((start, _)) = context.arena.allocation(address as u64) else {
            return Ok(false);
        };
        Ok(matches!(
            context.allocations.get(&start),
            Some(Owned {
                owner: Owner::Pinned,
                ..
            })
        ))
    }

    fn upload(&mut self, to: u64, from: *const u8, bytes: usize, stream: usize) -> Result<(), Code> {
        self.context()?.stream(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        self.device_range(to, bytes)?;
        if from.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let late = self.is_pinned(from as usize)? || self.context()?.stream(stream)?.capture.is_some();
        let op = if late || !self.settings.lazy {
            Op::Upload {
                to,
                from: from as usize,
                bytes: bytes as u64,
            }
        } else {
            Op::UploadCopy {
                to,
                from: copied(from, bytes)?.into(),
            }
        };
        self.submit(stream, op)
    }

    fn download(&mut self, to: *mut u8, from: u64, bytes: usize, stream: usize) -> Result<(), Code> {
        self.context()?.stream(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        self.device_range(from, bytes)?;
        if to.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let waits = !self.is_pinned(to as usize)? && self.context()?.stream(stream)?.capture.is_none();
        self.submit(
            stream,
            Op::Download {
                to: to as usize,
                from,
                bytes: bytes as u64,
            },
        )?;
        if waits {
            // A copy to pageable memory returns when it is done.
            let end = self.context()?.end(stream)?;
            self.drain(end);
        }
        Ok(())
    }

    fn copy_within(&mut self, to: u64, from: u64, bytes: usize, stream: usize) -> Result<(), Code> {
        self.context()?.stream(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        self.device_range(from, bytes)?;
        self.device_range(to, bytes)?;
        self.submit(
            stream,
            Op::Move {
                to,
                from,
                bytes: bytes as u64,
            },
        )
    }

    fn fill(&mut self, to: u64, value: u32, width: u8, count: usize, stream: usize) -> Result<(), Code> {
        self.context()?.stream(stream)?;
        if count == 0 {
            return Ok(());
        }
        let bytes = count.checked_mul(width as usize).ok_or(Code::INVALID_VALUE)?;
        if !to.is_multiple_of(width as u64) {
            return Err(Code::INVALID_VALUE);
        }
        self.device_range(to, bytes)?;
        self.submit(
            stream,
            Op::Fill {
                to,
                pattern: value.to_le_bytes(),
                width,
                count: count as u64,
            },
        )
    }
}

api! {
    /// Host to device, done on return.
    fn cuMemcpyHtoD_v2(to: u64, from: *const u8, bytes: usize) |d| {
        d.refuse_while_capturing()?;
        d.upload(to, from, bytes, LEGACY)
    }

    /// Device to host, done on return.
    fn cuMemcpyDtoH_v2(to: *mut u8, from: u64, bytes: usize) |d| {
        d.refuse_while_capturing()?;
        d.download(to, from, bytes, LEGACY)
    }

    /// Device to device.
    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) |d| {
        d.refuse_while_capturing()?;
        d.copy_within(to, from, bytes, LEGACY)
    }

    /// Host to device in stream order. Pageable memory is read before this returns.
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const u8, bytes: usize, stream: usize) |d| {
        d.upload(to, from, bytes, stream)
    }

    /// Device to host in stream order.
    fn cuMemcpyDtoHAsync_v2(to: *mut u8, from: u64, bytes: usize, stream: usize) |d| {
        d.download(to, from, bytes, stream)
    }

    /// Device to device in stream order.
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) |d| {
        d.copy_within(to, from, bytes, stream)
    }

    /// Between any two addresses, done on return.
    fn cuMemcpy(to: u64, from: u64, bytes: usize) |d| {
        d.refuse_while_capturing()?;
        d.copy_any(to, from, bytes, LEGACY)
    }

    /// Between any two addresses in stream order.
    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: usize) |d| {
        d.copy_any(to, from, bytes, stream)
    }

    /// Fills bytes.
    fn cuMemsetD8_v2(to: u64, value: c_uchar, count: usize) |d| {
        d.refuse_while_capturing()?;
        d.fill(to, value as u32, 1, count, LEGACY)
    }

    /// Fills bytes in stream order.
    fn cuMemsetD8Async(to: u64, value: c_uchar, count: usize, stream: usize) |d| {
        d.fill(to, value as u32, 1, count, stream)
    }

    /// Fills 16-bit elements.
    fn cuMemsetD16_v2(to: u64, value: c_ushort, count: usize) |d| {
        d.refuse_while_capturing()?;
        d.fill(to, value as u32, 2, count, LEGACY)
    }

    /// Fills 16-bit elements in stream order.
    fn cuMemsetD16Async(to: u64, value: c_ushort, count: usize, stream: usize) |d| {
        d.fill(to, value as u32, 2, count, stream)
    }

    /// Fills 32-bit elements.
    fn cuMemsetD32_v2(to: u64, value: c_uint, count: usize) |d| {
        d.refuse_while_capturing()?;
        d.fill(to, value, 4, count, LEGACY)
    }

    /// Fills 32-bit elements in stream order.
    fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: usize) |d| {
        d.fill(to, value, 4, count, stream)
    }
}

impl Driver {
    fn copy_any(&mut self, to: u64, from: u64, bytes: usize, stream: usize) -> Result<(), Code> {
        let context = self.context()?;
        let (to_device, from_device) = (context.arena.contains(to, 1), context.arena.contains(from, 1));
        match (to_device, from_device) {
            (true, true) => self.copy_within(to, from, bytes, stream),
            (true, false) => self.upload(to, from as *const u8, bytes, stream),
            (false, true) => self.download(to as *mut u8, from, bytes, stream),
            (false, false) => Err(Code::INVALID_VALUE),
        }
    }
}
