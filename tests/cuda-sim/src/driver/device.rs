//! The library and its one device: versions, names, attributes.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::Driver;
use super::pointer::{put, put_text, text};
use crate::code::Code;
use crate::exec;

/// CUDA 12.2, which runs PTX up to 8.2.
pub(super) const DRIVER_VERSION: c_int = 12020;
/// See [`DRIVER_VERSION`].
pub(super) const PTX_VERSION: u32 = 82;
/// Compute capability × 10.
pub(super) const CAPABILITY: u32 = 80;
/// Shared memory of a block without and with asking for more.
pub(super) const SHARED_BYTES: [u32; 2] = [48 << 10, 163 << 10];

const NAME: &str = "met-cuda-sim";
const UUID: [u8; 16] = *b"met-cuda-sim-uid";

impl Driver {
    pub(super) fn device(&self, device: c_int) -> Result<(), Code> {
        if !self.initialised {
            return Err(Code::NOT_INITIALIZED);
        }
        if device == 0 {
            Ok(())
        } else {
            Err(Code::INVALID_DEVICE)
        }
    }
}

api! {
    /// Makes the driver ready.
    fn cuInit(flags: c_uint) |d| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if d.settings.devices == 0 {
            return Err(Code::NO_DEVICE);
        }
        if !exec::is_supported() {
            eprintln!("met-sim: the simulator needs a processor with AVX2, FMA and BMI2");
            return Err(Code::SYSTEM_NOT_READY);
        }
        d.initialised = true;
        Ok(())
    }

    /// The CUDA version that the driver supports.
    fn cuDriverGetVersion(version: *mut c_int) |d| {
        put(version, DRIVER_VERSION)
    }

    /// How many devices there are.
    fn cuDeviceGetCount(count: *mut c_int) |d| {
        if !d.initialised {
            return Err(Code::NOT_INITIALIZED);
        }
        put(count, d.settings.devices)
    }

    /// The device with an ordinal.
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) |d| {
        d.device(ordinal)?;
        put(device, 0)
    }

    /// The device's name.
    fn cuDeviceGetName(name: *mut c_char, room: c_int, device: c_int) |d| {
        d.device(device)?;
        put_text(name, room.max(0) as usize, NAME)
    }

    /// The device's memory in bytes.
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) |d| {
        d.device(device)?;
        put(bytes, d.settings.memory as usize)
    }

    /// The device's identity.
    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) |d| {
        d.device(device)?;
        put(uuid, UUID)
    }

    /// The device's identity.
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) |d| {
        d.device(device)?;
        put(uuid, UUID)
    }

    /// An attribute of the device, modelled on compute capability 8.0.
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) |d| {
        d.device(device)?;
        if !(1..=200).contains(&attribute) {
            return Err(Code::INVALID_VALUE);
        }
        put(value, match attribute {
            1..=3 => 1024,                         // threads of a block, x, y
            4 => 64,                                 // z
            5 => i32::MAX,                           // grid x
            6 | 7 => 65535,                          // grid y, z
            8 => SHARED_BYTES[0] as c_int,
            9 => 64 << 10,                           // constant memory
            10 => 32,                                // warp
            11 => i32::MAX,                          // pitch
            12 | 82 => 65536,                        // registers of a block, of a multiprocessor
            13 => 1_410_000,                         // clock, kHz
            14 => 512,                               // texture alignment
            15 | 19 | 31 | 41 | 78..=80 => 1,      // overlap, mapped memory, concurrency, one address space, …
            16 => 16,                                // multiprocessors
            33 => 1,                                 // PCI bus
            36 => 1_215_000,                         // memory clock, kHz
            37 => 5120,                              // memory bus, bits
            38 => 40 << 20,                          // second-level cache
            39 => 2048,                              // threads of a multiprocessor
            40 => 2,                                 // copy engines
            75 => (CAPABILITY / 10) as c_int,
            76 => (CAPABILITY % 10) as c_int,
            81 => 164 << 10,                         // shared memory of a multiprocessor
            97 => SHARED_BYTES[1] as c_int,
            106 => 32,                               // blocks of a multiprocessor
            111 => 1 << 10,                          // shared memory reserved a block
            115 => d.settings.pools as c_int,        // memory pools
            _ => 0,
        })
    }

    /// The name of a result code.
    fn cuGetErrorName(code: c_int, name: *mut *const c_char) |d| {
        describe(code, name, |(name, _)| name.as_ptr())
    }

    /// The text of a result code.
    fn cuGetErrorString(code: c_int, string: *mut *const c_char) |d| {
        describe(code, string, |(_, text)| text.as_ptr())
    }

    /// The address of a driver function by name.
    fn cuGetProcAddress_v2(
        symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int,
    ) |d| {
        let address = address_of(&text(symbol)?);
        if !status.is_null() {
            put(status, if address.is_some() { 0 } else { 1 })?;
        }
        put(function, address.unwrap_or(std::ptr::null_mut()))
    }

    /// The address of a driver function by name.
    fn cuGetProcAddress(symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64) |d| {
        put(function, address_of(&text(symbol)?).ok_or(Code::NOT_FOUND)?)
    }
}

type Texts = (&'static std::ffi::CStr, &'static std::ffi::CStr);

fn describe(code: c_int, to: *mut *const c_char, pick: fn(Texts) -> *const c_char) -> Result<(), Code> {
    match Code::describe(code) {
        Some(texts) => put(to, pick(texts)),
        None => {
            put(to, std::ptr::null())?;
            Err(Code::INVALID_VALUE)
        }
    }
}

/// A function by its full name or its name without version.
fn address_of(name: &str) -> Option<*mut c_void> {
    let tables = [
        exported(),
        super::context::exported(),
        super::event::exported(),
        super::function::exported(),
        super::graph::exported(),
        super::launch::exported(),
        super::memory::exported(),
        super::module::exported(),
        super::pinned::exported(),
        super::pool::exported(),
        super::stream::exported(),
        super::transfer::exported(),
    ];
    let all: Vec<_> = tables.into_iter().flatten().collect();
    let named = |wanted: &str| {
        all.iter()
            .find(|(known, _)| *known == wanted)
            .map(|(_, address)| *address)
    };
    named(&format!("{name}_v2")).or_else(|| named(name))
}
