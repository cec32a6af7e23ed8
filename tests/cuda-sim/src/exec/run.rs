//! The loop that runs a warp to its next barrier.
//!
//! Lanes that diverge become groups. The group with the lowest instruction runs, up to where the next
//! group stands, and there they merge: code laid out in order reconverges as early as it can.

use super::warp::{Flow, Group, Inst, Stop};
use super::{LANES, Warp};
use crate::code::Code;

impl Warp {
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
