//! PTX text to syntax tree: what the text says, before anything is known of the instructions.

mod declare;
mod lex;
mod parse;
mod syntax;

pub(crate) use parse::parse;
pub(crate) use syntax::{Function, Instruction, Letter, Module, Operand, Space, Statement, Type, Variable};

/// What is wrong with a module, and on which line of its text.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("line {line}: {what}")]
pub(crate) struct Refusal {
    pub(crate) line: u32,
    pub(crate) what: String,
}

pub(crate) fn refuse<T>(line: u32, what: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal {
        line,
        what: what.into(),
    })
}
