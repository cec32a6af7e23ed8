//! The driver's rules: handles, memory, pools, failures on request.

mod support;

use std::ffi::CString;

use met_cuda_sim::{control, driver as cu};
use support::{Code, Sim, check, live, set};

fn fail(name: &str, n: u64, code: Code) {
    let name = CString::new(name).unwrap();
    // SAFETY: the name ends with a zero byte.
    assert_eq!(unsafe { control::met_sim_fail(name.as_ptr(), n, code.0) }, 0);
}

fn objects(kind: &str) -> i64 {
    let kind = CString::new(kind).unwrap();
    // SAFETY: the text ends with a zero byte.
    unsafe { control::met_sim_objects(kind.as_ptr()) }
}

fn left(kind: &str) -> i64 {
    let kind = CString::new(kind).unwrap();
    // SAFETY: the text ends with a zero byte.
    unsafe { control::met_sim_left(kind.as_ptr()) }
}

fn free_bytes() -> usize {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the pointers are those of locals.
    check(unsafe { cu::cuMemGetInfo_v2(&mut free, &mut total) }).unwrap();
    free
}

fn reserved(pool: usize) -> u64 {
    let mut bytes = 0u64;
    // SAFETY: the attribute is of 64 bits.
    check(unsafe { cu::cuMemPoolGetAttribute(pool, 5, (&raw mut bytes).cast()) }).unwrap();
    bytes
}

#[test]
fn memory_ends_where_the_device_says() {
    let _sim = Sim::new();
    set("memory", 64 << 20);
    let before = free_bytes();
    let (mut a, mut b) = (0, 0);
    // SAFETY: the pointers are those of locals.
    unsafe {
        assert_eq!(
            check(cu::cuMemAlloc_v2(&mut a, before + 1)),
            Err(Code::OUT_OF_MEMORY)
        );
        check(cu::cuMemAlloc_v2(&mut a, before - 100)).unwrap();
        assert_eq!(live(), (before as u64 - 100, 1));
        assert_eq!(free_bytes(), 100);
        assert_eq!(
            check(cu::cuMemAllocAsync(&mut b, 101, 0)),
            Err(Code::OUT_OF_MEMORY)
        );
        check(cu::cuMemAllocAsync(&mut b, 100, 0)).unwrap();
        check(cu::cuMemFree_v2(a)).unwrap();
        check(cu::cuMemFree_v2(b)).unwrap();
        assert_eq!(check(cu::cuMemAlloc_v2(&mut a, 0)), Err(Code::INVALID_VALUE));
    }
    assert_eq!(live(), (0, 0));
}

#[test]
fn a_pool_keeps_what_is_freed_until_a_synchronisation() {
    let _sim = Sim::new();
    let before = free_bytes();
    let (mut pool, mut a) = (0, 0);
    // SAFETY: the pointers are those of locals.
    unsafe {
        check(cu::cuDeviceGetDefaultMemPool(&mut pool, 0)).unwrap();
        check(cu::cuMemAllocAsync(&mut a, 1 << 20, 0)).unwrap();
        check(cu::cuMemFreeAsync(a, 0)).unwrap();
        assert_eq!(
            (live(), reserved(pool), free_bytes()),
            ((0, 0), 1 << 20, before - (1 << 20))
        );
        check(cu::cuCtxSynchronize()).unwrap();
        assert_eq!((reserved(pool), free_bytes()), (0, before));
        let mut threshold = 1u64 << 30;
        check(cu::cuMemPoolSetAttribute(pool, 4, (&raw mut threshold).cast())).unwrap();
        check(cu::cuMemAllocAsync(&mut a, 1 << 20, 0)).unwrap();
        check(cu::cuMemFreeAsync(a, 0)).unwrap();
        check(cu::cuCtxSynchronize()).unwrap();
        assert_eq!(reserved(pool), 1 << 20);
        check(cu::cuMemPoolTrimTo(pool, 0)).unwrap();
        assert_eq!((reserved(pool), free_bytes()), (0, before));
    }
}

#[test]
fn handles_are_those_that_were_given_and_are_alive() {
    let sim = Sim::new();
    let (mut stream, mut event, mut function) = (0, 0, 0);
    let module = sim.load(include_str!("ptx/basic.ptx")).unwrap();
    // SAFETY: the pointers are those of locals.
    unsafe {
        check(cu::cuStreamCreate(&mut stream, 1)).unwrap();
        check(cu::cuEventCreate(&mut event, 2)).unwrap();
        assert_eq!(check(cu::cuStreamSynchronize(event)), Err(Code::INVALID_HANDLE));
        assert_eq!(
            check(cu::cuEventRecord(stream, stream)),
            Err(Code::INVALID_HANDLE)
        );
        assert_eq!(
            check(cu::cuStreamWaitEvent(stream, 0x77, 0)),
            Err(Code::INVALID_HANDLE)
        );
        assert_eq!(check(cu::cuGraphLaunch(1, stream)), Err(Code::INVALID_HANDLE));
        assert_eq!(
            (objects("streams"), objects("events"), objects("modules")),
            (1, 1, 1)
        );
        check(cu::cuStreamDestroy_v2(stream)).unwrap();
        check(cu::cuEventDestroy_v2(event)).unwrap();
        assert_eq!(check(cu::cuStreamDestroy_v2(stream)), Err(Code::INVALID_HANDLE));
        assert_eq!(check(cu::cuEventDestroy_v2(event)), Err(Code::INVALID_HANDLE));
        assert_eq!(check(cu::cuStreamSynchronize(stream)), Err(Code::INVALID_HANDLE));
        assert_eq!(
            check(cu::cuModuleGetFunction(
                &mut function,
                module,
                c"nothing".as_ptr()
            )),
            Err(Code::NOT_FOUND)
        );
        check(cu::cuModuleGetFunction(
            &mut function,
            module,
            c"reverse".as_ptr(),
        ))
        .unwrap();
        check(cu::cuModuleUnload(module)).unwrap();
        assert_eq!(check(cu::cuModuleUnload(module)), Err(Code::INVALID_HANDLE));
        assert_eq!(sim.launch(function, 1, 1, 0, &[&0u64]), Err(Code::INVALID_HANDLE));
        assert_eq!(check(cu::cuCtxSetCurrent(0x1234)), Err(Code::INVALID_CONTEXT));
        assert_eq!(check(cu::cuCtxSetCurrent(0)), Ok(()));
        assert_eq!(check(cu::cuCtxSynchronize()), Err(Code::INVALID_CONTEXT));
        assert_eq!(check(cu::cuDeviceGet(&mut 0, 1)), Err(Code::INVALID_DEVICE));
    }
}

#[test]
fn the_last_release_takes_everything_along() {
    let sim = Sim::new();
    control::met_sim_reset();
    sim.alloc(1000);
    let (mut stream, mut context) = (0, 0);
    // SAFETY: the pointers are those of locals.
    unsafe {
        check(cu::cuStreamCreate(&mut stream, 0)).unwrap();
        check(cu::cuDevicePrimaryCtxRetain(&mut context, 0)).unwrap();
        check(cu::cuDevicePrimaryCtxRelease_v2(0)).unwrap();
        assert_eq!(
            (live(), objects("streams"), objects("contexts")),
            ((1000, 1), 1, 1)
        );
        check(cu::cuDevicePrimaryCtxRelease_v2(0)).unwrap();
        assert_eq!((live(), objects("streams"), objects("contexts")), ((0, 0), 0, 0));
        assert_eq!(
            ["allocations", "bytes", "streams", "events", "pools", "contexts"].map(left),
            [1, 1000, 1, 0, 0, -1],
            "what the program had not given back"
        );
        control::met_sim_reset();
        assert_eq!(left("bytes"), 0);
        assert_eq!(
            check(cu::cuDevicePrimaryCtxRelease_v2(0)),
            Err(Code::INVALID_CONTEXT)
        );
        assert_eq!(
            check(cu::cuStreamSynchronize(stream)),
            Err(Code::CONTEXT_IS_DESTROYED)
        );
    }
}

#[test]
fn any_call_fails_when_asked() {
    let sim = Sim::new();
    fail("cuMemAlloc", 2, Code::OUT_OF_MEMORY);
    let (mut a, mut b) = (0, 0);
    // SAFETY: the pointers are those of locals.
    unsafe {
        check(cu::cuMemAlloc_v2(&mut a, 16)).unwrap();
        assert_eq!(check(cu::cuMemAlloc_v2(&mut b, 16)), Err(Code::OUT_OF_MEMORY));
        check(cu::cuMemAlloc_v2(&mut b, 16)).unwrap();
        // A release that fails has released nothing.
        fail("cuMemFree_v2", 1, Code::INVALID_VALUE);
        assert_eq!(check(cu::cuMemFree_v2(a)), Err(Code::INVALID_VALUE));
        assert_eq!(live(), (32, 2));
        // The third call of any function.
        fail("*", 3, Code::UNKNOWN);
        check(cu::cuMemFree_v2(a)).unwrap();
        check(cu::cuMemFree_v2(b)).unwrap();
        assert_eq!(check(cu::cuCtxSynchronize()), Err(Code::UNKNOWN));
        check(cu::cuCtxSynchronize()).unwrap();
        assert_eq!(control::met_sim_count(c"cuMemAlloc_v2".as_ptr()), 3);
        assert_eq!(control::met_sim_pending_failures(), 0);
        // One that ends the context.
        fail("cuStreamSynchronize", 1, Code::ILLEGAL_ADDRESS);
        assert_eq!(check(cu::cuStreamSynchronize(0)), Err(Code::ILLEGAL_ADDRESS));
        assert_eq!(check(cu::cuMemAlloc_v2(&mut a, 16)), Err(Code::ILLEGAL_ADDRESS));
    }
    drop(sim);
}

#[test]
fn pinned_memory_is_the_devices_too() {
    let sim = Sim::new();
    let mut host = std::ptr::null_mut();
    // SAFETY: the pointers are those of locals; the memory has room for 64 numbers.
    unsafe {
        check(cu::cuMemHostAlloc(&mut host, 256, 0)).unwrap();
        let numbers = std::slice::from_raw_parts_mut(host.cast::<i32>(), 64);
        numbers.copy_from_slice(&std::array::from_fn::<i32, 64, _>(|i| i as i32));
        let mut device = 0;
        check(cu::cuMemHostGetDevicePointer_v2(&mut device, host, 0)).unwrap();
        sim.launch(
            sim.function(include_str!("ptx/basic.ptx"), "reverse"),
            1,
            64,
            256,
            &[&device],
        )
        .unwrap();
        assert_eq!(numbers[..3], [63, 62, 61]);
        assert_eq!(
            (objects("pinned"), objects("pinned_bytes"), live()),
            (1, 256, (0, 0))
        );
        assert_eq!(check(cu::cuMemFree_v2(host as u64)), Err(Code::INVALID_VALUE));
        check(cu::cuMemFreeHost(host)).unwrap();
        assert_eq!(check(cu::cuMemFreeHost(host)), Err(Code::INVALID_VALUE));
    }
}

#[test]
fn texts_for_codes() {
    let mut text = std::ptr::null();
    // SAFETY: the pointer is that of a local; the texts are static.
    unsafe {
        check(cu::cuGetErrorName(700, &mut text)).unwrap();
        assert_eq!(std::ffi::CStr::from_ptr(text), c"CUDA_ERROR_ILLEGAL_ADDRESS");
        check(cu::cuGetErrorString(2, &mut text)).unwrap();
        assert_eq!(std::ffi::CStr::from_ptr(text), c"out of memory");
        assert_eq!(
            check(cu::cuGetErrorName(12345, &mut text)),
            Err(Code::INVALID_VALUE)
        );
        assert!(text.is_null());
        let mut found = std::ptr::null_mut();
        let mut status = 9;
        check(cu::cuGetProcAddress_v2(
            c"cuMemAlloc".as_ptr(),
            &mut found,
            12020,
            0,
            &mut status,
        ))
        .unwrap();
        assert_eq!(
            (found as usize, status),
            (cu::cuMemAlloc_v2 as *const () as usize, 0)
        );
    }
}
