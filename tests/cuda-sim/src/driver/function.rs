//! Attributes of functions, and how many blocks fit.

use std::ffi::{c_int, c_uint, c_void};

use super::Driver;
use super::device::{CAPABILITY, SHARED_BYTES};
use super::module::Function;
use super::pointer::put;
use crate::code::Code;

/// Threads, blocks and shared bytes that a multiprocessor holds.
const MULTIPROCESSOR: [u32; 3] = [2048, 32, 164 << 10];

impl Driver {
    /// The function with a handle.
    pub(super) fn function(&mut self, handle: usize) -> Result<&mut Function, Code> {
        self.context()?
            .functions
            .get_mut(&handle)
            .ok_or(Code::INVALID_HANDLE)
    }

    /// How many blocks a multiprocessor holds at once.
    fn resident(&mut self, function: usize, threads: u32, dynamic: usize) -> Result<u32, Code> {
        let kernel = &self.function(function)?.kernel;
        if threads == 0 || threads > kernel.most_threads {
            return Ok(0);
        }
        let shared = (kernel.shared_bytes as usize).saturating_add(dynamic) + 1024;
        let by_shared = MULTIPROCESSOR[2] as usize / shared;
        Ok((MULTIPROCESSOR[0] / threads)
            .min(MULTIPROCESSOR[1])
            .min(by_shared as u32))
    }
}

api! {
    /// An attribute of a function.
    fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: usize) |d| {
        let function = d.function(function)?;
        let kernel = &function.kernel;
        let number = match attribute {
            0 => kernel.most_threads,
            1 => kernel.shared_bytes as u32,
            2 => 0,
            3 => kernel.local_bytes as u32,
            // Registers are counted by the assembler, which is not here.
            4 => 32,
            5 => kernel.ptx_version,
            6 => CAPABILITY,
            7 => 0,
            8 => function.most_dynamic,
            9 => return put(value, -1),
            _ => return Err(Code::INVALID_VALUE),
        };
        put(value, number as c_int)
    }

    /// Sets an attribute of a function: how much dynamic shared memory a launch may ask for (8), or a
    /// preference that makes no difference here (9).
    fn cuFuncSetAttribute(function: usize, attribute: c_int, value: c_int) |d| {
        let function = d.function(function)?;
        match attribute {
            8 => {
                let most = SHARED_BYTES[1] as u64 - function.kernel.shared_bytes.min(SHARED_BYTES[1] as u64);
                if value < 0 || value as u64 > most {
                    return Err(Code::INVALID_VALUE);
                }
                function.most_dynamic = value as u32;
                Ok(())
            }
            9 if (-1..=100).contains(&value) => Ok(()),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// A preference that makes no difference here.
    fn cuFuncSetCacheConfig(function: usize, config: c_int) |d| {
        d.function(function).map(drop)
    }

    /// How many blocks of a function a multiprocessor holds at once.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int, function: usize, threads: c_int, dynamic: usize,
    ) |d| {
        let resident = d.resident(function, threads.max(0) as u32, dynamic)?;
        put(blocks, resident as c_int)
    }

    /// The same.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: *mut c_int, function: usize, threads: c_int, dynamic: usize, flags: c_uint,
    ) |d| {
        let resident = d.resident(function, threads.max(0) as u32, dynamic)?;
        put(blocks, resident as c_int)
    }

    /// Threads a block, and blocks, that fill the device.
    fn cuOccupancyMaxPotentialBlockSize(
        blocks: *mut c_int, threads: *mut c_int, function: usize, dynamic_of: *const c_void, dynamic: usize,
        limit: c_int,
    ) |d| {
        let most = d.function(function)?.kernel.most_threads;
        let most = if limit > 0 { most.min(limit as u32) } else { most };
        let resident = d.resident(function, most, dynamic)?;
        put(threads, most as c_int)?;
        put(blocks, (resident * 16) as c_int)
    }
}
