//! The syntax tree of a PTX module.

/// A whole module.
#[derive(Debug)]
pub(crate) struct Module {
    /// PTX ISA version as major × 10 + minor.
    pub(crate) version: u32,
    /// The architecture that `.target` names: 80 for `sm_80`.
    pub(crate) target: u32,
    /// Variables outside functions, in `.global`, `.const` and `.shared`.
    pub(crate) variables: Vec<Variable>,
    pub(crate) functions: Vec<Function>,
}

/// A `.entry` or a `.func` with a body.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) is_kernel: bool,
    pub(crate) results: Vec<Variable>,
    pub(crate) parameters: Vec<Variable>,
    /// The most threads a block may have, from `.maxntid` or `.reqntid`.
    pub(crate) most_threads: Option<u32>,
    pub(crate) body: Vec<Statement>,
    pub(crate) line: u32,
}

/// Where a variable lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    Register,
    Global,
    Constant,
    Shared,
    Local,
    Parameter,
}

/// A declaration: a variable, an array, or `count` registers `name0`, `name1`, ….
#[derive(Debug, Clone)]
pub(crate) struct Variable {
    pub(crate) space: Space,
    pub(crate) kind: Type,
    pub(crate) name: String,
    /// Bytes to which the address is aligned.
    pub(crate) align: u64,
    /// Elements; for registers the count in `<…>`, with `None` for a single one.
    pub(crate) count: Option<u64>,
    /// Initial bytes, from the start; the rest is zero.
    pub(crate) initial: Vec<u8>,
    /// `.extern`: for shared memory, the part whose size the launch gives.
    pub(crate) is_extern: bool,
    pub(crate) line: u32,
}

impl Variable {
    /// Size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.kind.bytes().saturating_mul(self.count.unwrap_or(1))
    }
}

/// A fundamental type: what its letter says, and bits. `.pred` has one bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Type {
    pub(crate) letter: Letter,
    pub(crate) bits: u8,
}

/// The interpretation of a type's bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Letter {
    /// Untyped bits, `.pred` and packed types included.
    Bits,
    Unsigned,
    Signed,
    Float,
    Brain,
}

impl Type {
    /// Parses a type's name without its dot; `None` where it is no type.
    pub(crate) fn parse(name: &str) -> Option<Type> {
        let (letter, bits) = match name {
            "pred" => (Letter::Bits, 1),
            "f16x2" | "bf16x2" => (Letter::Bits, 32),
            "bf16" => (Letter::Brain, 16),
            _ => {
                let letter = match name.as_bytes().first()? {
                    b'b' => Letter::Bits,
                    b'u' => Letter::Unsigned,
                    b's' => Letter::Signed,
                    b'f' => Letter::Float,
                    _ => return None,
                };
                (letter, name.get(1..)?.parse().ok()?)
            }
        };
        matches!(bits, 1 | 8 | 16 | 32 | 64).then_some(Type { letter, bits })
    }

    /// Size in memory.
    pub(crate) fn bytes(self) -> u64 {
        (self.bits as u64).div_ceil(8)
    }
}

/// A statement of a function's body.
#[derive(Debug)]
pub(crate) enum Statement {
    Declare(Variable),
    Label(String, u32),
    /// `label: .branchtargets a, b, …;`
    Targets(String, Vec<String>, u32),
    Block(Vec<Statement>),
    Run(Instruction),
}

/// One instruction as it is written.
#[derive(Debug, Clone)]
pub(crate) struct Instruction {
    /// The guard's predicate, and whether it is negated.
    pub(crate) guard: Option<(String, bool)>,
    pub(crate) opcode: String,
    pub(crate) operands: Vec<Operand>,
    pub(crate) line: u32,
}

/// One operand as it is written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand {
    /// A register, a special register, a variable, a label or a function.
    Name(String),
    /// A predicate used inverted, `!%p1`.
    Not(String),
    /// An integer, or the bits of a floating constant.
    Number(u64),
    /// `{a, b}`
    Vector(Vec<Operand>),
    /// `(a, b)` of a call.
    List(Vec<Operand>),
    /// `[base + offset]`
    Address(Box<Operand>, i64),
    /// `a|b`: two destinations.
    Pair(Box<Operand>, Box<Operand>),
}
