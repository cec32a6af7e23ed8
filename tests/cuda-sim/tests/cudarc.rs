//! The built library under unmodified cudarc: opened by path first, it stands for `libcuda.so.1`.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;

const BASIC: &str = include_str!("ptx/basic.ptx");

/// The simulator, loaded, with a test's turn on its one device.
struct Simulator {
    library: libloading::Library,
    _turn: MutexGuard<'static, ()>,
}

impl Simulator {
    fn new() -> Simulator {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        // The shared library lies beside the test programs.
        let program: PathBuf = std::env::current_exe().expect("path of the test program");
        // SAFETY: the library's initialisers do nothing.
        let library = unsafe { libloading::Library::new(program.with_file_name("libmet_cuda_sim.so")) };
        // SAFETY: cudarc only opens a library by name.
        assert!(unsafe { sys::is_culib_present() });
        Simulator {
            library: library.expect("the simulator is built"),
            _turn: turn,
        }
    }

    /// Live device memory: bytes and allocations.
    fn live(&self) -> (u64, u64) {
        let (mut bytes, mut count) = (0, 0);
        // SAFETY: the signature is that of the exported function; the pointers are those of locals.
        unsafe {
            let live = self
                .library
                .get::<unsafe extern "C" fn(*mut u64, *mut u64)>(b"met_sim_live")
                .expect("symbol");
            live(&mut bytes, &mut count);
        }
        (bytes, count)
    }
}

#[test]
fn cudarc_runs_a_kernel_on_the_built_library() {
    let simulator = Simulator::new();
    let context = CudaContext::new(0).expect("context");
    assert_eq!(context.name().expect("name"), "met-cuda-sim");
    let stream = context.new_stream().expect("stream");
    let module = context.load_module(Ptx::from_src(BASIC)).expect("module");
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
    assert_eq!(simulator.live(), (2400, 2));
    drop((dx, dy));
    stream.synchronize().expect("synchronise");
    assert_eq!(simulator.live(), (0, 0));
}

#[test]
fn cudarc_records_a_graph_and_uses_events_and_pinned_memory() {
    let simulator = Simulator::new();
    let context = CudaContext::new(0).expect("context");
    // SAFETY: one stream uses each slice here.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().expect("stream");
    let module = context.load_module(Ptx::from_src(BASIC)).expect("module");
    let kernel = module.load_function("reverse").expect("function");
    // SAFETY: every number is written before one is read.
    let mut pinned = unsafe { context.alloc_pinned::<i32>(100) }.expect("pinned memory");
    pinned
        .as_mut_slice()
        .expect("slice")
        .iter_mut()
        .enumerate()
        .for_each(|(i, number)| *number = i as i32);
    let mut x = stream.alloc_zeros::<i32>(100).expect("memory");
    stream.memcpy_htod(&pinned, &mut x).expect("upload");
    stream.synchronize().expect("synchronise");
    let config = LaunchConfig {
        grid_dim: (1, 1, 1),
        block_dim: (100, 1, 1),
        shared_mem_bytes: 400,
    };
    stream
        .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .expect("capture");
    // SAFETY: the argument is that which the kernel declares.
    unsafe { stream.launch_builder(&kernel).arg(&mut x).launch(config) }.expect("launch");
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream
        .end_capture(flags)
        .expect("graph")
        .expect("a graph that is not empty");
    let start = stream
        .record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT))
        .expect("event");
    for _ in 0..3 {
        graph.launch().expect("launch");
    }
    let end = stream
        .record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT))
        .expect("event");
    let after = stream.clone_dtoh(&x).expect("download");
    stream.synchronize().expect("synchronise");
    assert_eq!(after, (0..100).rev().collect::<Vec<i32>>());
    assert!(start.elapsed_ms(&end).expect("time") >= 0.0);
    let (free, total) = context.mem_get_info().expect("memory");
    assert!(free < total && total == 1 << 30);
    drop((graph, x, pinned));
    stream.synchronize().expect("synchronise");
    assert_eq!(simulator.live(), (0, 0));
}

/// Runs this program's first test in a process with these variables.
fn with_environment(variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("path of the test program"));
    command.args([
        "--exact",
        "cudarc_runs_a_kernel_on_the_built_library",
        "--nocapture",
    ]);
    command
        .envs(variables.iter().copied())
        .output()
        .expect("the test program runs")
}

#[test]
fn the_environment_steers_a_whole_process() {
    let modes = [
        ("MET_SIM_LAZY", "1"),
        ("MET_SIM_REVERSED", "1"),
        ("MET_SIM_THREADS", "2"),
        ("MET_SIM_TRACE", "1"),
    ];
    let output = with_environment(&modes);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("met-sim: cuLaunchKernel"),
        "{text}"
    );
    for (variables, words) in [
        (
            ("MET_SIM_FAIL", "cuLaunchKernel:1:719"),
            "CUDA_ERROR_LAUNCH_FAILED",
        ),
        (
            ("MET_SIM_FAIL", "cuStreamCreate:2:2,cuMemAllocAsync:2:2"),
            "CUDA_ERROR_OUT_OF_MEMORY",
        ),
        (("MET_SIM_DEVICES", "0"), "CUDA_ERROR_NO_DEVICE"),
        (("MET_SIM_MEMORY", "16779000"), "CUDA_ERROR_OUT_OF_MEMORY"),
        (("MET_SIM_MEMORY", "many"), "MET_SIM_MEMORY=many is no number"),
        (("MET_SIM_FAIL", "cuLaunchKernel:0"), "which is no name:n:code"),
    ] {
        let output = with_environment(&[variables]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && text.contains(words),
            "{variables:?}: {text}"
        );
    }
}
