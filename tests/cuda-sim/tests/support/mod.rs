//! A thin hold on the simulated driver for tests: every call by its real name, memory as plain vectors.
#![allow(dead_code)]

use std::ffi::{CString, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use met_cuda_sim::Code;
use met_cuda_sim::{control, driver as cu};

/// The one simulated device of this process, held by one test at a time.
pub struct Sim {
    _turn: MutexGuard<'static, ()>,
}

/// `Ok` for success, else the code.
pub fn check(code: c_int) -> Result<(), Code> {
    if code == 0 { Ok(()) } else { Err(Code(code)) }
}

impl Sim {
    /// A fresh primary context, current on this thread.
    pub fn new() -> Sim {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        control::met_sim_reset();
        for (name, value) in [("memory", 1 << 30), ("threads", 1), ("lazy", 0), ("reversed", 0)] {
            set(name, value);
        }
        // SAFETY: every pointer is that of a local.
        unsafe {
            check(cu::cuInit(0)).expect("init");
            check(cu::cuDevicePrimaryCtxReset_v2(0)).expect("reset");
            let mut context = 0;
            check(cu::cuDevicePrimaryCtxRetain(&mut context, 0)).expect("retain");
            check(cu::cuCtxSetCurrent(context)).expect("current");
        }
        Sim { _turn: turn }
    }

    /// Loads PTX text.
    pub fn load(&self, ptx: &str) -> Result<usize, Code> {
        let text = CString::new(ptx).expect("no zero byte");
        let mut module = 0;
        // SAFETY: the text ends with a zero byte.
        check(unsafe { cu::cuModuleLoadData(&mut module, text.as_ptr().cast()) }).map(|()| module)
    }

    /// A function of freshly loaded PTX.
    pub fn function(&self, ptx: &str, name: &str) -> usize {
        let module = self
            .load(ptx)
            .unwrap_or_else(|code| panic!("load: {code:?} {}", last_error()));
        let name = CString::new(name).expect("no zero byte");
        let mut function = 0;
        // SAFETY: the name ends with a zero byte.
        check(unsafe { cu::cuModuleGetFunction(&mut function, module, name.as_ptr()) }).expect("function");
        function
    }

    /// Device memory of `bytes`, unwritten.
    pub fn alloc(&self, bytes: usize) -> u64 {
        let mut address = 0;
        // SAFETY: the pointer is that of a local.
        check(unsafe { cu::cuMemAlloc_v2(&mut address, bytes) }).expect("alloc");
        address
    }

    /// Device memory with these values.
    pub fn upload<T: Copy>(&self, values: &[T]) -> u64 {
        let bytes = size_of_val(values);
        let address = self.alloc(bytes);
        // SAFETY: the slice has as many bytes.
        check(unsafe { cu::cuMemcpyHtoD_v2(address, values.as_ptr().cast(), bytes) }).expect("upload");
        address
    }

    /// `count` values from device memory.
    pub fn download<T: Copy + Default>(&self, address: u64, count: usize) -> Vec<T> {
        let mut values = vec![T::default(); count];
        let bytes = size_of_val(&values[..]);
        // SAFETY: the vector has as many bytes, and any bits are a value of the number types tests use.
        let code = unsafe { cu::cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), address, bytes) };
        check(code).unwrap_or_else(|code| panic!("download: {code:?} {}", last_error()));
        values
    }

    /// Launches in the default stream and waits.
    pub fn launch(
        &self,
        function: usize,
        grid: impl Into<Shape>,
        block: impl Into<Shape>,
        shared: u32,
        arguments: &[&dyn Argument],
    ) -> Result<(), Code> {
        let mut pointers: Vec<*mut c_void> =
            arguments.iter().map(|argument| (**argument).pointer()).collect();
        let (Shape([gx, gy, gz]), Shape([bx, by, bz])) = (grid.into(), block.into());
        // SAFETY: each pointer is that of an argument that lives until after the call.
        unsafe {
            check(cu::cuLaunchKernel(
                function,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                shared,
                0,
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            ))?;
            check(cu::cuCtxSynchronize())
        }
    }
}

/// Sizes of a grid or a block.
pub struct Shape(pub [u32; 3]);

impl From<u32> for Shape {
    fn from(x: u32) -> Shape {
        Shape([x, 1, 1])
    }
}

impl From<[u32; 3]> for Shape {
    fn from(sizes: [u32; 3]) -> Shape {
        Shape(sizes)
    }
}

/// A kernel argument: any plain value.
pub trait Argument {
    fn pointer(&self) -> *mut c_void;
}

impl<T: Copy> Argument for T {
    fn pointer(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }
}

/// Sets a property of the device.
pub fn set(name: &str, value: u64) {
    let name = CString::new(name).expect("no zero byte");
    // SAFETY: the name ends with a zero byte.
    assert_eq!(unsafe { control::met_sim_set(name.as_ptr(), value) }, 0);
}

/// The last error's text.
pub fn last_error() -> String {
    let mut text = vec![0u8; 4096];
    // SAFETY: the buffer has as many bytes.
    let length = unsafe { control::met_sim_last_error(text.as_mut_ptr().cast(), text.len()) };
    text.truncate(length.min(4095));
    String::from_utf8(text).expect("text")
}

/// Live device memory: bytes and allocations.
pub fn live() -> (u64, u64) {
    let (mut bytes, mut count) = (0, 0);
    // SAFETY: the pointers are those of locals.
    unsafe { control::met_sim_live(&mut bytes, &mut count) };
    (bytes, count)
}

/// Numbers that look random, the same in every run.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }

    /// In [-1, 1).
    pub fn float(&mut self) -> f32 {
        (self.next() >> 7) as f32 / (1 << 23) as f32 - 1.0
    }
}
