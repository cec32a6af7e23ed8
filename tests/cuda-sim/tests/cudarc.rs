//! The built library under unmodified cudarc: opened by path first, it stands for `libcuda.so.1`.

use std::path::PathBuf;

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;

/// The shared library lies beside the test programs.
fn library() -> PathBuf {
    let program = std::env::current_exe().expect("path of the test program");
    program.with_file_name("libmet_cuda_sim.so")
}

#[test]
fn cudarc_runs_a_kernel_on_the_built_library() {
    // SAFETY: the library's initialisers do nothing.
    let simulator = unsafe { libloading::Library::new(library()) }.expect("the simulator is built");
    // SAFETY: cudarc only opens a library by name.
    assert!(unsafe { sys::is_culib_present() });
    let context = CudaContext::new(0).expect("context");
    assert_eq!(context.name().expect("name"), "met-cuda-sim");
    let stream = context.new_stream().expect("stream");
    let module = context
        .load_module(Ptx::from_src(include_str!("ptx/basic.ptx")))
        .expect("module");
    let kernel = module.load_function("scale_add").expect("function");
    let x: Vec<f32> = (0..300).map(|i| i as f32).collect();
    let dx = stream.clone_htod(&x).expect("upload");
    let mut dy = stream.clone_htod(&vec![1f32; 300]).expect("upload");
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&dx).arg(&mut dy).arg(&2f32).arg(&300i32);
    // SAFETY: the arguments are those that the kernel declares.
    unsafe { launch.launch(LaunchConfig::for_num_elems(300)) }.expect("launch");
    let y = stream.clone_dtoh(&dy).expect("download");
    stream.synchronize().expect("synchronise");
    assert_eq!(y, x.iter().map(|x| 2.0 * x + 1.0).collect::<Vec<_>>());

    // SAFETY: the signature is that of the exported function.
    let live = unsafe { simulator.get::<unsafe extern "C" fn(*mut u64, *mut u64)>(b"met_sim_live") }
        .expect("symbol");
    let (mut bytes, mut count) = (0, 0);
    // SAFETY: the pointers are those of locals.
    unsafe { live(&mut bytes, &mut count) };
    assert_eq!((bytes, count), (2400, 2));
    drop((dx, dy));
    stream.synchronize().expect("synchronise");
    // SAFETY: as above.
    unsafe { live(&mut bytes, &mut count) };
    assert_eq!((bytes, count), (0, 0));
}
