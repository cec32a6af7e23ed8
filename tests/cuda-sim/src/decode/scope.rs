//! Names: registers, variables and constants, and the slots they get.

use std::collections::HashMap;

use super::Special;
use crate::ptx::{Refusal, Space, Type, refuse};

/// What kind of slot a value needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// 32 bits or fewer.
    Word,
    /// 64 bits.
    Long,
    Predicate,
}

impl Class {
    pub(super) fn of(kind: Type) -> Class {
        match kind.bits {
            1 => Class::Predicate,
            64 => Class::Long,
            _ => Class::Word,
        }
    }

    /// The class that a letter of an instruction table's form names.
    pub(super) fn named(letter: u8) -> Class {
        match letter {
            b'q' => Class::Long,
            b'p' => Class::Predicate,
            _ => Class::Word,
        }
    }
}

/// What a name stands for.
#[derive(Clone, Debug)]
pub(super) enum Binding {
    Register(Class, u16),
    /// Registers `name0` to `name(count - 1)`.
    Registers(Class, u16, u32),
    /// A variable's address in global, shared or local memory.
    Address(Space, u64),
    /// A kernel parameter's offset in the list.
    Parameter(u32),
}

/// Slots handed out so far, and what the fixed ones hold.
pub(super) struct Slots {
    pub(super) count: [usize; 3],
    pub(super) words: HashMap<u32, u16>,
    pub(super) longs: HashMap<u64, u16>,
    pub(super) specials: Vec<(u16, Special)>,
    no: Option<u16>,
}

impl Slots {
    pub(super) fn new() -> Slots {
        // Predicate 0 is always true; 32-bit slot 0 is a sink.
        Slots {
            count: [1, 1, 1],
            words: HashMap::new(),
            longs: HashMap::new(),
            specials: Vec::new(),
            no: None,
        }
    }

    /// The first of `count` new slots.
    pub(super) fn fresh(&mut self, class: Class, count: u32, line: u32) -> Result<u16, Refusal> {
        let used = &mut self.count[class as usize];
        let first = *used;
        *used = used.saturating_add(count as usize);
        if *used > u16::MAX as usize {
            return refuse(line, "the kernel has more registers than can be numbered");
        }
        Ok(first as u16)
    }

    /// A slot that holds `bits` in every lane.
    pub(super) fn constant(&mut self, class: Class, bits: u64, line: u32) -> Result<u16, Refusal> {
        match class {
            Class::Predicate if bits != 0 => Ok(0),
            Class::Predicate => match self.no {
                Some(slot) => Ok(slot),
                None => {
                    let slot = self.fresh(class, 1, line)?;
                    self.no = Some(slot);
                    Ok(slot)
                }
            },
            Class::Word => match self.words.get(&(bits as u32)) {
                Some(slot) => Ok(*slot),
                None => {
                    let slot = self.fresh(class, 1, line)?;
                    self.words.insert(bits as u32, slot);
                    Ok(slot)
                }
            },
            Class::Long => match self.longs.get(&bits) {
                Some(slot) => Ok(*slot),
                None => {
                    let slot = self.fresh(class, 1, line)?;
                    self.longs.insert(bits, slot);
                    Ok(slot)
                }
            },
        }
    }

    /// The slot of a special register, by its name with `%`.
    pub(super) fn special(&mut self, name: &str, line: u32) -> Result<Option<u16>, Refusal> {
        let axis = |suffix: &str| {
            ["x", "y", "z"]
                .iter()
                .position(|axis| *axis == suffix)
                .map(|axis| axis as u8)
        };
        let special = match name.split_once('.') {
            Some(("%tid", suffix)) => axis(suffix).map(Special::Thread),
            Some(("%ntid", suffix)) => axis(suffix).map(Special::BlockSize),
            Some(("%ctaid", suffix)) => axis(suffix).map(Special::Block),
            Some(("%nctaid", suffix)) => axis(suffix).map(Special::GridSize),
            Some(_) => None,
            None => match name {
                "%laneid" => Some(Special::Lane),
                "%warpid" => Some(Special::Warp),
                "%nwarpid" => Some(Special::WarpCount),
                "%lanemask_eq" => Some(Special::LanesEqual),
                "%lanemask_lt" => Some(Special::LanesBelow),
                "%lanemask_le" => Some(Special::LanesUpTo),
                "%lanemask_gt" => Some(Special::LanesAbove),
                "%lanemask_ge" => Some(Special::LanesFrom),
                "%dynamic_smem_size" => Some(Special::DynamicShared),
                "%total_smem_size" => Some(Special::TotalShared),
                "%smid" | "%gridid" => Some(Special::Zero),
                _ => None,
            },
        };
        let Some(special) = special else { return Ok(None) };
        if let Some((slot, _)) = self.specials.iter().find(|(_, known)| *known == special) {
            return Ok(Some(*slot));
        }
        let slot = self.fresh(Class::Word, 1, line)?;
        self.specials.push((slot, special));
        Ok(Some(slot))
    }
}

/// Finds `name` in the innermost scope that binds it.
pub(super) fn find(scopes: &[HashMap<String, Binding>], name: &str) -> Option<Binding> {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    for scope in scopes.iter().rev() {
        match scope.get(name) {
            Some(Binding::Registers(..)) | None => {}
            Some(binding) => return Some(binding.clone()),
        }
        if let Some(Binding::Registers(class, first, count)) = scope.get(stem)
            && let Ok(number) = name[stem.len()..].parse::<u32>()
            && number < *count
        {
            return Some(Binding::Register(*class, first + number as u16));
        }
    }
    None
}
