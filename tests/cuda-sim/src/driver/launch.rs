//! Kernel launches.

use std::ffi::{c_uint, c_void};

use super::Driver;
use super::pointer::{bytes, get};
use super::queue::Op;
use crate::code::Code;
use crate::exec::Launch;

impl Driver {
    #[allow(clippy::too_many_arguments)]
    fn launch(
        &mut self,
        function: usize,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic_shared: u32,
        stream: usize,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Result<(), Code> {
        let found = self.function(function)?;
        let (kernel, most_dynamic) = (found.kernel.clone(), found.most_dynamic);
        self.context()?.stream(stream)?;
        let threads = block
            .iter()
            .fold(1u64, |product, n| product.saturating_mul(*n as u64));
        let grid_fits =
            grid[0] > 0 && grid[0] <= i32::MAX as u32 && grid[1..].iter().all(|n| (1..=65535).contains(n));
        let block_fits = block[0] <= 1024 && block[1] <= 1024 && block[2] <= 64;
        if !grid_fits || !block_fits || threads == 0 || threads > kernel.most_threads as u64 {
            return Err(Code::INVALID_VALUE);
        }
        if dynamic_shared > most_dynamic || !extra.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let mut list = vec![0; kernel.parameter_bytes as usize];
        for (at, (offset, length)) in kernel.parameters.iter().enumerate() {
            if parameters.is_null() {
                return Err(Code::INVALID_VALUE);
            }
            let value = bytes(get(parameters.wrapping_add(at))?.cast(), *length as usize)?;
            list[*offset as usize..][..*length as usize].copy_from_slice(&value);
        }
        let launch = Launch {
            kernel,
            grid,
            block,
            dynamic_shared,
            parameters: list.into(),
        };
        self.submit(stream, Op::Launch(launch))
    }
}

api! {
    /// Launches a kernel in stream order.
    fn cuLaunchKernel(
        function: usize, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, dynamic_shared: c_uint, stream: usize, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    ) |d| {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        d.launch(function, grid, block, dynamic_shared, stream, parameters, extra)
    }
}
