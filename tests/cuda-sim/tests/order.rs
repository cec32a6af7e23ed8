//! Streams, events and graphs. In lazy mode work waits until something must see its result, so what a
//! program forgets to wait for is seen to be missing.

mod support;

use std::ffi::c_void;

use met_cuda_sim::driver as cu;
use support::{Code, Sim, check, set};

const PTX: &str = include_str!("ptx/basic.ptx");

fn stream() -> usize {
    let mut stream = 0;
    // SAFETY: the pointer is that of a local.
    check(unsafe { cu::cuStreamCreate(&mut stream, 1) }).unwrap();
    stream
}

fn event() -> usize {
    let mut event = 0;
    // SAFETY: the pointer is that of a local.
    check(unsafe { cu::cuEventCreate(&mut event, 0) }).unwrap();
    event
}

/// Reverses 64 numbers at `x`, in stream order.
fn reverse(function: usize, x: u64, stream: usize) -> Result<(), Code> {
    let mut arguments = [(&raw const x).cast_mut().cast::<c_void>()];
    // SAFETY: the kernel has this one parameter.
    let code = unsafe {
        cu::cuLaunchKernel(
            function,
            1,
            1,
            1,
            64,
            1,
            1,
            256,
            stream,
            arguments.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    };
    check(code)
}

/// Pinned memory for 64 numbers.
fn pinned() -> &'static mut [i32] {
    let mut host = std::ptr::null_mut();
    // SAFETY: the pointer is that of a local; the memory lives as long as the context, longer than the test's use.
    unsafe {
        check(cu::cuMemHostAlloc(&mut host, 256, 0)).unwrap();
        std::slice::from_raw_parts_mut(host.cast(), 64)
    }
}

#[test]
fn results_are_there_after_a_synchronisation_and_not_before() {
    let sim = Sim::new();
    set("lazy", 1);
    let x = sim.upload(&std::array::from_fn::<i32, 64, _>(|i| i as i32));
    let (function, stream, event, host) = (sim.function(PTX, "reverse"), stream(), event(), pinned());
    host.fill(-1);
    // SAFETY: the ranges are the device's and pinned memory.
    unsafe {
        reverse(function, x, stream).unwrap();
        check(cu::cuMemcpyDtoHAsync_v2(host.as_mut_ptr().cast(), x, 256, stream)).unwrap();
        check(cu::cuEventRecord(event, stream)).unwrap();
        assert_eq!(host[0], -1);
        assert_eq!(check(cu::cuEventQuery(event)), Err(Code::NOT_READY));
        check(cu::cuEventSynchronize(event)).unwrap();
        assert_eq!(host[..2], [63, 62]);
        assert_eq!(check(cu::cuEventQuery(event)), Ok(()));
        // Polling ends, too.
        reverse(function, x, stream).unwrap();
        reverse(function, x, stream).unwrap();
        let polls = (0..10)
            .take_while(|_| check(cu::cuStreamQuery(stream)) == Err(Code::NOT_READY))
            .count();
        assert_eq!(polls, 1);
    }
}

#[test]
fn a_pinned_buffer_is_read_when_the_copy_is_done_and_a_pageable_one_at_the_call() {
    let sim = Sim::new();
    set("lazy", 1);
    let (x, y, stream, host) = (sim.alloc(256), sim.alloc(256), stream(), pinned());
    host.fill(1);
    let mut pageable = [1i32; 64];
    // SAFETY: the ranges are the device's and the host's.
    unsafe {
        check(cu::cuMemcpyHtoDAsync_v2(x, host.as_ptr().cast(), 256, stream)).unwrap();
        check(cu::cuMemcpyHtoDAsync_v2(y, pageable.as_ptr().cast(), 256, stream)).unwrap();
        host.fill(2);
        pageable.fill(2);
        check(cu::cuStreamSynchronize(stream)).unwrap();
    }
    assert_eq!(
        (sim.download::<i32>(x, 1), sim.download::<i32>(y, 1)),
        (vec![2], vec![1])
    );
    assert_eq!(pageable[0], 2);
}

#[test]
fn a_stream_waits_for_what_an_event_recorded_and_for_nothing_else() {
    for waits in [false, true] {
        let sim = Sim::new();
        set("lazy", 1);
        let x = sim.upload(&std::array::from_fn::<i32, 64, _>(|i| i as i32));
        let (function, first, second, event, host) = (
            sim.function(PTX, "reverse"),
            stream(),
            stream(),
            event(),
            pinned(),
        );
        // SAFETY: the ranges are the device's and pinned memory.
        unsafe {
            reverse(function, x, first).unwrap();
            check(cu::cuEventRecord(event, first)).unwrap();
            reverse(function, x, first).unwrap();
            if waits {
                check(cu::cuStreamWaitEvent(second, event, 0)).unwrap();
            }
            check(cu::cuMemcpyDtoHAsync_v2(host.as_mut_ptr().cast(), x, 256, second)).unwrap();
            check(cu::cuStreamSynchronize(second)).unwrap();
            assert_eq!(host[0], if waits { 63 } else { 0 });
            check(cu::cuCtxSynchronize()).unwrap();
        }
        assert_eq!(sim.download::<i32>(x, 1), [0]);
    }
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_only() {
    let sim = Sim::new();
    set("lazy", 1);
    let x = sim.upload(&std::array::from_fn::<i32, 64, _>(|i| i as i32));
    let (function, free) = (sim.function(PTX, "reverse"), stream());
    let mut blocking = 0;
    // SAFETY: the pointer is that of a local.
    check(unsafe { cu::cuStreamCreate(&mut blocking, 0) }).unwrap();
    reverse(function, x, free).unwrap();
    assert_eq!(sim.download::<i32>(x, 1), [0]);
    reverse(function, x, blocking).unwrap();
    assert_eq!(sim.download::<i32>(x, 1), [63]);
}

#[test]
fn memory_freed_in_stream_order_serves_what_came_before() {
    let sim = Sim::new();
    set("lazy", 1);
    let x = sim.upload(&std::array::from_fn::<i32, 64, _>(|i| i as i32));
    let (function, stream) = (sim.function(PTX, "reverse"), stream());
    // SAFETY: no pointers.
    unsafe {
        reverse(function, x, stream).unwrap();
        check(cu::cuMemFreeAsync(x, stream)).unwrap();
        assert_eq!(support::live().1, 1);
        check(cu::cuStreamSynchronize(stream)).unwrap();
        assert_eq!(support::live().1, 0);
        reverse(function, x, stream).unwrap();
        assert_eq!(check(cu::cuStreamSynchronize(stream)), Err(Code::ILLEGAL_ADDRESS));
    }
}

#[test]
fn a_graph_repeats_what_was_recorded() {
    for lazy in [0, 1] {
        let sim = Sim::new();
        set("lazy", lazy);
        let x = sim.upload(&std::array::from_fn::<i32, 64, _>(|i| i as i32));
        let (function, main, side, fork, join) =
            (sim.function(PTX, "reverse"), stream(), stream(), event(), event());
        let (mut graph, mut executable, mut status, mut nodes) = (0, 0, 0, 0);
        // SAFETY: the pointers are those of locals.
        unsafe {
            check(cu::cuStreamBeginCapture_v2(main, 1)).unwrap();
            check(cu::cuStreamIsCapturing(main, &mut status)).unwrap();
            assert_eq!(status, 1);
            reverse(function, x, main).unwrap();
            // Another stream takes part by events.
            check(cu::cuEventRecord(fork, main)).unwrap();
            check(cu::cuStreamWaitEvent(side, fork, 0)).unwrap();
            check(cu::cuMemsetD32Async(x, 7, 1, side)).unwrap();
            check(cu::cuEventRecord(join, side)).unwrap();
            check(cu::cuStreamWaitEvent(main, join, 0)).unwrap();
            check(cu::cuStreamEndCapture(main, &mut graph)).unwrap();
            check(cu::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes)).unwrap();
            assert_eq!(nodes, 2);
            // Nothing has run yet.
            assert_eq!(sim.download::<i32>(x, 2), [0, 1]);
            check(cu::cuGraphInstantiateWithFlags(&mut executable, graph, 0)).unwrap();
            check(cu::cuGraphDestroy(graph)).unwrap();
            check(cu::cuGraphLaunch(executable, main)).unwrap();
            check(cu::cuStreamSynchronize(main)).unwrap();
            assert_eq!(sim.download::<i32>(x, 2), [7, 62]);
            check(cu::cuGraphLaunch(executable, main)).unwrap();
            check(cu::cuStreamSynchronize(main)).unwrap();
            assert_eq!(
                (sim.download::<i32>(x, 2), sim.download::<i32>(x + 252, 1)),
                (vec![7, 1], vec![7])
            );
            check(cu::cuGraphExecDestroy(executable)).unwrap();
            assert_eq!(
                check(cu::cuGraphLaunch(executable, main)),
                Err(Code::INVALID_HANDLE)
            );
        }
    }
}

#[test]
fn what_a_capture_forbids() {
    let sim = Sim::new();
    let (function, x) = (sim.function(PTX, "reverse"), sim.upload(&[0i32; 64]));
    let (main, side, before, fork) = (stream(), stream(), event(), event());
    let (mut graph, mut address) = (0, 0);
    // SAFETY: the pointers are those of locals.
    unsafe {
        let begin = |mode| check(cu::cuStreamBeginCapture_v2(main, mode)).unwrap();
        check(cu::cuEventRecord(before, side)).unwrap();
        assert_eq!(
            check(cu::cuStreamBeginCapture_v2(0, 0)),
            Err(Code::STREAM_CAPTURE_UNSUPPORTED)
        );
        assert_eq!(
            check(cu::cuStreamEndCapture(main, &mut graph)),
            Err(Code::ILLEGAL_STATE)
        );
        // To wait for the stream that records.
        begin(0);
        assert_eq!(
            check(cu::cuStreamSynchronize(main)),
            Err(Code::STREAM_CAPTURE_UNSUPPORTED)
        );
        assert_eq!(reverse(function, x, main), Err(Code::STREAM_CAPTURE_INVALIDATED));
        assert_eq!(
            check(cu::cuStreamEndCapture(main, &mut graph)),
            Err(Code::STREAM_CAPTURE_INVALIDATED)
        );
        // An allocation, unless the capture is relaxed.
        begin(1);
        assert_eq!(
            check(cu::cuMemAlloc_v2(&mut address, 16)),
            Err(Code::STREAM_CAPTURE_UNSUPPORTED)
        );
        assert_eq!(
            check(cu::cuStreamEndCapture(main, &mut graph)),
            Err(Code::STREAM_CAPTURE_INVALIDATED)
        );
        begin(2);
        check(cu::cuMemAlloc_v2(&mut address, 16)).unwrap();
        check(cu::cuStreamEndCapture(main, &mut graph)).unwrap();
        // To depend on what was recorded outside.
        begin(0);
        assert_eq!(
            check(cu::cuStreamWaitEvent(main, before, 0)),
            Err(Code::STREAM_CAPTURE_ISOLATION)
        );
        assert_eq!(
            check(cu::cuStreamEndCapture(main, &mut graph)),
            Err(Code::STREAM_CAPTURE_INVALIDATED)
        );
        // To leave another stream's part unjoined.
        begin(0);
        check(cu::cuEventRecord(fork, main)).unwrap();
        assert_eq!(check(cu::cuEventQuery(fork)), Err(Code::CAPTURED_EVENT));
        check(cu::cuStreamWaitEvent(side, fork, 0)).unwrap();
        reverse(function, x, side).unwrap();
        assert_eq!(
            check(cu::cuStreamEndCapture(side, &mut graph)),
            Err(Code::STREAM_CAPTURE_UNMATCHED)
        );
        assert_eq!(
            check(cu::cuStreamEndCapture(main, &mut graph)),
            Err(Code::STREAM_CAPTURE_UNJOINED)
        );
        // The streams are as before.
        reverse(function, x, main).unwrap();
        check(cu::cuStreamSynchronize(side)).unwrap();
        check(cu::cuCtxSynchronize()).unwrap();
    }
}

extern "C" fn calls_the_driver(code: *mut c_void) {
    // SAFETY: the test passes a pointer to its own number.
    unsafe { *code.cast::<i32>() = cu::cuCtxSynchronize() };
}

#[test]
fn a_host_function_may_not_call_the_driver() {
    let _sim = Sim::new();
    let mut code = 0;
    // SAFETY: the number outlives the work.
    unsafe {
        check(cu::cuLaunchHostFunc(
            stream(),
            Some(calls_the_driver),
            (&raw mut code).cast(),
        ))
        .unwrap();
        check(cu::cuCtxSynchronize()).unwrap();
    }
    assert_eq!(Code(code), Code::NOT_PERMITTED);
}
