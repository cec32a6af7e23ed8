//! Which card it is, and how much of its memory is free by its own account.

use anyhow::{Context, Result, ensure};
use cudarc::driver::{CudaContext, sys};
use libloading::{Library, Symbol};
use serde_json::{Value, json};
use std::{
    ffi::{c_int, c_uint, c_void},
    ptr,
};

/// Name, driver and memory.
pub fn describe() -> Result<Value> {
    // SAFETY: only tries to open the driver's library.
    let has_driver = unsafe { sys::is_culib_present() };
    ensure!(
        has_driver,
        "the driver's library libcuda.so.1 is not found: this check is for a machine with an NVIDIA card"
    );
    let context = CudaContext::new(0)?;
    let (mut cuda, compute) = (0, context.compute_capability()?);
    // SAFETY: writes the number and nothing else.
    unsafe { sys::cuDriverGetVersion(&raw mut cuda) }.result()?;
    let processors = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
    let (_, total) = context.mem_get_info()?;
    let version = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    Ok(json!({
        "name": context.name()?,
        "compute": format!("{}.{}", compute.0, compute.1),
        "multiprocessors": context.attribute(processors)?,
        "memory_gib": total as f64 / f64::from(1 << 30),
        "cuda": format!("{}.{}", cuda / 1000, cuda % 1000 / 10),
        "driver": version.lines().next().unwrap_or("unknown").trim(),
    }))
}

/// Free bytes of the card, and who says so: NVML, which needs no context, else the driver in a context made for it.
pub fn free_memory() -> Result<(u64, &'static str)> {
    if let Some(free) = Nvml::open().and_then(|nvml| nvml.free_memory()) {
        return Ok((free, "NVML"));
    }
    let context = CudaContext::new(0).context("neither NVML nor the driver tells of free memory")?;
    Ok((context.mem_get_info()?.0 as u64, "a context of its own"))
}

/// The management library, which comes with the driver.
struct Nvml(Library);

#[repr(C)]
#[derive(Default)]
struct NvmlMemory {
    total: u64,
    free: u64,
    used: u64,
}

impl Nvml {
    fn open() -> Option<Self> {
        // SAFETY: the library's initialisers are the vendor's own.
        let library = unsafe { Library::new("libnvidia-ml.so.1") }.ok()?;
        // SAFETY: `nvmlReturn_t nvmlInit_v2(void)`.
        let code = unsafe {
            let init: Symbol<unsafe extern "C" fn() -> c_int> = library.get(b"nvmlInit_v2").ok()?;
            init()
        };
        (code == 0).then_some(Self(library))
    }

    fn free_memory(&self) -> Option<u64> {
        type Handle = unsafe extern "C" fn(c_uint, *mut *mut c_void) -> c_int;
        type Info = unsafe extern "C" fn(*mut c_void, *mut NvmlMemory) -> c_int;
        let (mut device, mut memory) = (ptr::null_mut(), NvmlMemory::default());
        // SAFETY: the signatures are those of NVML's header; both pointers are those of locals.
        let codes = unsafe {
            let handle: Symbol<Handle> = self.0.get(b"nvmlDeviceGetHandleByIndex_v2").ok()?;
            let info: Symbol<Info> = self.0.get(b"nvmlDeviceGetMemoryInfo").ok()?;
            [handle(0, &raw mut device), info(device, &raw mut memory)]
        };
        (codes == [0, 0]).then_some(memory.free)
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: `nvmlReturn_t nvmlShutdown(void)`, once for the `nvmlInit_v2` that succeeded.
        unsafe {
            if let Ok(shutdown) = self.0.get::<unsafe extern "C" fn() -> c_int>(b"nvmlShutdown") {
                // What it says changes nothing.
                let _ = shutdown();
            }
        }
    }
}
