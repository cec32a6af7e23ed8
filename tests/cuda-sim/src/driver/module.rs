//! Modules: PTX text to functions and variables.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use super::Driver;
use super::device::{CAPABILITY, PTX_VERSION, SHARED_BYTES};
use super::memory::Owner;
use super::pointer::{get, put, put_text, text};
use crate::code::Code;
use crate::decode::{Kernel, Program, decode};
use crate::ptx::{self, Refusal};

/// A loaded module.
pub(super) struct Module {
    program: Program,
    /// Addresses of its variables' allocations.
    variables: Vec<u64>,
    /// Functions that were asked for, by name.
    handles: HashMap<String, usize>,
}

/// A function of a module.
pub(super) struct Function {
    pub(super) kernel: Arc<Kernel>,
    /// Most dynamic shared memory that a launch may ask for.
    pub(super) most_dynamic: u32,
}

impl Driver {
    fn load(&mut self, source: &str) -> Result<usize, (Code, String)> {
        let refused = |refusal: Refusal| (Code::INVALID_PTX, format!("PTX refused, {refusal}"));
        let memory = self.settings.memory;
        let handle = self.handle();
        let context = self.context().map_err(|code| (code, String::new()))?;
        let tree = ptx::parse(source).map_err(refused)?;
        if tree.version > PTX_VERSION {
            let what = format!(
                "PTX of version {} is newer than this driver's {PTX_VERSION}",
                tree.version
            );
            return Err((Code::UNSUPPORTED_PTX_VERSION, what));
        }
        if tree.target > CAPABILITY {
            let what = format!(
                "PTX for sm_{} cannot run on this device of sm_{CAPABILITY}",
                tree.target
            );
            return Err((Code::NO_BINARY_FOR_GPU, what));
        }
        let mut variables = Vec::new();
        let program = decode(&tree, |variable| {
            let full = || Refusal {
                line: variable.line,
                what: format!("no memory for {}", variable.name),
            };
            let bytes = variable.bytes().max(1);
            if context.free_bytes(memory) < bytes {
                return Err(full());
            }
            let address = context.allocate(bytes, Owner::Module).map_err(|_| full())?;
            variables.push(address);
            let initial = &variable.initial[..variable.initial.len().min(bytes as usize)];
            // SAFETY: the allocation holds as many bytes, and fresh pages are zero.
            unsafe { initial.as_ptr().copy_to(address as *mut u8, initial.len()) };
            Ok(address)
        });
        match program {
            Ok(program) => {
                context.modules.insert(
                    handle,
                    Module {
                        program,
                        variables,
                        handles: HashMap::new(),
                    },
                );
                Ok(handle)
            }
            Err(refusal) => {
                for address in variables {
                    // It was allocated above, so this cannot fail.
                    let _ = context.release(address);
                }
                Err(refused(refusal))
            }
        }
    }

    /// Loads the text at `image`; the reason of a failure goes to standard error and to `log`.
    fn load_image(&mut self, module: *mut usize, image: *const c_void, log: Log) -> Result<(), Code> {
        self.context()?;
        self.refuse_while_capturing()?;
        let source = text(image.cast()).map_err(|_| Code::INVALID_IMAGE)?;
        if !source.contains(".version") {
            return Err(Code::INVALID_IMAGE);
        }
        let handle = self.load(&source).map_err(|(code, what)| {
            if !what.is_empty() {
                eprintln!("met-sim: {what}");
                if !log.0.is_null() && log.1 != 0 {
                    let _ = put_text(log.0, log.1, &what);
                }
                self.last_error = what;
            }
            code
        })?;
        put(module, handle)
    }

    fn module(&mut self, handle: usize) -> Result<&mut Module, Code> {
        self.context()?
            .modules
            .get_mut(&handle)
            .ok_or(Code::INVALID_HANDLE)
    }
}

/// A buffer for the reason of a failure, and its size.
struct Log(*mut c_char, usize);

api! {
    /// Loads a module from PTX text.
    fn cuModuleLoadData(module: *mut usize, image: *const c_void) |d| {
        d.load_image(module, image, Log(std::ptr::null_mut(), 0))
    }

    /// The same; of the options only the buffer for errors (5, its size 6) means something here.
    fn cuModuleLoadDataEx(
        module: *mut usize, image: *const c_void, count: c_uint, options: *const c_int, values: *const *mut c_void,
    ) |d| {
        let mut log = Log(std::ptr::null_mut(), 0);
        for at in 0..count as usize {
            let value = get(values.wrapping_add(at))?;
            match get(options.wrapping_add(at))? {
                5 => log.0 = value.cast(),
                6 => log.1 = value as usize,
                _ => {}
            }
        }
        d.load_image(module, image, log)
    }

    /// Loads a module from a file.
    fn cuModuleLoad(module: *mut usize, path: *const c_char) |d| {
        let source = std::fs::read(text(path)?).map_err(|_| Code::FILE_NOT_FOUND)?;
        let source = CString::new(source).map_err(|_| Code::INVALID_IMAGE)?;
        d.load_image(module, source.as_ptr().cast(), Log(std::ptr::null_mut(), 0))
    }

    /// Unloads a module: its functions and variables are gone.
    fn cuModuleUnload(module: usize) |d| {
        d.module(module)?;
        d.drain_all();
        let context = d.context()?;
        let Some(gone) = context.modules.remove(&module) else { return Err(Code::INVALID_HANDLE) };
        for function in gone.handles.values() {
            context.functions.remove(function);
        }
        for address in gone.variables {
            context.release(address)?;
        }
        Ok(())
    }

    /// A function of a module by name.
    fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) |d| {
        let name = text(name)?;
        let fresh = d.handle();
        let found = d.module(module)?;
        if let Some(known) = found.handles.get(&name) {
            return put(function, *known);
        }
        let kernel = found.program.kernels.get(&name).ok_or(Code::NOT_FOUND)?.clone();
        found.handles.insert(name, fresh);
        let most_dynamic = SHARED_BYTES[0].saturating_sub(kernel.shared_bytes as u32);
        d.context()?.functions.insert(fresh, Function { kernel, most_dynamic });
        put(function, fresh)
    }

    /// A variable of a module by name: its address and bytes.
    fn cuModuleGetGlobal_v2(address: *mut u64, bytes: *mut usize, module: usize, name: *const c_char) |d| {
        let name = text(name)?;
        let (at, length) = *d.module(module)?.program.variables.get(&name).ok_or(Code::NOT_FOUND)?;
        if !address.is_null() {
            put(address, at)?;
        }
        if bytes.is_null() { Ok(()) } else { put(bytes, length as usize) }
    }
}
