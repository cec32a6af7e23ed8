//! What a kernel must not do is found where it does it, and ends the context.

mod support;

use met_cuda_sim::driver as cu;
use support::{Argument, Code, Sim, check, last_error, live};

const PTX: &str = include_str!("ptx/faults.ptx");

/// Launches one block of 64 threads, and asserts the code, the words of the report and that it lasts.
fn faults(sim: &Sim, name: &str, arguments: &[&dyn Argument], code: Code, words: &[&str]) {
    let function = sim.function(PTX, name);
    assert_eq!(
        sim.launch(function, 1, 64, 0, arguments),
        Err(code),
        "{name}: {}",
        last_error()
    );
    let error = last_error();
    assert!(error.contains(&format!("kernel {name}, line ")), "{error}");
    for word in words {
        assert!(error.contains(word), "no {word:?} in {error}");
    }
    is_dead(code);
}

/// Every call on the context gives the error again; a new context is well.
fn is_dead(code: Code) {
    let (mut value, mut bytes) = (0, [0u8; 4]);
    // SAFETY: the pointers are those of locals.
    unsafe {
        assert_eq!(check(cu::cuMemAlloc_v2(&mut value, 16)), Err(code));
        assert_eq!(check(cu::cuMemFree_v2(0x1000)), Err(code));
        assert_eq!(
            check(cu::cuMemcpyDtoH_v2(bytes.as_mut_ptr(), 0x1000, 4)),
            Err(code)
        );
        assert_eq!(check(cu::cuCtxSynchronize()), Err(code));
        assert_eq!(check(cu::cuStreamSynchronize(0)), Err(code));
        let mut handle = 0;
        assert_eq!(check(cu::cuStreamCreate(&mut handle, 0)), Err(code));
        assert_eq!(check(cu::cuDevicePrimaryCtxReset_v2(0)), Ok(()));
        assert_eq!(check(cu::cuCtxSynchronize()), Err(Code::CONTEXT_IS_DESTROYED));
        let mut context = 0;
        check(cu::cuDevicePrimaryCtxRetain(&mut context, 0)).unwrap();
        check(cu::cuCtxSetCurrent(context)).unwrap();
        check(cu::cuCtxSynchronize()).unwrap();
    }
    assert_eq!(live(), (0, 0));
}

#[test]
fn a_write_past_the_end_of_an_allocation() {
    let sim = Sim::new();
    let x = sim.alloc(64 * 4);
    let words = [
        "write of 4 bytes outside",
        "thread [59, 0, 0]",
        "block [0, 0, 0]",
        "byte 256 from the start",
        &format!("{:#x}", x + 256),
    ];
    faults(&sim, "past_end", &[&x, &5i32], Code::ILLEGAL_ADDRESS, &words);
}

#[test]
fn a_read_before_the_start_of_an_allocation() {
    let sim = Sim::new();
    let (x, y) = (sim.upload(&[1i32; 64]), sim.alloc(256));
    faults(
        &sim,
        "read_past_end",
        &[&x, &y, &-3i32],
        Code::ILLEGAL_ADDRESS,
        &["read of 4 bytes outside", "thread [0, 0, 0]"],
    );
}

#[test]
fn an_address_that_is_not_the_devices() {
    let sim = Sim::new();
    let (host, y) = ([0i32; 64], sim.alloc(256));
    faults(
        &sim,
        "read_past_end",
        &[&host.as_ptr(), &y, &0i32],
        Code::ILLEGAL_ADDRESS,
        &["read of 4 bytes outside"],
    );
    faults(
        &sim,
        "read_past_end",
        &[&0u64, &0u64, &0i32],
        Code::ILLEGAL_ADDRESS,
        &["address 0x0"],
    );
}

#[test]
fn a_misaligned_write() {
    let sim = Sim::new();
    let x = sim.alloc(64);
    faults(
        &sim,
        "misaligned",
        &[&x, &6i32],
        Code::MISALIGNED_ADDRESS,
        &["write of 4 bytes is misaligned"],
    );
}

#[test]
fn a_read_of_memory_never_written() {
    let sim = Sim::new();
    let (x, y) = (sim.alloc(64 * 4), sim.alloc(64 * 4));
    // All but the last two bytes of one value are written.
    // SAFETY: the range is the device's.
    unsafe {
        check(cu::cuMemsetD8_v2(x, 1, 40 * 4 + 2)).unwrap();
        check(cu::cuMemsetD8_v2(x + 41 * 4, 1, 23 * 4)).unwrap();
    }
    let words = [
        "read of 4 bytes of which some were never written",
        "thread [40, 0, 0]",
        "byte 160 of an allocation of 256",
    ];
    faults(&sim, "copy", &[&x, &y], Code::LAUNCH_FAILED, &words);
}

#[test]
fn what_a_copy_brings_is_as_written_as_its_source() {
    let sim = Sim::new();
    let (x, y, z) = (sim.upload(&[7i32; 64]), sim.alloc(256), sim.alloc(256));
    // SAFETY: the ranges are the device's.
    check(unsafe { cu::cuMemcpyDtoD_v2(y, x, 256) }).unwrap();
    sim.launch(sim.function(PTX, "copy"), 1, 64, 0, &[&y, &z])
        .unwrap();
    assert_eq!(sim.download::<i32>(z, 64), [7; 64]);
    let unwritten = sim.alloc(256);
    // SAFETY: as above.
    check(unsafe { cu::cuMemcpyDtoD_v2(y, unwritten, 256) }).unwrap();
    faults(&sim, "copy", &[&y, &z], Code::LAUNCH_FAILED, &["never written"]);
}

#[test]
fn a_read_past_the_end_of_shared_memory() {
    let sim = Sim::new();
    let y = sim.alloc(256);
    let words = [
        "shared read of 4 bytes outside",
        "thread [60, 0, 0]",
        "address 0x100",
    ];
    faults(
        &sim,
        "shared_past_end",
        &[&y, &4i32],
        Code::ILLEGAL_ADDRESS,
        &words,
    );
}

#[test]
fn a_read_of_shared_memory_never_written() {
    let sim = Sim::new();
    let y = sim.alloc(256);
    let function = sim.function(PTX, "shared_unwritten");
    assert_eq!(
        sim.launch(function, 1, 32, 0, &[&y, &9i32]),
        Err(Code::LAUNCH_FAILED)
    );
    assert!(
        last_error().contains("shared read of 4 bytes of which some were never written"),
        "{}",
        last_error()
    );
    assert!(last_error().contains("thread [9, 0, 0]"), "{}", last_error());
}

#[test]
fn shared_memory_is_forgotten_between_blocks() {
    let sim = Sim::new();
    let y = sim.alloc(256);
    // Block 0 writes all, block 1 skips one: what block 0 wrote there must not be seen.
    let function = sim.function(PTX, "shared_unwritten");
    sim.launch(function, 1, 32, 0, &[&y, &-1i32]).unwrap();
    assert_eq!(
        sim.launch(function, 2, 32, 0, &[&y, &9i32]),
        Err(Code::LAUNCH_FAILED)
    );
}

#[test]
fn a_barrier_that_is_missing() {
    for reversed in [0, 1] {
        let sim = Sim::new();
        support::set("reversed", reversed);
        let y = sim.alloc(256);
        let thread = if reversed == 1 {
            "thread [32, 0, 0]"
        } else {
            "thread [0, 0, 0]"
        };
        faults(
            &sim,
            "missing_barrier",
            &[&y],
            Code::LAUNCH_FAILED,
            &["never written", thread],
        );
    }
}

#[test]
fn barriers_that_diverge() {
    for (name, words) in [
        ("diverged_barrier", "barrier reached"),
        (
            "half_the_warps",
            "the warp has exited while others wait at a barrier",
        ),
        ("early_exit", "barrier reached"),
    ] {
        let sim = Sim::new();
        let x = sim.upload(&[0i32; 128]);
        faults(&sim, name, &[&x], Code::LAUNCH_FAILED, &[words]);
    }
}

#[test]
fn a_read_outside_a_local_array() {
    let sim = Sim::new();
    let x = sim.upload(&[1i32; 64]);
    sim.launch(sim.function(PTX, "local_past_end"), 1, 1, 0, &[&x, &6i32])
        .unwrap();
    faults(
        &sim,
        "local_past_end",
        &[&x, &7i32],
        Code::ILLEGAL_ADDRESS,
        &["local read of 4 bytes outside"],
    );
}

#[test]
fn a_trap() {
    let sim = Sim::new();
    let x = sim.alloc(256);
    faults(
        &sim,
        "stop",
        &[&x, &33i32],
        Code::LAUNCH_FAILED,
        &["trapped", "thread [33, 0, 0]"],
    );
}

#[test]
fn a_shuffle_that_waits_for_lanes_that_never_come() {
    let sim = Sim::new();
    let x = sim.upload(&[0i32; 64]);
    faults(&sim, "missing_lane", &[&x], Code::LAUNCH_FAILED, &["lane"]);
}

#[test]
fn use_after_free_and_double_free() {
    let sim = Sim::new();
    let (x, y) = (sim.upload(&[1i32; 64]), sim.alloc(256));
    let mut back = [0u8; 4];
    // SAFETY: the pointers are those of locals.
    unsafe {
        check(cu::cuMemFree_v2(x)).unwrap();
        assert_eq!(check(cu::cuMemFree_v2(x)), Err(Code::INVALID_VALUE));
        assert_eq!(check(cu::cuMemFreeAsync(x, 0)), Err(Code::INVALID_VALUE));
        assert_eq!(check(cu::cuMemFree_v2(y + 4)), Err(Code::INVALID_VALUE));
        assert_eq!(
            check(cu::cuMemFree_v2(back.as_ptr() as u64)),
            Err(Code::INVALID_VALUE)
        );
        assert_eq!(
            check(cu::cuMemcpyDtoH_v2(back.as_mut_ptr(), x, 4)),
            Err(Code::INVALID_VALUE)
        );
        assert_eq!(
            check(cu::cuMemcpyHtoD_v2(y + 254, back.as_ptr(), 4)),
            Err(Code::INVALID_VALUE)
        );
        assert_eq!(check(cu::cuMemsetD8Async(x, 0, 1, 0)), Err(Code::INVALID_VALUE));
    }
    faults(
        &sim,
        "copy",
        &[&x, &y],
        Code::ILLEGAL_ADDRESS,
        &["of an allocation of 256 that was freed"],
    );
}

#[test]
fn a_launch_that_the_card_would_refuse() {
    let sim = Sim::new();
    let x = sim.alloc(4096);
    let fine = sim.function(PTX, "fine");
    let bounded = sim.function(PTX, "bounded");
    assert_eq!(sim.launch(fine, 0, 32, 0, &[&x]), Err(Code::INVALID_VALUE));
    assert_eq!(sim.launch(fine, 1, 1025, 0, &[&x]), Err(Code::INVALID_VALUE));
    assert_eq!(
        sim.launch(fine, [1, 65536, 1], 32, 0, &[&x]),
        Err(Code::INVALID_VALUE)
    );
    assert_eq!(sim.launch(fine, 1, 32, 49153, &[&x]), Err(Code::INVALID_VALUE));
    assert_eq!(sim.launch(bounded, 1, 65, 0, &[&x]), Err(Code::INVALID_VALUE));
    assert_eq!(
        sim.launch(fine + 16000, 1, 32, 0, &[&x]),
        Err(Code::INVALID_HANDLE)
    );
    // SAFETY: no pointers.
    unsafe {
        assert_eq!(check(cu::cuFuncSetAttribute(fine, 8, 163 << 10)), Ok(()));
        assert_eq!(
            check(cu::cuFuncSetAttribute(fine, 8, (163 << 10) + 1)),
            Err(Code::INVALID_VALUE)
        );
    }
    sim.launch(fine, 1, 32, 163 << 10, &[&x]).unwrap();
    sim.launch(bounded, 1, 64, 0, &[&x]).unwrap();
}
