//! The instructions that only compute: opcode → operand classes and function.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::{Run, convert, float, half, integer};

/// A row of an instruction table.
pub(crate) struct Entry {
    /// Opcodes, separated by spaces.
    pub(crate) names: &'static str,
    /// Class of the destination, then of each source: `r` 32 bits, `q` 64 bits, `p` predicate.
    pub(crate) form: &'static str,
    pub(crate) run: Run,
}

/// Shorthand for a table's rows.
pub(super) const fn op(names: &'static str, form: &'static str, run: Run) -> Entry {
    Entry { names, form, run }
}

/// The row of an opcode.
pub(crate) fn lookup(opcode: &str) -> Option<&'static Entry> {
    static ROWS: OnceLock<HashMap<&'static str, &'static Entry>> = OnceLock::new();
    let rows = ROWS.get_or_init(|| {
        let tables = [
            integer::TABLE,
            float::TABLE,
            float::COMPARE,
            half::TABLE,
            convert::TABLE,
        ];
        let entries = tables.into_iter().chain(convert::ROUNDED).flatten();
        entries
            .flat_map(|entry| entry.names.split(' ').map(move |name| (name, entry)))
            .collect()
    });
    rows.get(opcode).copied()
}
