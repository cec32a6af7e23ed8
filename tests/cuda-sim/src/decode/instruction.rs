//! One instruction: its guard and operands, and whether a table or a special decoder knows it.

use super::declare::{Decoder, blank};
use super::scope::{Binding, Class};
use crate::exec::{
    Inst, Run, logic, lookup, pack_halves, pack_quarters, pack_words, unpack_halves, unpack_quarters,
    unpack_words,
};
use crate::ptx::{Instruction, Operand, Refusal, refuse};

impl Decoder<'_> {
    /// Decodes one instruction and emits what it becomes.
    pub(super) fn instruction(&mut self, written: &Instruction) -> Result<(), Refusal> {
        let line = written.line;
        let mut inst = blank(line);
        if let Some((name, inverted)) = &written.guard {
            inst.guard = self.register(name, Class::Predicate, line)?;
            inst.inverted = *inverted;
        }
        let (opcode, operands) = (written.opcode.as_str(), &written.operands[..]);
        if opcode.starts_with("mov.") && operands.iter().any(|o| matches!(o, Operand::Vector(_))) {
            return self.repack(inst, opcode, operands);
        }
        if let Some(entry) = lookup(opcode) {
            if opcode.starts_with("cvt.")
                && let [to, from] = operands
                && let Some(from) = self.narrowed(from, entry.form, &inst)?
            {
                let d = self.destination(to, Class::named(entry.form.as_bytes()[0]), line)?;
                self.emit(Inst {
                    run: entry.run,
                    d,
                    a: from,
                    ..inst
                });
                return Ok(());
            }
            return self.plain(inst, entry.form, entry.run, operands);
        }
        let parts: Vec<&str> = opcode.split('.').collect();
        let known = match parts[0] {
            "setp" => self.compare(inst, &parts, operands)?,
            "lop3" if opcode == "lop3.b32" => {
                let [sources @ .., Operand::Number(rule)] = operands else {
                    return refuse(line, "lop3 needs an immediate rule");
                };
                inst.imm = *rule as i64;
                self.plain(inst, "rrrr", logic, sources)?;
                true
            }
            "ld" | "ldu" | "st" | "atom" | "red" | "cp" | "ldmatrix" => {
                self.memory(inst, &parts, operands)?
            }
            "shfl" | "vote" | "match" | "redux" | "mma" | "activemask" => {
                self.warp_wide(inst, opcode, operands)?
            }
            _ => self.control(inst, &parts, operands)?,
        };
        if known {
            Ok(())
        } else {
            refuse(line, format!("the instruction {opcode} is not known"))
        }
    }

    /// An instruction of the tables: `form` names the classes of the destination and the sources.
    pub(super) fn plain(
        &mut self,
        mut inst: Inst,
        form: &str,
        run: Run,
        operands: &[Operand],
    ) -> Result<(), Refusal> {
        if operands.len() != form.len() {
            return refuse(
                inst.line,
                format!("{} operands where {} are expected", operands.len(), form.len()),
            );
        }
        let mut slots = [0; 5];
        for (at, (operand, letter)) in operands.iter().zip(form.bytes()).enumerate() {
            let class = Class::named(letter);
            let slot = if at == 0 {
                self.destination(operand, class, inst.line)?
            } else {
                self.source(operand, class, &inst)?
            };
            match slots.get_mut(at) {
                Some(place) => *place = slot,
                None => return refuse(inst.line, "too many operands"),
            }
        }
        [inst.d, inst.a, inst.b, inst.c, inst.more[0]] = slots;
        inst.run = run;
        self.emit(inst);
        Ok(())
    }

    /// A conversion may read the low part of a register of 64 bits: that part in a slot of its own.
    fn narrowed(&mut self, from: &Operand, form: &str, inst: &Inst) -> Result<Option<u16>, Refusal> {
        if form.as_bytes()[1] != b'r' || self.class_of(from) != Some(Class::Long) {
            return Ok(None);
        }
        let a = self.source(from, Class::Long, inst)?;
        let d = self.slots.fresh(Class::Word, 1, inst.line)?;
        self.computed("cvt.u32.u64", Inst { d, a, ..inst.clone() })?;
        Ok(Some(d))
    }

    /// `setp` with a second destination or a third operand that is combined with the comparison.
    fn compare(&mut self, inst: Inst, parts: &[&str], operands: &[Operand]) -> Result<bool, Refusal> {
        let line = inst.line;
        let joined = parts
            .iter()
            .position(|part| matches!(*part, "and" | "or" | "xor"));
        let opcode: Vec<&str> = parts
            .iter()
            .enumerate()
            .filter(|(at, _)| Some(*at) != joined)
            .map(|(_, part)| *part)
            .collect();
        let Some(entry) = lookup(&opcode.join(".")) else {
            return Ok(false);
        };
        let [destination, a, b, rest @ ..] = operands else {
            return refuse(line, "setp needs three operands");
        };
        let (first, second) = match destination {
            Operand::Pair(first, second) => (&**first, Some(&**second)),
            other => (other, None),
        };
        let test = self.slots.fresh(Class::Predicate, 1, line)?;
        let form = entry.form.as_bytes();
        let (a, b) = (
            self.source(a, Class::named(form[1]), &inst)?,
            self.source(b, Class::named(form[2]), &inst)?,
        );
        self.emit(Inst {
            run: entry.run,
            d: test,
            a,
            b,
            ..inst.clone()
        });
        let rule = match (joined, rest) {
            (None, []) => None,
            (Some(at), [third]) => Some((
                format!("{}.pred", parts[at]),
                self.source(third, Class::Predicate, &inst)?,
            )),
            _ => return refuse(line, "setp has the wrong number of operands"),
        };
        if let Some(second) = second {
            let inverse = self.slots.fresh(Class::Predicate, 1, line)?;
            self.computed(
                "not.pred",
                Inst {
                    d: inverse,
                    a: test,
                    ..inst.clone()
                },
            )?;
            let d = self.destination(second, Class::Predicate, line)?;
            match &rule {
                Some((rule, third)) => self.computed(
                    rule,
                    Inst {
                        d,
                        a: inverse,
                        b: *third,
                        ..inst.clone()
                    },
                )?,
                None => self.computed(
                    "mov.pred",
                    Inst {
                        d,
                        a: inverse,
                        ..inst.clone()
                    },
                )?,
            }
        }
        let d = self.destination(first, Class::Predicate, line)?;
        match &rule {
            Some((rule, third)) => self.computed(
                rule,
                Inst {
                    d,
                    a: test,
                    b: *third,
                    ..inst
                },
            )?,
            None => self.computed("mov.pred", Inst { d, a: test, ..inst })?,
        }
        Ok(true)
    }

    /// Emits `inst` with the function that the tables have for `opcode`.
    pub(super) fn computed(&mut self, opcode: &str, inst: Inst) -> Result<(), Refusal> {
        let Some(entry) = lookup(opcode) else {
            return refuse(inst.line, format!("the instruction {opcode} is not known"));
        };
        self.emit(Inst {
            run: entry.run,
            ..inst
        });
        Ok(())
    }

    /// `mov` between a register and a vector of its parts.
    fn repack(&mut self, mut inst: Inst, opcode: &str, operands: &[Operand]) -> Result<(), Refusal> {
        let (whole, parts, packs) = match operands {
            [whole, Operand::Vector(parts)] => (whole, parts, true),
            [Operand::Vector(parts), whole] => (whole, parts, false),
            _ => return refuse(inst.line, "mov needs one vector and one register"),
        };
        let (class, run): (Class, Run) = match (opcode, parts.len(), packs) {
            ("mov.b32", 2, true) => (Class::Word, pack_halves),
            ("mov.b32", 2, false) => (Class::Word, unpack_halves),
            ("mov.b64", 2, true) => (Class::Long, pack_words),
            ("mov.b64", 2, false) => (Class::Long, unpack_words),
            ("mov.b64", 4, true) => (Class::Long, pack_quarters),
            ("mov.b64", 4, false) => (Class::Long, unpack_quarters),
            _ => {
                return refuse(
                    inst.line,
                    format!("{opcode} with {} parts is not known", parts.len()),
                );
            }
        };
        for (at, part) in parts.iter().enumerate() {
            inst.more[at] = if packs {
                self.source(part, Class::Word, &inst)?
            } else {
                self.destination(part, Class::Word, inst.line)?
            };
        }
        if packs {
            inst.d = self.destination(whole, class, inst.line)?;
        } else {
            inst.a = self.source(whole, class, &inst)?;
        }
        self.emit(Inst { run, ..inst });
        Ok(())
    }

    /// The slot that an operand writes; `_` is a slot that nobody reads.
    pub(super) fn destination(&mut self, operand: &Operand, class: Class, line: u32) -> Result<u16, Refusal> {
        match operand {
            Operand::Name(name) if name == "_" => self.slots.fresh(class, 1, line),
            Operand::Name(name) => self.register(name, class, line),
            _ => refuse(line, "the destination is no register"),
        }
    }

    /// The slot that an operand is read from. `inst` is the instruction that reads it.
    pub(super) fn source(&mut self, operand: &Operand, class: Class, inst: &Inst) -> Result<u16, Refusal> {
        let line = inst.line;
        match operand {
            Operand::Number(bits) => self.slots.constant(class, *bits, line),
            Operand::Not(name) if class == Class::Predicate => {
                let a = self.register(name, class, line)?;
                let d = self.slots.fresh(class, 1, line)?;
                self.computed("not.pred", Inst { d, a, ..inst.clone() })?;
                Ok(d)
            }
            Operand::Name(name) => match self.find(name) {
                Some(Binding::Address(_, address)) => self.slots.constant(class, address, line),
                Some(Binding::Parameter(_)) => {
                    refuse(line, format!("the address of parameter {name} is not supported"))
                }
                Some(_) => self.register(name, class, line),
                None if name == "WARP_SZ" => self.slots.constant(class, 32, line),
                None => match self.slots.special(name, line)? {
                    Some(slot) if class == Class::Word => Ok(slot),
                    Some(_) => refuse(line, format!("{name} has 32 bits, and another size is read")),
                    None => refuse(line, format!("{name} is not known")),
                },
            },
            Operand::Address(base, offset) => match &**base {
                Operand::Name(name) if let Some(Binding::Address(_, address)) = self.find(name) => self
                    .slots
                    .constant(class, address.wrapping_add(*offset as u64), line),
                _ => refuse(line, "an address where a value is expected"),
            },
            _ => refuse(line, format!("{operand:?} where a value is expected")),
        }
    }

    /// The class of an operand that is a register; `None` for anything else.
    pub(super) fn class_of(&self, operand: &Operand) -> Option<Class> {
        let Operand::Name(name) = operand else { return None };
        match self.find(name) {
            Some(Binding::Register(class, _)) => Some(class),
            _ => None,
        }
    }

    fn register(&self, name: &str, class: Class, line: u32) -> Result<u16, Refusal> {
        match self.find(name) {
            Some(Binding::Register(has, slot)) if has == class => Ok(slot),
            Some(Binding::Register(..)) => refuse(
                line,
                format!("register {name} has another size than the instruction"),
            ),
            _ => refuse(line, format!("register {name} is not declared")),
        }
    }
}
