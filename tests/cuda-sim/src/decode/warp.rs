//! Instructions in which the lanes of a warp work together.

use super::declare::Decoder;
use super::scope::Class;
use crate::exec::{Flow, Inst, MULTIPLIES, SHUFFLES, VOTES, active_lanes};
use crate::ptx::{Operand, Refusal, refuse};

impl Decoder<'_> {
    /// Decodes such an instruction; `false` where it is not known.
    pub(super) fn warp_wide(
        &mut self,
        mut inst: Inst,
        opcode: &str,
        operands: &[Operand],
    ) -> Result<bool, Refusal> {
        let line = inst.line;
        inst.flow = Flow::Meet;
        if opcode == "activemask.b32" {
            return self
                .plain(
                    Inst {
                        flow: Flow::Next,
                        ..inst
                    },
                    "r",
                    active_lanes,
                    operands,
                )
                .map(|()| true);
        }
        if let Some(mode) = opcode
            .strip_prefix("shfl.sync.")
            .and_then(|rest| rest.strip_suffix(".b32"))
        {
            let Some((_, run)) = SHUFFLES.iter().find(|(known, _)| *known == mode) else {
                return Ok(false);
            };
            let [to, value, lanes, clamp, members] = operands else {
                return refuse(line, "shfl.sync has five operands");
            };
            let (to, in_range) = match to {
                Operand::Pair(to, in_range) => (&**to, Some(&**in_range)),
                other => (other, None),
            };
            if let Some(in_range) = in_range {
                inst.c = self.destination(in_range, Class::Predicate, line)?;
            }
            inst.d = self.destination(to, Class::Word, line)?;
            inst.a = self.source(value, Class::Word, &inst)?;
            inst.b = self.source(lanes, Class::Word, &inst)?;
            inst.more[0] = self.source(clamp, Class::Word, &inst)?;
            inst.more[13] = self.source(members, Class::Word, &inst)?;
            self.emit(Inst { run: *run, ..inst });
            return Ok(true);
        }
        if let Some((_, form, run)) = VOTES.iter().find(|(known, _, _)| *known == opcode) {
            let [operands @ .., members] = operands else {
                return refuse(line, "the member mask is missing");
            };
            inst.more[13] = self.source(members, Class::Word, &inst)?;
            // `plain` takes `more[0]` for itself and leaves the member mask alone.
            return self.plain(inst, form, *run, operands).map(|()| true);
        }
        let shape = opcode
            .strip_prefix("mma.sync.aligned.")
            .map(|rest| rest.replace(".satfinite", ""));
        let Some(row) = shape.and_then(|shape| MULTIPLIES.iter().find(|row| row.0 == shape)) else {
            return Ok(false);
        };
        let (_, run, [a, b, c]) = *row;
        let mut at = 0;
        for (operand, want) in operands.iter().zip([4, a, b, c]) {
            let Operand::Vector(list) = operand else {
                return refuse(line, "an operand of mma is no vector");
            };
            if list.len() != want {
                return refuse(
                    line,
                    format!("an operand of mma has {} registers instead of {want}", list.len()),
                );
            }
            for element in list {
                inst.more[at] = if at < 4 {
                    self.destination(element, Class::Word, line)?
                } else {
                    self.source(element, Class::Word, &inst)?
                };
                at += 1;
            }
        }
        if operands.len() != 4 {
            return refuse(line, "mma has four operands");
        }
        self.emit(Inst {
            run,
            flow: Flow::Multiply,
            ..inst
        });
        Ok(true)
    }
}
