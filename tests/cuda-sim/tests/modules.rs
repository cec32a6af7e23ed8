//! What a module's text must be like, and what is said where it is not.

mod support;

use std::ffi::{CString, c_void};

use met_cuda_sim::driver as cu;
use support::{Code, Sim, check, last_error};

/// A module with one kernel whose body begins on line 7.
fn module(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p)\n{{\n\
         .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .b16 %rs<4>;\n{body}\nret;\n}}\n"
    )
}

#[test]
fn what_is_not_known_is_refused_with_its_line() {
    let sim = Sim::new();
    for (body, words) in [
        (
            "mov.u32 %r1, 5;\nfrob.b32 %r1, %r2;",
            "line 8: the instruction frob.b32 is not known",
        ),
        (
            "add.f99 %f1, %f2, %f3;",
            "line 7: the instruction add.f99 is not known",
        ),
        (
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1}, %rd1, %rd2;",
            "line 7: the instruction wgmma",
        ),
        ("add.s32 %r1, %r2;", "line 7: 2 operands where 3 are expected"),
        (
            "add.s32 %r1, %r2, %rd1;",
            "line 7: register %rd1 has another size",
        ),
        ("add.s32 %r1, %r2, %r9;", "line 7: %r9 is not known"),
        ("\n\nbra $nowhere;", "line 9: label $nowhere does not exist"),
        ("mov.u32 %r1, %clock;", "line 7: %clock is not known"),
        ("ld.global.u32 %r1, [%r2];", "line 7: %r2 is no address"),
        (
            "ld.weird.u32 %r1, [%rd2];",
            "line 7: the instruction ld.weird.u32 is not known",
        ),
        (
            "call.uni vprintf, (%r1);",
            "line 7: the function vprintf has no body",
        ),
        (
            "{ .reg .b32 %x;\nmov.u32 %x, 1; }\nmov.u32 %r1, %x;",
            "line 9: %x is not known",
        ),
        ("mov.u32 %r1 5;", "line 7: Word(\"5\") where `;` is expected"),
        ("add.s32 %r1, %r2, ", "line 7: ret is not known"),
    ] {
        assert_eq!(sim.load(&module(body)), Err(Code::INVALID_PTX), "{body}");
        assert!(last_error().contains(words), "no {words:?} in {}", last_error());
    }
    assert_eq!(sim.load(&module("mov.u32 %r1, 5;")).map(drop), Ok(()));
}

#[test]
fn broken_texts_are_errors_and_no_more() {
    let sim = Sim::new();
    let whole = include_str!("ptx/flow.ptx");
    // Cut anywhere, and with each tenth byte replaced.
    for at in (0..whole.len()).step_by(97) {
        let _ = sim.load(&whole[..at]);
        let mut bytes = whole.as_bytes().to_vec();
        bytes[at] = b"{};,[]%.x0"[at % 10];
        let _ = sim.load(&String::from_utf8(bytes).unwrap());
    }
    assert_eq!(sim.load(""), Err(Code::INVALID_IMAGE));
    assert_eq!(
        sim.load(&format!("{}{}", module(""), "{".repeat(100_000))),
        Err(Code::INVALID_PTX)
    );
    assert_eq!(sim.load(&module(&"{".repeat(100_000))), Err(Code::INVALID_PTX));
    assert_eq!(
        sim.load(&module(".shared .b8 x[999999999999];")),
        Err(Code::INVALID_PTX)
    );
    assert_eq!(
        sim.load(&module(".reg .b32 %y<4000000000>;")),
        Err(Code::INVALID_PTX)
    );
}

#[test]
fn texts_for_other_drivers_and_cards() {
    let sim = Sim::new();
    let newer = module("").replace(".version 8.0", ".version 8.8");
    assert_eq!(sim.load(&newer), Err(Code::UNSUPPORTED_PTX_VERSION));
    assert!(last_error().contains("newer"), "{}", last_error());
    let other = module("").replace("sm_80", "sm_90a");
    assert_eq!(sim.load(&other), Err(Code::NO_BINARY_FOR_GPU));
}

#[test]
fn the_reason_goes_to_the_callers_log() {
    let _sim = Sim::new();
    let text = CString::new(module("frob.b32 %r1;")).unwrap();
    let (mut module, mut log) = (0, [0u8; 100]);
    let options = [5, 6];
    let values = [log.as_mut_ptr().cast::<c_void>(), 100 as *mut c_void];
    // SAFETY: the pointers are those of locals.
    let code = unsafe {
        cu::cuModuleLoadDataEx(
            &mut module,
            text.as_ptr().cast(),
            2,
            options.as_ptr(),
            values.as_ptr(),
        )
    };
    assert_eq!(check(code), Err(Code::INVALID_PTX));
    assert!(log.starts_with(b"PTX refused, line 7: the instruction frob.b32 is not known\0"));
}

#[test]
fn variables_have_an_address_and_go_with_the_module() {
    let sim = Sim::new();
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .global .align 4 .u32 numbers[4] = {7, 8, 9};\n";
    let module = sim.load(text).unwrap();
    let (mut address, mut bytes) = (0, 0);
    // SAFETY: the pointers are those of locals.
    unsafe {
        check(cu::cuModuleGetGlobal_v2(
            &mut address,
            &mut bytes,
            module,
            c"numbers".as_ptr(),
        ))
        .unwrap();
        assert_eq!((sim.download::<u32>(address, 4), bytes), (vec![7, 8, 9, 0], 16));
        check(cu::cuModuleUnload(module)).unwrap();
        let mut byte = 0u8;
        assert_eq!(
            check(cu::cuMemcpyDtoH_v2(&mut byte, address, 1)),
            Err(Code::INVALID_VALUE)
        );
    }
}

/// Runs a one-warp kernel with `body` over 32 numbers.
fn run(body: &str, x: &[u32; 32]) -> Vec<u32> {
    let sim = Sim::new();
    let whole = format!(
        "ld.param.u64 %rd1, [p];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd1, %rd1, %rd2;\n\
         ld.global.u32 %r2, [%rd1];\n{body}\nst.global.u32 [%rd1], %r3;"
    );
    let dx = sim.upload(x);
    sim.launch(sim.function(&module(&whole), "k"), 1, 32, 0, &[&dx])
        .unwrap_or_else(|_| panic!("{}", last_error()));
    sim.download(dx, 32)
}

#[test]
fn forms_that_the_compiler_seldom_writes() {
    let x: [u32; 32] = std::array::from_fn(|i| i as u32 * 0x0123_4567);
    let each = |rule: fn(u32) -> u32| x.map(rule).to_vec();
    // Every rule of lop3 for three registers.
    for rule in [0x80u32, 0xe8, 0x96, 0xca, 0x1b, 0xff, 0x00] {
        let got = run(
            &format!("not.b32 %r4, %r2;\nshr.u32 %r5, %r2, 9;\nlop3.b32 %r3, %r2, %r4, %r5, {rule};"),
            &x,
        );
        let expected = x.map(|a| {
            let (b, c) = (!a, a >> 9);
            (0..32).fold(0, |out, bit| {
                let index = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1);
                out | (rule >> index & 1) << bit
            })
        });
        assert_eq!(got, expected, "lop3 {rule:#x}");
    }
    assert_eq!(
        run("bfe.s32 %r3, %r2, 5, 7;", &x),
        each(|a| ((a << 20) as i32 >> 25) as u32)
    );
    assert_eq!(run("bfe.u32 %r3, %r2, 28, 9;", &x), each(|a| a >> 28));
    assert_eq!(
        run("bfi.b32 %r3, %r2, 99, 12, 5;", &x),
        each(|a| 99 & !(31 << 12) | (a & 31) << 12)
    );
    assert_eq!(
        run("mov.b32 {%rs1, %rs2}, %r2;\nmov.b32 %r3, {%rs2, %rs1};", &x),
        each(|a| a.rotate_left(16))
    );
    assert_eq!(
        run("cvt.sat.u8.s32 %r3, %r2;", &x),
        each(|a| (a as i32).clamp(0, 255) as u32)
    );
    let both = "setp.gt.and.u32 %p1|%p2, %r2, 0x40000000, %p0;\nselp.u32 %r4, 1, 0, %p1;\nselp.u32 %r5, 2, 0, %p2;\nadd.s32 %r3, %r4, %r5;";
    assert_eq!(
        run(&format!("setp.lt.u32 %p0, %r1, 20;\n{both}"), &x),
        (0..32)
            .map(|i| if i >= 20 {
                0
            } else if x[i] > 0x4000_0000 {
                1
            } else {
                2
            })
            .collect::<Vec<u32>>()
    );
    assert_eq!(run("mov.u32 %r3, 1;\n@!%p0 mov.u32 %r3, 2;", &x), [2; 32]);
    assert_eq!(
        run("mov.u32 %r3, %lanemask_lt;", &x),
        (0..32).map(|i| (1u32 << i) - 1).collect::<Vec<_>>()
    );
    assert_eq!(
        run("{ .reg .b32 %r3; mov.u32 %r3, 9; }\nmov.u32 %r3, WARP_SZ;", &x),
        [32; 32]
    );
    let flush = "mov.f32 %f1, 0f00000001;\nadd.ftz.f32 %f2, %f1, 0f00000000;\nadd.f32 %f3, %f1, 0f00000000;\n\
                 mov.b32 %r4, %f2;\nmov.b32 %r5, %f3;\nshl.b32 %r4, %r4, 8;\nor.b32 %r3, %r4, %r5;";
    assert_eq!(run(flush, &x), [1; 32]);
    let table = "and.b32 %r4, %r1, 3;\nmov.u32 %r3, 0;\nt: .branchtargets $a, $b, $c, $d;\nbrx.idx %r4, t;\n\
                 $a: add.u32 %r3, %r3, 1;\n$b: add.u32 %r3, %r3, 10;\n$c: add.u32 %r3, %r3, 100;\n$d: add.u32 %r3, %r3, 1000;";
    assert_eq!(
        run(table, &x),
        (0..32)
            .map(|i| [1111, 1110, 1100, 1000][i % 4])
            .collect::<Vec<u32>>()
    );
}
