//! Kernels: PTX files loaded when they are first asked for.

use crate::{context::strike, error::Checked, ptx};
use cudarc::driver::{result::module, sys};
use met_kernels::{Error, Kind, Ledger, Result, Serial};
use std::{collections::HashMap, ffi::CString};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kernel(pub(crate) sys::CUfunction);

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
