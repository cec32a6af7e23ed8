//! Loads, stores, atomic operations and copies.

use super::declare::Decoder;
use super::scope::{Binding, Class};
use crate::exec::{
    Flow, Inst, MATRIX_LOADS, atomic, copy_async, copy_commit, copy_wait, element, load, load_parameter,
    space, store,
};
use crate::ptx::{Letter, Operand, Refusal, Space, Type, refuse};

/// The modifiers of a memory instruction that say where and how much.
struct Shape {
    place: u8,
    parameter: bool,
    count: usize,
}

impl Decoder<'_> {
    /// Decodes a memory instruction; `false` where it is not known.
    pub(super) fn memory(
        &mut self,
        inst: Inst,
        parts: &[&str],
        operands: &[Operand],
    ) -> Result<bool, Refusal> {
        let inst = Inst {
            flow: Flow::Checked,
            ..inst
        };
        match (parts[0], parts.get(1)) {
            ("ld" | "ldu" | "st", _) => self.load_or_store(inst, parts, operands),
            ("atom" | "red", _) => self.atomic_operation(inst, parts, operands),
            ("cp", Some(&"async")) => self.copy(inst, parts, operands),
            ("ldmatrix", _) => self.matrix_load(inst, parts, operands),
            _ => Ok(false),
        }
    }

    fn load_or_store(
        &mut self,
        mut inst: Inst,
        parts: &[&str],
        operands: &[Operand],
    ) -> Result<bool, Refusal> {
        let line = inst.line;
        let (Some(shape), Some(kind)) = (
            shape(&parts[1..parts.len() - 1]),
            Type::parse(parts[parts.len() - 1]),
        ) else {
            return Ok(false);
        };
        let loads = parts[0] != "st";
        let [first, second] = operands else {
            return refuse(line, "a load or store has two operands");
        };
        let (address, values) = if loads { (second, first) } else { (first, second) };
        let values = if let Operand::Vector(list) = values {
            &list[..]
        } else {
            std::slice::from_ref(values)
        };
        if values.len() != shape.count || kind.bits == 1 {
            return refuse(
                line,
                "the number of registers is not the one that the instruction names",
            );
        }
        // A register may be wider than what is loaded or stored.
        let class = values
            .iter()
            .find_map(|value| self.class_of(value))
            .unwrap_or(Class::of(kind));
        if class == Class::Predicate || (class == Class::Word && kind.bits == 64) {
            return refuse(line, "a register is too small for what is loaded or stored");
        }
        for (at, value) in values.iter().enumerate() {
            inst.more[at] = if loads {
                self.destination(value, class, line)?
            } else {
                self.source(value, class, &inst)?
            };
        }
        if shape.parameter
            && let Some(offset) = self.parameter(address)
        {
            if !loads {
                return refuse(line, "a kernel's parameters cannot be written");
            }
            let signed = (kind.letter == Letter::Signed) as u16;
            (inst.b, inst.c) = (kind.bytes() as u16, signed | ((class == Class::Long) as u16) << 1);
            (inst.imm, inst.width) = (offset, values.len() as u8);
            self.emit(Inst {
                run: load_parameter,
                ..inst
            });
            return Ok(true);
        }
        let place = if shape.parameter {
            space::LOCAL
        } else {
            shape.place
        };
        let (slot, imm, wide) = self.address(address, place, &inst)?;
        (inst.a, inst.imm) = (slot, imm);
        let kind = match (kind.bits, kind.letter) {
            (8, Letter::Signed) => element::S8,
            (8, _) => element::U8,
            (16, Letter::Signed) => element::S16,
            (16, _) => element::U16,
            (32, Letter::Signed) if class == Class::Long && loads => return Ok(false),
            (32, _) => element::B32,
            _ => element::B64,
        };
        let pick = if loads { load } else { store };
        let Some(run) = pick(place, wide, kind, shape.count, class == Class::Long) else {
            return Ok(false);
        };
        self.emit(Inst { run, ..inst });
        Ok(true)
    }

    /// The offset into the kernel's parameters that an address names, if it does.
    fn parameter(&self, address: &Operand) -> Option<i64> {
        let Operand::Address(base, offset) = address else {
            return None;
        };
        let Operand::Name(name) = &**base else { return None };
        match self.find(name) {
            Some(Binding::Parameter(start)) => Some(start as i64 + offset),
            _ => None,
        }
    }

    /// The slot and offset of an address, and whether the slot has 64 bits.
    fn address(&mut self, address: &Operand, place: u8, inst: &Inst) -> Result<(u16, i64, bool), Refusal> {
        let line = inst.line;
        let Operand::Address(base, offset) = address else {
            return refuse(line, "the operand is no address");
        };
        let narrow = matches!(place, space::SHARED | space::LOCAL);
        match &**base {
            Operand::Name(name) => match self.find(name) {
                Some(Binding::Register(Class::Word, slot)) if narrow => Ok((slot, *offset, false)),
                Some(Binding::Register(Class::Long, slot)) => Ok((slot, *offset, true)),
                Some(Binding::Address(of, at)) => {
                    let fits = match place {
                        space::SHARED => of == Space::Shared,
                        space::LOCAL => of == Space::Local,
                        _ => of == Space::Global,
                    };
                    if !fits {
                        return refuse(
                            line,
                            format!("{name} lies in another space than the instruction names"),
                        );
                    }
                    Ok((self.slots.constant(Class::Long, at, line)?, *offset, true))
                }
                _ => refuse(line, format!("{name} is no address")),
            },
            Operand::Number(at) => Ok((self.slots.constant(Class::Long, *at, line)?, *offset, true)),
            _ => refuse(line, "the address has no base"),
        }
    }

    fn atomic_operation(
        &mut self,
        mut inst: Inst,
        parts: &[&str],
        operands: &[Operand],
    ) -> Result<bool, Refusal> {
        let line = inst.line;
        let mut place = space::GENERIC;
        let mut name = Vec::new();
        for part in &parts[1..] {
            match *part {
                "global" => place = space::GLOBAL,
                "shared" | "shared::cta" => place = space::SHARED,
                "relaxed" | "acquire" | "release" | "acq_rel" | "cta" | "gpu" | "sys" => {}
                other => name.push(other),
            }
        }
        let (destination, address, values) = match (parts[0], operands) {
            ("atom", [destination, address, values @ ..]) => (Some(destination), address, values),
            ("red", [address, values @ ..]) => (None, address, values),
            _ => return Ok(false),
        };
        let (slot, imm, wide) = self.address(address, place, &inst)?;
        let Some((run, rule, long)) = atomic(&name.join("."), place, wide) else {
            return Ok(false);
        };
        let class = if long { Class::Long } else { Class::Word };
        (inst.a, inst.imm, inst.more[1]) = (slot, imm, rule);
        inst.d = match destination {
            Some(destination) => self.destination(destination, class, line)?,
            None => self.slots.fresh(class, 1, line)?,
        };
        match values {
            [b] => inst.b = self.source(b, class, &inst)?,
            [b, c] => (inst.b, inst.c) = (self.source(b, class, &inst)?, self.source(c, class, &inst)?),
            _ => return refuse(line, "an atomic operation has one or two values"),
        }
        self.emit(Inst { run, ..inst });
        Ok(true)
    }

    fn copy(&mut self, mut inst: Inst, parts: &[&str], operands: &[Operand]) -> Result<bool, Refusal> {
        let line = inst.line;
        match (&parts[2..], operands) {
            (["commit_group"], []) => self.emit(Inst {
                run: copy_commit,
                ..inst
            }),
            (["wait_group"], [Operand::Number(left)]) => {
                self.emit(Inst {
                    run: copy_wait,
                    imm: (*left).min(1 << 20) as i64,
                    ..inst
                });
            }
            (["wait_all"], []) => self.emit(Inst {
                run: copy_wait,
                width: 1,
                ..inst
            }),
            (
                ["ca" | "cg", "shared" | "shared::cta", "global", hints @ ..],
                [to, from, Operand::Number(bytes), rest @ ..],
            ) if hints.iter().all(|hint| hint.starts_with("L2::")) => {
                if !matches!(bytes, 4 | 8 | 16) || (parts[2] == "cg" && *bytes != 16) {
                    return refuse(line, format!("cp.async.{} cannot copy {bytes} bytes", parts[2]));
                }
                inst.width = *bytes as u8;
                let (slot, offset, wide) = self.address(to, space::SHARED, &inst)?;
                if offset != 0 {
                    // The destination has no room for an offset of its own: fold it into the register.
                    let class = if wide { Class::Long } else { Class::Word };
                    let (d, b) = (
                        self.slots.fresh(class, 1, line)?,
                        self.slots.constant(class, offset as u64, line)?,
                    );
                    let add = if wide { "add.s64" } else { "add.s32" };
                    self.computed(
                        add,
                        Inst {
                            flow: Flow::Next,
                            d,
                            a: slot,
                            b,
                            ..inst.clone()
                        },
                    )?;
                    inst.b = d;
                } else {
                    inst.b = slot;
                }
                inst.d = wide as u16;
                (inst.a, inst.imm, _) = self.address(from, space::GLOBAL, &inst)?;
                match rest {
                    [] => {}
                    [size] => (inst.c, inst.more[0]) = (1, self.source(size, Class::Word, &inst)?),
                    _ => return Ok(false),
                }
                self.emit(Inst {
                    run: copy_async,
                    ..inst
                });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn matrix_load(&mut self, mut inst: Inst, parts: &[&str], operands: &[Operand]) -> Result<bool, Refusal> {
        let (run, trans) = match &parts[1..] {
            ["sync", "aligned", "m8n8", count, rest @ ..] => {
                let run = match *count {
                    "x1" => 0,
                    "x2" => 1,
                    "x4" => 2,
                    _ => return Ok(false),
                };
                let trans = match rest {
                    ["shared" | "shared::cta", "b16"] => 0,
                    ["trans", "shared" | "shared::cta", "b16"] => 1,
                    _ => return Ok(false),
                };
                (run, trans)
            }
            _ => return Ok(false),
        };
        let [Operand::Vector(to), address] = operands else {
            return refuse(inst.line, "ldmatrix has a vector and an address");
        };
        if to.len() != 1 << run {
            return refuse(inst.line, "ldmatrix has the wrong number of destinations");
        }
        for (at, to) in to.iter().enumerate() {
            inst.more[at] = self.destination(to, Class::Word, inst.line)?;
        }
        let (slot, imm, wide) = self.address(address, space::SHARED, &inst)?;
        (inst.a, inst.imm, inst.b, inst.c) = (slot, imm, wide as u16, trans);
        inst.more[13] = self.slots.constant(Class::Word, !0, inst.line)?;
        self.emit(Inst {
            run: MATRIX_LOADS[run],
            flow: Flow::Meet,
            ..inst
        });
        Ok(true)
    }
}

/// What the modifiers between the opcode and the type say; `None` where one is not known.
fn shape(modifiers: &[&str]) -> Option<Shape> {
    let mut shape = Shape {
        place: space::GENERIC,
        parameter: false,
        count: 1,
    };
    for modifier in modifiers {
        match *modifier {
            "global" | "const" => shape.place = space::GLOBAL,
            "shared" | "shared::cta" => shape.place = space::SHARED,
            "local" => shape.place = space::LOCAL,
            "param" | "param::entry" | "param::func" => shape.parameter = true,
            "v2" => shape.count = 2,
            "v4" => shape.count = 4,
            // Neither caches nor the order of other threads' accesses show here.
            "weak" | "volatile" | "relaxed" | "acquire" | "release" | "cta" | "gpu" | "sys" => {}
            "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt" | "nc" => {}
            hint if hint.starts_with("L1::") || hint.starts_with("L2::") => {}
            _ => return None,
        }
    }
    Some(shape)
}
