//! Launches of kernels, one by one and noted for later.

use crate::{context::Stream, error::Checked, modules::Kernel};
use cudarc::driver::result;
use met_kernels::{Error, Result};
use std::os::raw::c_void;

/// A value of a kernel's parameter, as its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arg([u32; 10]);

/// Most parameters of a kernel.
const MAX_ARGS: usize = 24;

impl Arg {
    fn of<const N: usize>(words: [u32; N]) -> Self {
        let mut all = [0; 10];
        all[..N].copy_from_slice(&words);
        Self(all)
    }
}

impl From<u32> for Arg {
    fn from(x: u32) -> Self {
        Self::of([x])
    }
}
impl From<i32> for Arg {
    fn from(x: i32) -> Self {
        Self::of([x.cast_unsigned()])
    }
}
impl From<f32> for Arg {
    fn from(x: f32) -> Self {
        Self::of([x.to_bits()])
    }
}
/// An address on the card.
impl From<u64> for Arg {
    fn from(x: u64) -> Self {
        Self::of([x as u32, (x >> 32) as u32])
    }
}
/// A structure of words.
impl<const N: usize> From<[u32; N]> for Arg {
    fn from(words: [u32; N]) -> Self {
        const { assert!(N <= 10) };
        Self::of(words)
    }
}

/// The values of a kernel's parameters.
macro_rules! args {
    ($($value:expr),* $(,)?) => {
        &[$(crate::launch::Arg::from($value)),*]
    };
}
pub(crate) use args;

impl Kernel {
    /// Starts it.
    ///
    /// # Safety
    /// The arguments must be what the kernel takes, in order and of their types, and what they point to on the card
    /// must be large enough and live until the kernel is done on this stream.
    pub(crate) unsafe fn launch(
        self,
        stream: &Stream,
        grid: [usize; 2],
        block: u32,
        args: &[Arg],
    ) -> Result<()> {
        let side = |n: usize, limit: u32| {
            u32::try_from(n)
                .ok()
                .filter(|&n| n <= limit)
                .ok_or_else(|| Error::invalid(format!("a step of this size needs a grid of {n} blocks")))
        };
        let grid = (side(grid[0], i32::MAX as u32)?, side(grid[1], 65_535)?, 1);
        if grid.0 == 0 || grid.1 == 0 {
            return Ok(());
        }
        let mut pointers = [std::ptr::null_mut::<c_void>(); MAX_ARGS];
        let pointers = pointers
            .get_mut(..args.len())
            .ok_or_else(|| Error::bug("a kernel has too many parameters"))?;
        for (pointer, arg) in pointers.iter_mut().zip(args) {
            *pointer = arg.0.as_ptr().cast_mut().cast();
        }
        // SAFETY: the caller's promise; the driver reads what the pointers show before the call returns.
        unsafe { result::launch_kernel(self.0, grid, (block, 1, 1), 0, stream.raw(), pointers) }
            .while_doing("starting a kernel")
    }
}

/// Launches in their order. Two lists are equal where they start the same kernels on the same values.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Launches {
    heads: Vec<Head>,
    args: Vec<Arg>,
}

#[derive(Debug, PartialEq, Eq)]
struct Head {
    kernel: Kernel,
    grid: [usize; 2],
    block: u32,
    /// Where its arguments end.
    end: usize,
}

impl Launches {
    pub(crate) fn push(&mut self, kernel: Kernel, grid: [usize; 2], block: u32, args: &[Arg]) {
        self.args.extend_from_slice(args);
        self.heads.push(Head {
            kernel,
            grid,
            block,
            end: self.args.len(),
        });
    }

    /// Starts all of them.
    ///
    /// # Safety
    /// As for [`Kernel::launch`], of each.
    pub(crate) unsafe fn start(&self, stream: &Stream) -> Result<()> {
        let mut first = 0;
        for head in &self.heads {
            let args = &self.args[first..head.end];
            // SAFETY: the caller's promise.
            unsafe { head.kernel.launch(stream, head.grid, head.block, args) }?;
            first = head.end;
        }
        Ok(())
    }
}
