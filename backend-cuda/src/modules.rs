//! Kernels: PTX files loaded when they are first asked for, and launches.

use crate::{
    context::{Stream, strike},
    error::Checked,
    ptx,
};
use cudarc::driver::{
    result::{self, module},
    sys,
};
use met_kernels::{Error, Kind, Ledger, Result, Serial};
use std::{collections::HashMap, ffi::CString, os::raw::c_void};

/// Owner label of the modules.
const OWNER: &str = "kernels";

/// The loaded modules.
#[derive(Debug)]
pub(crate) struct Modules {
    ledger: Ledger,
    loaded: HashMap<&'static str, Module>,
}

#[derive(Debug)]
struct Module {
    raw: sys::CUmodule,
    serial: Serial,
    functions: HashMap<&'static str, sys::CUfunction>,
}

/// A kernel of a module that stays loaded as long as the context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel(sys::CUfunction);

impl Modules {
    pub(crate) fn new(ledger: &Ledger) -> Self {
        Self {
            ledger: ledger.clone(),
            loaded: HashMap::new(),
        }
    }

    /// A kernel of the PTX file `file`.
    pub(crate) fn kernel(&mut self, file: &str, name: &'static str) -> Result<Kernel> {
        let module = self.load(file)?;
        if let Some(function) = module.functions.get(name) {
            return Ok(Kernel(*function));
        }
        let c_name =
            CString::new(name).map_err(|_| Error::bug(format!("a kernel can't be named {name:?}")))?;
        // SAFETY: the module is loaded.
        let function = unsafe { module::get_function(module.raw, c_name) }
            .while_doing(&format!("finding kernel {name} of {file}"))?;
        module.functions.insert(name, function);
        Ok(Kernel(function))
    }

    fn load(&mut self, file: &str) -> Result<&mut Module> {
        let ptx = ptx::FILES
            .iter()
            .find(|ptx| ptx.name == file)
            .ok_or_else(|| Error::bug(format!("there are no kernels named {file}")))?;
        if !self.loaded.contains_key(ptx.name) {
            let module = load(&self.ledger, ptx)?;
            self.loaded.insert(ptx.name, module);
        }
        self.loaded
            .get_mut(ptx.name)
            .ok_or_else(|| Error::bug("a module just loaded is gone"))
    }

    /// Unloads all of them but some; the first failure is returned, and what failed stays on the ledger.
    pub(crate) fn unload_but(&mut self, kept: &[&str]) -> Result<()> {
        let results: Vec<_> = self
            .loaded
            .extract_if(|name, _| !kept.contains(name))
            .map(|(_, module)| self.ledger.release(module.serial).map(|_| ()))
            .collect();
        results.into_iter().collect()
    }
}

impl Drop for Modules {
    fn drop(&mut self) {
        // A failure leaves it on the ledger, and the sweep reports it.
        let _ = self.unload_but(&[]);
    }
}

fn load(ledger: &Ledger, ptx: &ptx::Ptx) -> Result<Module> {
    let image = CString::new(ptx.text).map_err(|_| Error::bug(format!("{} has a zero byte", ptx.name)))?;
    let serial = ledger.enter(Kind::Module, OWNER, 0)?;
    // SAFETY: a text that ends in a zero, as the driver wants PTX.
    let loaded = unsafe { module::load_data(image.as_ptr().cast()) }
        .while_doing(&format!("loading kernels {}", ptx.name));
    let raw = loaded.inspect_err(|_| strike(ledger, serial))?;
    let address = raw as usize;
    let give_back = move || {
        // SAFETY: loaded above and unloaded once: the entry goes with it; no kernel of it runs any more.
        unsafe { module::unload(address as sys::CUmodule) }.while_doing("unloading kernels")
    };
    ledger.attach(serial, Box::new(give_back))?;
    Ok(Module {
        raw,
        serial,
        functions: HashMap::new(),
    })
}

/// A value of a kernel's parameter, as its bytes.
#[derive(Clone, Copy, Debug)]
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
        &[$(crate::modules::Arg::from($value)),*]
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
