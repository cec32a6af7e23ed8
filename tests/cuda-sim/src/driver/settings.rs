//! What the simulated device is like. Environment variables give the first values; `met_sim_*` change them.

/// Settings of the device.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// `MET_SIM_MEMORY`: bytes of device memory.
    pub(crate) memory: u64,
    /// `MET_SIM_DEVICES`: how many devices there are, 0 or 1.
    pub(crate) devices: i32,
    /// `MET_SIM_THREADS`: host threads that run a launch's blocks.
    pub(crate) threads: usize,
    /// `MET_SIM_LAZY`: work waits in its stream until something must see its result.
    pub(crate) lazy: bool,
    /// `MET_SIM_REVERSED`: between barriers the last warp of a block runs first.
    pub(crate) reversed: bool,
    /// `MET_SIM_POOLS`: the device allocates in stream order.
    pub(crate) pools: bool,
    /// `MET_SIM_TRACE`: print each call.
    pub(crate) trace: bool,
    /// `MET_SIM_FAIL`: `name:n:code` list, as for `met_sim_fail`.
    pub(crate) failures: String,
}

impl Settings {
    /// The settings that the environment asks for. An unreadable value stops the process with a message:
    /// a test that believes it has set something must not go on without.
    pub(crate) fn from_environment() -> Settings {
        Settings {
            memory: number("MET_SIM_MEMORY", 1 << 30),
            devices: number("MET_SIM_DEVICES", 1).min(1) as i32,
            threads: number("MET_SIM_THREADS", 1).clamp(1, 64) as usize,
            lazy: number("MET_SIM_LAZY", 0) != 0,
            reversed: number("MET_SIM_REVERSED", 0) != 0,
            pools: number("MET_SIM_POOLS", 1) != 0,
            trace: number("MET_SIM_TRACE", 0) != 0,
            failures: std::env::var("MET_SIM_FAIL").unwrap_or_default(),
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else {
        return default;
    };
    text.parse().unwrap_or_else(|_| {
        eprintln!("met-sim: {name}={text} is no number");
        std::process::exit(2)
    })
}
