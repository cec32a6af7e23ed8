//! A warp: its registers, its groups of lanes, and the loop that runs it to the next barrier.
//!
//! Lanes that diverge become groups. The group with the lowest instruction runs, up to where the next
//! group stands, and there they merge: code laid out in order reconverges as early as it can.

use std::sync::Arc;

use super::copy::Copies;
use super::{LANES, memory};
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
    /// To the target that the lane's index selects: `a` holds the index, `imm` the first target's slot
    /// in [`Code`](crate::decode::Kernel), `width` is unused.
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

/// One 32-bit register of all lanes.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Lanes32(pub(crate) [u32; LANES]);

/// One 64-bit register of all lanes.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Lanes64(pub(crate) [u64; LANES]);

/// Lanes that stand at the same instruction.
#[derive(Clone, Copy, Debug)]
struct Group {
    at: u32,
    mask: u32,
    /// Waits for lanes of other groups.
    parked: bool,
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
    words: Box<[Lanes32]>,
    longs: Box<[Lanes64]>,
    predicates: Box<[u32]>,
    pub(super) parameters: Arc<[u8]>,
    pub(super) global: Space,
    pub(super) shared: Space,
    pub(super) local: memory::Frames,
    pub(super) copies: Copies,
    /// Lanes that have not exited.
    pub(super) live: u32,
    groups: Vec<Group>,
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
        let mut predicates = vec![0; slots[2]].into_boxed_slice();
        predicates[0] = !0;
        Warp {
            words: vec![Lanes32([0; LANES]); slots[0]].into_boxed_slice(),
            longs: vec![Lanes64([0; LANES]); slots[1]].into_boxed_slice(),
            predicates,
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
        self.copies = Copies::default();
        self.local.forget();
        self.issued = 0;
    }

    #[inline(always)]
    pub(super) fn r(&self, slot: u16) -> &[u32; LANES] {
        debug_assert!((slot as usize) < self.words.len());
        // SAFETY: the decoder hands out slots and counts them, and the kernel's count made this slice.
        unsafe { &self.words.get_unchecked(slot as usize).0 }
    }

    #[inline(always)]
    pub(super) fn q(&self, slot: u16) -> &[u64; LANES] {
        debug_assert!((slot as usize) < self.longs.len());
        // SAFETY: as in `r`.
        unsafe { &self.longs.get_unchecked(slot as usize).0 }
    }

    #[inline(always)]
    pub(super) fn p(&self, slot: u16) -> u32 {
        debug_assert!((slot as usize) < self.predicates.len());
        // SAFETY: as in `r`.
        unsafe { *self.predicates.get_unchecked(slot as usize) }
    }

    #[inline(always)]
    pub(super) fn set_r(&mut self, slot: u16, value: &[u32; LANES], mask: u32) {
        debug_assert!((slot as usize) < self.words.len());
        // SAFETY: as in `r`.
        let to = unsafe { &mut self.words.get_unchecked_mut(slot as usize).0 };
        if mask == !0 {
            *to = *value;
        } else {
            for lane in 0..LANES {
                to[lane] = if mask >> lane & 1 != 0 {
                    value[lane]
                } else {
                    to[lane]
                };
            }
        }
    }

    #[inline(always)]
    pub(super) fn set_q(&mut self, slot: u16, value: &[u64; LANES], mask: u32) {
        debug_assert!((slot as usize) < self.longs.len());
        // SAFETY: as in `r`.
        let to = unsafe { &mut self.longs.get_unchecked_mut(slot as usize).0 };
        if mask == !0 {
            *to = *value;
        } else {
            for lane in 0..LANES {
                to[lane] = if mask >> lane & 1 != 0 {
                    value[lane]
                } else {
                    to[lane]
                };
            }
        }
    }

    #[inline(always)]
    pub(super) fn set_p(&mut self, slot: u16, value: u32, mask: u32) {
        debug_assert!((slot as usize) < self.predicates.len());
        // SAFETY: as in `r`.
        let to = unsafe { self.predicates.get_unchecked_mut(slot as usize) };
        *to = (*to & !mask) | (value & mask);
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

    /// Runs to the next barrier, the end or a fault.
    ///
    /// # Safety
    /// As for [`Run`], for every instruction of `code`, which is this warp's kernel's.
    pub(super) unsafe fn run(&mut self, code: &[Inst], targets: &[u32]) -> Stop {
        loop {
            let Some((at, mask)) = self.next_group() else {
                return if self.live == 0 {
                    Stop::Done
                } else {
                    self.stuck(code)
                };
            };
            // SAFETY: the caller's promise is ours.
            if let Some(stop) = unsafe { self.run_group(at, mask, code, targets) } {
                return stop;
            }
        }
    }

    /// Runs one group until it must give way (`None`) or the warp stops.
    ///
    /// # Safety
    /// As for `run`.
    unsafe fn run_group(&mut self, start: u32, lanes: u32, code: &[Inst], targets: &[u32]) -> Option<Stop> {
        let (mut at, mut mask) = (start, lanes);
        let mut limit = self.nearest_above(at);
        loop {
            if at >= limit {
                self.groups.push(Group {
                    at,
                    mask,
                    parked: false,
                });
                return None;
            }
            // SAFETY: the decoder ends every kernel with an exit, and branches go to instructions that exist.
            let i = unsafe { code.get_unchecked(at as usize) };
            let guard = self.p(i.guard);
            let active = mask & if i.inverted { !guard } else { guard };
            self.issued += 1;
            match i.flow {
                Flow::Next => {
                    if active != 0 {
                        // SAFETY: the caller's promise is ours.
                        unsafe { (i.run)(self, i, active) };
                    }
                    at += 1;
                }
                Flow::Checked => {
                    if active != 0 {
                        // SAFETY: the caller's promise is ours.
                        unsafe { (i.run)(self, i, active) };
                        if self.fault.is_some() {
                            return Some(Stop::Fault);
                        }
                    }
                    at += 1;
                }
                Flow::Branch => {
                    if self.issued > self.budget {
                        self.fail(
                            i.line,
                            mask.trailing_zeros(),
                            Code::LAUNCH_TIMEOUT,
                            0,
                            "the block runs for ever",
                        );
                        return Some(Stop::Fault);
                    }
                    let target = i.imm as u32;
                    if active == mask {
                        at = target;
                    } else if active == 0 {
                        at += 1;
                    } else {
                        self.groups.push(Group {
                            at: target,
                            mask: active,
                            parked: false,
                        });
                        mask &= !active;
                        at += 1;
                    }
                    if !self.groups.is_empty() {
                        if self
                            .groups
                            .iter()
                            .any(|group| group.at <= at && !group.parked || group.at == at)
                        {
                            self.groups.push(Group {
                                at,
                                mask,
                                parked: false,
                            });
                            return None;
                        }
                        limit = self.nearest_above(at);
                    }
                }
                Flow::Table => {
                    self.split_by_table(i, at, mask, active, targets);
                    return None;
                }
                Flow::Meet | Flow::Multiply if active == 0 => at += 1,
                Flow::Meet | Flow::Multiply => {
                    let members = self.members(i, active);
                    if active != members {
                        if active == mask && active & !members == 0 {
                            self.groups.push(Group {
                                at,
                                mask,
                                parked: true,
                            });
                            return None;
                        }
                        self.fail(
                            i.line,
                            active.trailing_zeros(),
                            Code::LAUNCH_FAILED,
                            0,
                            format!("lanes {active:#010x} run a .sync instruction for lanes {members:#010x}"),
                        );
                        return Some(Stop::Fault);
                    }
                    // SAFETY: the caller's promise is ours.
                    unsafe { (i.run)(self, i, active) };
                    if self.fault.is_some() {
                        return Some(Stop::Fault);
                    }
                    at += 1;
                }
                Flow::Barrier if active == 0 => at += 1,
                Flow::Barrier => {
                    if active != self.live {
                        if active == mask && !self.groups.is_empty() {
                            self.groups.push(Group {
                                at,
                                mask,
                                parked: true,
                            });
                            return None;
                        }
                        self.diverged(i.line, active);
                        return Some(Stop::Fault);
                    }
                    self.groups.push(Group {
                        at: at + 1,
                        mask,
                        parked: false,
                    });
                    return Some(Stop::Barrier(at));
                }
                Flow::Exit => {
                    self.live &= !active;
                    mask &= !active;
                    if mask == 0 {
                        return None;
                    }
                    at += 1;
                }
                Flow::Trap => {
                    if active != 0 {
                        self.fail(
                            i.line,
                            active.trailing_zeros(),
                            Code::LAUNCH_FAILED,
                            0,
                            "the kernel trapped",
                        );
                        return Some(Stop::Fault);
                    }
                    at += 1;
                }
            }
        }
    }

    /// The living lanes that `.sync` instruction `i` waits for, by what the lanes of `mask` say.
    #[inline(always)]
    fn members(&self, i: &Inst, mask: u32) -> u32 {
        if i.flow == Flow::Multiply {
            return self.live;
        }
        self.r(i.more[13])[mask.trailing_zeros() as usize & 31] & self.live
    }

    /// Takes the group with the lowest instruction, merged with all others there.
    fn next_group(&mut self) -> Option<(u32, u32)> {
        // A parked group goes on once another has come to where it stands.
        let at = self
            .groups
            .iter()
            .filter(|group| !group.parked)
            .map(|group| group.at)
            .min()?;
        let mut mask = 0;
        self.groups.retain(|group| {
            if group.at == at {
                mask |= group.mask;
            }
            group.at != at
        });
        Some((at, mask))
    }

    fn nearest_above(&self, at: u32) -> u32 {
        self.groups
            .iter()
            .map(|group| group.at)
            .filter(|other| *other > at)
            .min()
            .unwrap_or(u32::MAX)
    }

    fn split_by_table(&mut self, i: &Inst, at: u32, mask: u32, active: u32, targets: &[u32]) {
        let index = *self.r(i.a);
        for lane in 0..LANES as u32 {
            let bit = 1 << lane;
            if mask & bit == 0 {
                continue;
            }
            let target = match targets
                .get(i.imm as usize..)
                .and_then(|t| t.get(index[lane as usize] as usize))
            {
                _ if active & bit == 0 => at + 1,
                Some(target) => *target,
                None => at + 1,
            };
            self.groups.push(Group {
                at: target,
                mask: bit,
                parked: false,
            });
        }
    }

    /// No group can go on, though lanes are alive.
    fn stuck(&mut self, code: &[Inst]) -> Stop {
        let Some(group) = self.groups.first().copied() else {
            self.fail(0, 0, Code::LAUNCH_FAILED, 0, "lanes are alive in no group");
            return Stop::Fault;
        };
        let i = &code[group.at as usize];
        if i.flow == Flow::Barrier {
            self.diverged(i.line, group.mask);
        } else {
            let members = self.members(i, group.mask);
            let what = format!(
                "a .sync instruction for lanes {members:#010x} is reached by {:#010x} only",
                group.mask
            );
            self.fail(i.line, group.mask.trailing_zeros(), Code::LAUNCH_FAILED, 0, what);
        }
        Stop::Fault
    }

    fn diverged(&mut self, line: u32, lanes: u32) {
        let what = format!(
            "barrier reached by lanes {lanes:#010x} of a warp with lanes {:#010x} alive",
            self.live
        );
        self.fail(line, lanes.trailing_zeros() & 31, Code::LAUNCH_FAILED, 0, what);
    }
}

/// The `run` of an instruction that only moves the program counter.
///
/// # Safety
/// None is needed; the type asks for `unsafe`.
pub(crate) unsafe fn nothing(_: &mut Warp, _: &Inst, _: u32) {}
