//! Tokens to the syntax tree.

use super::declare::Head;
use super::lex::{Token, lex};
use super::syntax::{Function, Instruction, Module, Operand, Statement, Variable};
use super::{Refusal, refuse};

/// How deep blocks and operands may nest.
const MOST_NESTING: usize = 64;

/// Parses a module's text.
pub(crate) fn parse(source: &str) -> Result<Module, Refusal> {
    let tokens = lex(source)?;
    let mut parser = Parser {
        tokens: &tokens,
        at: 0,
        depth: 0,
    };
    let mut module = Module {
        version: 0,
        target: 0,
        variables: Vec::new(),
        functions: Vec::new(),
    };
    while !parser.is_done() {
        parser.item(&mut module)?;
    }
    if module.version == 0 || module.target == 0 {
        return refuse(1, ".version or .target is missing");
    }
    Ok(module)
}

pub(super) struct Parser<'a> {
    tokens: &'a [(Token<'a>, u32)],
    pub(super) at: usize,
    pub(super) depth: usize,
}

impl<'a> Parser<'a> {
    fn item(&mut self, module: &mut Module) -> Result<(), Refusal> {
        let line = self.line();
        match self.word()? {
            ".version" => {
                let (major, minor) = self.word()?.split_once('.').unwrap_or_default();
                match (major.parse::<u32>(), minor.parse::<u32>()) {
                    (Ok(major), Ok(minor)) if major < 100 && minor < 10 => {
                        module.version = major * 10 + minor
                    }
                    _ => return refuse(line, "the version is no `major.minor`"),
                }
            }
            ".target" => {
                let name = self.word()?;
                let number = name
                    .trim_start_matches("sm_")
                    .trim_end_matches(['a', 'f'])
                    .parse();
                module.target = number.or_else(|_| refuse(line, format!("the target {name} is no sm_NN")))?;
                while self.eat(b',') {
                    self.word()?;
                }
            }
            ".address_size" => {
                if self.number()? != 64 {
                    return refuse(line, "only 64-bit addresses are supported");
                }
            }
            ".file" => self.skip_line(line),
            first => {
                let mut is_extern = false;
                let mut word = first;
                while matches!(word, ".visible" | ".weak" | ".common" | ".extern") {
                    is_extern |= word == ".extern";
                    word = self.word()?;
                }
                match word {
                    ".entry" | ".func" => {
                        if let Some(function) = self.function(word == ".entry", line)? {
                            module.functions.push(function);
                        }
                    }
                    _ => {
                        self.at -= 1;
                        let head = Head {
                            is_extern,
                            ..Head::default()
                        };
                        module.variables.extend(self.declaration(head, b';')?);
                    }
                }
            }
        }
        Ok(())
    }

    fn function(&mut self, is_kernel: bool, line: u32) -> Result<Option<Function>, Refusal> {
        let results = if self.peek() == Some(Token::Mark(b'(')) {
            self.parameters()?
        } else {
            Vec::new()
        };
        let name = self.word()?.to_owned();
        let parameters = if self.peek() == Some(Token::Mark(b'(')) {
            self.parameters()?
        } else {
            Vec::new()
        };
        let mut most_threads = None;
        loop {
            let line = self.line();
            match self.next()? {
                Token::Mark(b'{') => break,
                Token::Mark(b';') => return Ok(None),
                Token::Word(".maxntid" | ".reqntid") => {
                    let mut product = self.number()?;
                    while self.eat(b',') {
                        product = product.saturating_mul(self.number()?);
                    }
                    most_threads = Some(product.min(1024) as u32);
                }
                Token::Word(".minnctapersm" | ".maxnreg" | ".maxnctapersm") => {
                    self.number()?;
                }
                Token::Word(".noreturn") => {}
                other => return refuse(line, format!("{other:?} in the head of function {name}")),
            }
        }
        let body = self.block()?;
        Ok(Some(Function {
            name,
            is_kernel,
            results,
            parameters,
            most_threads,
            body,
            line,
        }))
    }

    fn parameters(&mut self) -> Result<Vec<Variable>, Refusal> {
        self.expect(b'(')?;
        let mut list = Vec::new();
        while !self.eat(b')') {
            let mut head = Head::default();
            self.head(&mut head)?;
            list.push(self.variable(&head)?);
            if !self.eat(b',') {
                self.expect(b')')?;
                break;
            }
        }
        Ok(list)
    }

    /// Statements up to the closing brace.
    fn block(&mut self) -> Result<Vec<Statement>, Refusal> {
        self.deeper()?;
        let mut body = Vec::new();
        while !self.eat(b'}') {
            self.statement(&mut body)?;
        }
        self.depth -= 1;
        Ok(body)
    }

    fn statement(&mut self, body: &mut Vec<Statement>) -> Result<(), Refusal> {
        let line = self.line();
        match self.next()? {
            Token::Mark(b'{') => body.push(Statement::Block(self.block()?)),
            Token::Mark(b';') => {}
            Token::Mark(b'@') => {
                let negated = self.eat(b'!');
                let guard = Some((self.word()?.to_owned(), negated));
                let opcode = self.word()?;
                body.push(Statement::Run(self.instruction(guard, opcode, line)?));
            }
            Token::Word(".pragma") => while self.next()? != Token::Mark(b';') {},
            Token::Word(".loc") => self.skip_line(line),
            Token::Word(word) if word.starts_with('.') => {
                self.at -= 1;
                body.extend(
                    self.declaration(Head::default(), b';')?
                        .into_iter()
                        .map(Statement::Declare),
                );
            }
            Token::Word(word) if self.eat(b':') => {
                if self.peek() == Some(Token::Word(".branchtargets")) {
                    self.at += 1;
                    let mut targets = vec![self.word()?.to_owned()];
                    while self.eat(b',') {
                        targets.push(self.word()?.to_owned());
                    }
                    self.expect(b';')?;
                    body.push(Statement::Targets(word.to_owned(), targets, line));
                } else {
                    body.push(Statement::Label(word.to_owned(), line));
                }
            }
            Token::Word(opcode) => body.push(Statement::Run(self.instruction(None, opcode, line)?)),
            other => return refuse(line, format!("a statement begins with {other:?}")),
        }
        Ok(())
    }

    fn instruction(
        &mut self,
        guard: Option<(String, bool)>,
        opcode: &str,
        line: u32,
    ) -> Result<Instruction, Refusal> {
        let mut operands = Vec::new();
        if !self.eat(b';') {
            loop {
                operands.push(self.operand()?);
                if !self.eat(b',') {
                    break;
                }
            }
            self.expect(b';')?;
        }
        Ok(Instruction {
            guard,
            opcode: opcode.to_owned(),
            operands,
            line,
        })
    }

    fn operand(&mut self) -> Result<Operand, Refusal> {
        self.deeper()?;
        let operand = self.operand_inside()?;
        self.depth -= 1;
        Ok(operand)
    }

    /// Counts one more level of nesting.
    pub(super) fn deeper(&mut self) -> Result<(), Refusal> {
        self.depth += 1;
        if self.depth > MOST_NESTING {
            return refuse(self.line(), "the text nests too deep");
        }
        Ok(())
    }

    fn operand_inside(&mut self) -> Result<Operand, Refusal> {
        let line = self.line();
        match self.next()? {
            Token::Mark(b'{') => Ok(Operand::Vector(self.operands(b'}')?)),
            Token::Mark(b'(') => Ok(Operand::List(self.operands(b')')?)),
            Token::Mark(b'[') => {
                let base = self.operand()?;
                self.expect(b']')?;
                Ok(if let Operand::Address(..) = base {
                    base
                } else {
                    Operand::Address(Box::new(base), 0)
                })
            }
            Token::Mark(b'!') => Ok(Operand::Not(self.word()?.to_owned())),
            Token::Mark(b'-') => Ok(Operand::Number(self.number()?.wrapping_neg())),
            Token::Word(word) if word.starts_with(|c: char| c.is_ascii_digit()) => number(word).map_or_else(
                || refuse(line, format!("{word} is no number")),
                |n| Ok(Operand::Number(n)),
            ),
            Token::Word(word) => {
                let name = Operand::Name(word.to_owned());
                if self.eat(b'|') {
                    return Ok(Operand::Pair(Box::new(name), Box::new(self.operand()?)));
                }
                if self.eat(b'+') {
                    let minus = self.eat(b'-');
                    let offset = self.number()? as i64;
                    let offset = if minus { offset.wrapping_neg() } else { offset };
                    return Ok(Operand::Address(Box::new(name), offset));
                }
                if self.eat(b'-') {
                    return Ok(Operand::Address(
                        Box::new(name),
                        (self.number()? as i64).wrapping_neg(),
                    ));
                }
                Ok(name)
            }
            other => refuse(line, format!("{other:?} where an operand is expected")),
        }
    }

    fn operands(&mut self, close: u8) -> Result<Vec<Operand>, Refusal> {
        let mut list = Vec::new();
        while !self.eat(close) {
            list.push(self.operand()?);
            if !self.eat(b',') {
                self.expect(close)?;
                break;
            }
        }
        Ok(list)
    }

    fn is_done(&self) -> bool {
        self.at >= self.tokens.len()
    }

    pub(super) fn line(&self) -> u32 {
        self.tokens
            .get(self.at)
            .or(self.tokens.last())
            .map_or(1, |token| token.1)
    }

    pub(super) fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|token| token.0)
    }

    pub(super) fn next(&mut self) -> Result<Token<'a>, Refusal> {
        let Some(token) = self.peek() else {
            return refuse(self.line(), "the text ends too early");
        };
        self.at += 1;
        Ok(token)
    }

    pub(super) fn word(&mut self) -> Result<&'a str, Refusal> {
        let line = self.line();
        match self.next()? {
            Token::Word(word) => Ok(word),
            other => refuse(line, format!("{other:?} where a word is expected")),
        }
    }

    pub(super) fn number(&mut self) -> Result<u64, Refusal> {
        let line = self.line();
        let word = self.word()?;
        number(word).map_or_else(|| refuse(line, format!("{word} is no number")), Ok)
    }

    pub(super) fn eat(&mut self, mark: u8) -> bool {
        let found = self.peek() == Some(Token::Mark(mark));
        self.at += found as usize;
        found
    }

    pub(super) fn expect(&mut self, mark: u8) -> Result<(), Refusal> {
        let line = self.line();
        match self.next()? {
            Token::Mark(found) if found == mark => Ok(()),
            other => refuse(line, format!("{other:?} where `{}` is expected", mark as char)),
        }
    }

    fn skip_line(&mut self, line: u32) {
        while self.tokens.get(self.at).is_some_and(|token| token.1 == line) {
            self.at += 1;
        }
    }
}

/// An integer, or the bits of `0fXXXXXXXX` or `0dXXXXXXXXXXXXXXXX`.
pub(super) fn number(word: &str) -> Option<u64> {
    let digits = word.trim_end_matches('U');
    match digits.as_bytes() {
        [b'0', b'f' | b'F' | b'd' | b'D' | b'x' | b'X', ..] => u64::from_str_radix(digits.get(2..)?, 16).ok(),
        [b'0', b'b' | b'B', ..] => u64::from_str_radix(digits.get(2..)?, 2).ok(),
        [b'0', _, ..] => u64::from_str_radix(&digits[1..], 8).ok(),
        _ => digits.parse().ok(),
    }
}
