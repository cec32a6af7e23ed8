//! A syntax tree to kernels that the interpreter can run. Whatever is not known is refused here, with its line.

mod control;
mod declare;
mod instruction;
mod memory;
mod scope;
mod warp;

use std::collections::HashMap;
use std::sync::Arc;

use crate::exec::Inst;
use crate::ptx::{Module, Refusal, Space, Variable, refuse};
use declare::Decoder;
use scope::Binding;

/// A kernel ready to run.
pub(crate) struct Kernel {
    pub(crate) name: String,
    /// Offset and bytes of each parameter in the parameter list.
    pub(crate) parameters: Vec<(u32, u32)>,
    pub(crate) parameter_bytes: u32,
    /// 32-bit registers, 64-bit registers, predicates.
    pub(crate) slots: [usize; 3],
    pub(crate) code: Vec<Inst>,
    /// Targets of branches by table.
    pub(crate) targets: Vec<u32>,
    /// Slots that hold constants.
    pub(crate) words: Vec<(u16, u32)>,
    pub(crate) longs: Vec<(u16, u64)>,
    /// Slots that hold special registers.
    pub(crate) specials: Vec<(u16, Special)>,
    /// Shared memory that the kernel declares.
    pub(crate) shared_bytes: u64,
    /// Local memory of a thread.
    pub(crate) local_bytes: u64,
    pub(crate) most_threads: u32,
    pub(crate) ptx_version: u32,
}

/// A special register, constant for a lane during a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Special {
    Thread(u8),
    BlockSize(u8),
    Block(u8),
    GridSize(u8),
    Lane,
    Warp,
    WarpCount,
    LanesEqual,
    LanesBelow,
    LanesUpTo,
    LanesAbove,
    LanesFrom,
    DynamicShared,
    TotalShared,
    Zero,
}

/// What a loaded module holds.
pub(crate) struct Program {
    pub(crate) kernels: HashMap<String, Arc<Kernel>>,
    /// Address and bytes of each variable in global or constant memory.
    pub(crate) variables: HashMap<String, (u64, u64)>,
}

/// Decodes every kernel of `module`. `place` gives a variable of global or constant memory its address.
pub(crate) fn decode(
    module: &Module,
    mut place: impl FnMut(&Variable) -> Result<u64, Refusal>,
) -> Result<Program, Refusal> {
    let mut outer = HashMap::new();
    let mut variables = HashMap::new();
    let mut shared_bytes = 0;
    let mut dynamic = Vec::new();
    for variable in &module.variables {
        match variable.space {
            Space::Global | Space::Constant => {
                let address = place(variable)?;
                variables.insert(variable.name.clone(), (address, variable.bytes()));
                outer.insert(variable.name.clone(), Binding::Address(Space::Global, address));
            }
            Space::Shared if variable.is_extern => dynamic.push(variable),
            Space::Shared => {
                let address = declare::reserve(&mut shared_bytes, variable)?;
                outer.insert(variable.name.clone(), Binding::Address(Space::Shared, address));
            }
            _ => {
                return refuse(
                    variable.line,
                    format!("{} is declared outside a function", variable.name),
                );
            }
        }
    }
    let functions: HashMap<_, _> = module.functions.iter().map(|f| (f.name.as_str(), f)).collect();
    let mut kernels = HashMap::new();
    for function in module.functions.iter().filter(|function| function.is_kernel) {
        let mut decoder = Decoder::new(&functions, &outer, shared_bytes);
        let kernel = decoder.kernel(function, &dynamic, module.version)?;
        kernels.insert(function.name.clone(), Arc::new(kernel));
    }
    Ok(Program { kernels, variables })
}
