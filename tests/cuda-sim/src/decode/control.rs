//! Branches, calls, barriers, and what has no effect here.

use super::declare::Decoder;
use super::scope::Class;
use crate::exec::{Flow, Inst, nothing};
use crate::ptx::{Operand, Refusal, refuse};

impl Decoder<'_> {
    /// Decodes such an instruction; `false` where it is not known.
    pub(super) fn control(
        &mut self,
        mut inst: Inst,
        parts: &[&str],
        operands: &[Operand],
    ) -> Result<bool, Refusal> {
        let line = inst.line;
        match (parts, operands) {
            (["bra"] | ["bra", "uni"], [Operand::Name(label)]) => self.branch(inst, label),
            (["brx", "idx"] | ["brx", "idx", "uni"], [index, Operand::Name(table)]) => {
                inst.a = self.source(index, Class::Word, &inst)?;
                self.branch_by_table(inst, table)?;
            }
            (["ret"] | ["ret", "uni"], []) => self.leave(inst),
            (["exit"], []) => self.emit(Inst {
                flow: Flow::Exit,
                ..inst
            }),
            (["trap"], []) => self.emit(Inst {
                flow: Flow::Trap,
                ..inst
            }),
            (["call"] | ["call", "uni"], operands) => {
                let aborts = operands
                    .iter()
                    .any(|o| matches!(o, Operand::Name(name) if name == "__assertfail"));
                if aborts {
                    self.emit(Inst {
                        flow: Flow::Trap,
                        ..inst
                    });
                } else if inst.guard == 0 {
                    self.call(operands, line)?;
                } else {
                    return refuse(line, "a call with a guard is not supported");
                }
            }
            (["bar" | "barrier", rest @ ..], operands) if !matches!(rest, ["warp", ..]) => {
                let rest = if let ["cta", rest @ ..] = rest { rest } else { rest };
                match (rest, operands) {
                    (["sync"] | ["sync", "aligned"], [Operand::Number(id)]) if *id < 16 => {
                        self.emit(Inst {
                            flow: Flow::Barrier,
                            imm: *id as i64,
                            ..inst
                        });
                    }
                    (["sync"] | ["sync", "aligned"], _) => {
                        return refuse(
                            line,
                            "a barrier for part of a block, or with a variable number, is not supported",
                        );
                    }
                    _ => return Ok(false),
                }
            }
            (["bar", "warp", "sync"], [members]) => {
                inst.more[13] = self.source(members, Class::Word, &inst)?;
                self.emit(Inst {
                    run: nothing,
                    flow: Flow::Meet,
                    ..inst
                });
            }
            // Memory is in order here, and time does not matter.
            (
                [
                    "membar" | "fence" | "nanosleep" | "prefetch" | "prefetchu" | "discard"
                    | "griddepcontrol",
                    ..,
                ],
                _,
            ) => {}
            _ => return Ok(false),
        }
        Ok(true)
    }
}
