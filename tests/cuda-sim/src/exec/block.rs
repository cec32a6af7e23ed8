//! A launch: its blocks, and within a block its warps by turns from barrier to barrier.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::memory::Frames;
use super::warp::Stop;
use super::{Fault, LANES, Warp};
use crate::arena::{ALLOCATED, Space};
use crate::code::Code;
use crate::decode::{Kernel, Special};

/// One kernel launch.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// Bytes of shared memory beside the kernel's own.
    pub(crate) dynamic_shared: u32,
    pub(crate) parameters: Arc<[u8]>,
}

/// How a launch is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Host threads that take blocks.
    pub(crate) threads: usize,
    /// Most instructions that a warp may issue.
    pub(crate) budget: u64,
    /// Warps run from the last to the first between barriers.
    pub(crate) reversed: bool,
}

/// Runs every block; the number of warp instructions issued, or the first error.
pub(crate) fn launch(launch: &Launch, global: Space, limits: Limits) -> Result<u64, Box<Fault>> {
    let blocks = launch.grid.iter().map(|n| *n as u64).product::<u64>();
    let (next, issued) = (AtomicU64::new(0), AtomicU64::new(0));
    let fault = Mutex::new(None);
    let work = || {
        let mut block = Block::new(launch, global, limits);
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= blocks {
                break;
            }
            if let Err(error) = block.run(index) {
                next.store(blocks, Ordering::Relaxed);
                fault
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .get_or_insert(error);
                break;
            }
        }
        issued.fetch_add(block.issued, Ordering::Relaxed);
    };
    if limits.threads <= 1 || blocks == 1 {
        work();
    } else {
        std::thread::scope(|scope| {
            for _ in 0..(limits.threads as u64).min(blocks) {
                scope.spawn(work);
            }
        });
    }
    match fault.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(issued.into_inner()),
    }
}

struct Block<'a> {
    launch: &'a Launch,
    warps: Vec<Warp>,
    /// Shared memory, which the warps reach by address.
    _data: Vec<u128>,
    shadow: Vec<u8>,
    reversed: bool,
    issued: u64,
}

impl<'a> Block<'a> {
    fn new(launch: &'a Launch, global: Space, limits: Limits) -> Block<'a> {
        let kernel = &launch.kernel;
        let threads: u32 = launch.block.iter().product();
        let bytes = kernel.shared_bytes as usize + launch.dynamic_shared as usize;
        let mut data = vec![0u128; bytes.div_ceil(16)];
        let mut shadow = vec![0u8; bytes];
        let shared = Space {
            data: data.as_mut_ptr().cast(),
            shadow: shadow.as_mut_ptr(),
            bytes: bytes as u64,
        };
        let warps = (0..threads.div_ceil(LANES as u32)).map(|index| {
            let frames = Frames::new(kernel.local_bytes);
            let parameters = launch.parameters.clone();
            let mut warp = Warp::new(kernel.slots, parameters, global, shared, frames, limits.budget);
            for (slot, value) in &kernel.words {
                warp.set_r(*slot, &[*value; LANES], !0);
            }
            for (slot, value) in &kernel.longs {
                warp.set_q(*slot, &[*value; LANES], !0);
            }
            for (slot, special) in &kernel.specials {
                let lanes = std::array::from_fn(|lane| launch.special(*special, index, lane as u32));
                warp.set_r(*slot, &lanes, !0);
            }
            warp
        });
        Block {
            launch,
            warps: warps.collect(),
            _data: data,
            shadow,
            reversed: limits.reversed,
            issued: 0,
        }
    }

    fn run(&mut self, index: u64) -> Result<(), Box<Fault>> {
        let [x, y, _] = self.launch.grid.map(u64::from);
        let place = [
            (index % x) as u32,
            (index / x % y) as u32,
            (index / (x * y)) as u32,
        ];
        self.shadow.fill(ALLOCATED);
        let threads: u32 = self.launch.block.iter().product();
        let kernel = &self.launch.kernel;
        for (at, warp) in self.warps.iter_mut().enumerate() {
            for (slot, special) in &kernel.specials {
                if let Special::Block(axis) = special {
                    warp.set_r(*slot, &[place[*axis as usize]; LANES], !0);
                }
            }
            let lanes = threads - at as u32 * LANES as u32;
            warp.begin(if lanes >= 32 { !0 } else { (1 << lanes) - 1 });
        }
        let whole: Vec<u32> = self.warps.iter().map(|warp| warp.live).collect();
        loop {
            let mut barrier: Option<u32> = None;
            let mut ended = None;
            for turn in 0..self.warps.len() {
                let at = if self.reversed {
                    self.warps.len() - 1 - turn
                } else {
                    turn
                };
                let warp = &mut self.warps[at];
                // SAFETY: the device checked the processor's features; the warp was made for this kernel.
                match unsafe { warp.run(&kernel.code, &kernel.targets) } {
                    Stop::Fault => return Err(self.fault(at, place)),
                    Stop::Done => ended = Some(at),
                    Stop::Barrier(instruction) => {
                        let line = kernel.code[instruction as usize].line;
                        if warp.live != whole[at] {
                            let what = "barrier reached after other threads of the warp have exited";
                            warp.fail(line, warp.live.trailing_zeros(), Code::LAUNCH_FAILED, 0, what);
                            return Err(self.fault(at, place));
                        }
                        if barrier.is_some_and(|other| other != instruction) {
                            let what = "barrier reached while another warp waits at a different one";
                            warp.fail(line, 0, Code::LAUNCH_FAILED, 0, what);
                            return Err(self.fault(at, place));
                        }
                        barrier = Some(instruction);
                    }
                }
            }
            let (Some(instruction), ended) = (barrier, ended) else {
                break;
            };
            if let Some(at) = ended {
                let line = kernel.code[instruction as usize].line;
                let what = "the warp has exited while others wait at a barrier";
                self.warps[at].fail(line, 0, Code::LAUNCH_FAILED, 0, what);
                return Err(self.fault(at, place));
            }
        }
        self.issued += self.warps.iter().map(|warp| warp.issued).sum::<u64>();
        Ok(())
    }

    /// The error of the warp with index `at`, with what only the block knows.
    fn fault(&mut self, at: usize, block: [u32; 3]) -> Box<Fault> {
        let kernel = self.launch.kernel.name.clone();
        let Some(fault) = self.warps[at].fault.take() else {
            let what = "the warp stopped without an error".to_owned();
            return Box::new(Fault {
                code: Code::UNKNOWN,
                kernel,
                line: 0,
                block,
                thread: [0; 3],
                address: 0,
                what,
            });
        };
        let thread = thread_of(self.launch.block, at as u32 * LANES as u32 + fault.lane);
        let (code, line, address) = (fault.code, fault.line, fault.address);
        Box::new(Fault {
            code,
            kernel,
            line,
            block,
            thread,
            address,
            what: fault.what,
        })
    }
}

impl Launch {
    fn special(&self, special: Special, warp: u32, lane: u32) -> u32 {
        match special {
            Special::Thread(axis) => thread_of(self.block, warp * LANES as u32 + lane)[axis as usize],
            Special::BlockSize(axis) => self.block[axis as usize],
            Special::GridSize(axis) => self.grid[axis as usize],
            Special::Block(_) => 0,
            Special::Lane => lane,
            Special::Warp => warp,
            Special::WarpCount => self.block.iter().product::<u32>().div_ceil(LANES as u32),
            Special::LanesEqual => 1 << lane,
            Special::LanesBelow => (1 << lane) - 1,
            Special::LanesUpTo => ((1u64 << (lane + 1)) - 1) as u32,
            Special::LanesAbove => !(((1u64 << (lane + 1)) - 1) as u32),
            Special::LanesFrom => !((1 << lane) - 1),
            Special::DynamicShared => self.dynamic_shared,
            Special::TotalShared => self.dynamic_shared + self.kernel.shared_bytes as u32,
            Special::Zero => 0,
        }
    }
}

fn thread_of(block: [u32; 3], index: u32) -> [u32; 3] {
    [
        index % block[0],
        index / block[0] % block[1],
        index / (block[0] * block[1]),
    ]
}
