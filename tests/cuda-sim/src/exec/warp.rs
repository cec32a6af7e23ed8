//! A warp: its registers, its groups of lanes, and the form of the instructions that it runs.

use std::sync::Arc;

use super::copy::Copies;
use super::memory;
use super::registers::Registers;
use crate::arena::Space;
use crate::code::Code;

/// What an instruction does to the lanes of its mask.
///
/// Safety: the processor has the features that `vector_fn!` names; the instruction was decoded for the
/// kernel whose warp this is, so that every slot exists.
pub(crate) type Run = unsafe fn(&mut Warp, &Inst, u32);

/// How an instruction moves the program counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// To the next instruction.
    Next,
    /// To the next, unless the instruction faults.
    Checked,
    /// To `imm` where the guard holds.
    Branch,
    /// To the target that the lane's index selects: `a` holds the index, `imm` where in the kernel's list of
    /// targets its table begins.
    Table,
    /// Waits until every lane of the member mask in register `more[13]` is here.
    Meet,
    /// The same with all lanes of the warp as members.
    Multiply,
    /// Waits for the block at barrier `imm`.
    Barrier,
    /// Ends the lanes.
    Exit,
    /// Ends the launch with an error.
    Trap,
}

/// A decoded instruction. What `a`, `b`, `c`, `more`, `imm` and `width` mean is between the decoder and `run`.
#[derive(Clone)]
pub(crate) struct Inst {
    pub(crate) run: Run,
    pub(crate) imm: i64,
    pub(crate) flow: Flow,
    /// The guard is inverted.
    pub(crate) inverted: bool,
    pub(crate) width: u8,
    /// Predicate slot of the guard; slot 0 is always true.
    pub(crate) guard: u16,
    pub(crate) d: u16,
    pub(crate) a: u16,
    pub(crate) b: u16,
    pub(crate) c: u16,
    pub(crate) more: [u16; 14],
    pub(crate) line: u32,
}

/// Lanes that stand at the same instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) at: u32,
    pub(super) mask: u32,
    /// Waits for lanes of other groups.
    pub(super) parked: bool,
}

/// An error of one lane; the block adds what it knows.
#[derive(Debug)]
pub(crate) struct LaneFault {
    pub(crate) code: Code,
    pub(crate) line: u32,
    pub(crate) lane: u32,
    pub(crate) address: u64,
    pub(crate) what: String,
}

/// Where a warp stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    Done,
    /// At the barrier instruction with this index.
    Barrier(u32),
    Fault,
}

/// A warp of one block.
pub(crate) struct Warp {
    pub(super) registers: Registers,
    pub(super) parameters: Arc<[u8]>,
    pub(super) global: Space,
    pub(super) shared: Space,
    pub(super) local: memory::Frames,
    pub(super) copies: Copies,
    /// Lanes that have not exited.
    pub(super) live: u32,
    pub(super) groups: Vec<Group>,
    pub(super) fault: Option<Box<LaneFault>>,
    /// Instructions issued since the block began.
    pub(super) issued: u64,
    /// Most instructions a block's warp may issue.
    pub(super) budget: u64,
}

impl Warp {
    /// A warp with room for the kernel's registers.
    pub(super) fn new(
        slots: [usize; 3],
        parameters: Arc<[u8]>,
        global: Space,
        shared: Space,
        local: memory::Frames,
        budget: u64,
    ) -> Warp {
        Warp {
            registers: Registers::take(slots),
            parameters,
            global,
            shared,
            local,
            copies: Copies::default(),
            live: 0,
            groups: Vec::with_capacity(8),
            fault: None,
            issued: 0,
            budget,
        }
    }

    /// Puts `lanes` at the first instruction.
    pub(super) fn begin(&mut self, lanes: u32) {
        self.live = lanes;
        self.groups.clear();
        self.groups.push(Group {
            at: 0,
            mask: lanes,
            parked: false,
        });
        self.copies.clear();
        self.local.forget();
        self.issued = 0;
    }

    #[cold]
    pub(super) fn fail(&mut self, line: u32, lane: u32, code: Code, address: u64, what: impl Into<String>) {
        if self.fault.is_none() {
            self.fault = Some(Box::new(LaneFault {
                code,
                line,
                lane,
                address,
                what: what.into(),
            }));
        }
    }
}

/// The `run` of an instruction that only moves the program counter.
///
/// # Safety
/// None is needed; the type asks for `unsafe`.
pub(crate) unsafe fn nothing(_: &mut Warp, _: &Inst, _: u32) {}
