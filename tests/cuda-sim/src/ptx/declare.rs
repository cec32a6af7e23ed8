//! Declarations: registers, variables and parameters.

use super::lex::Token;
use super::parse::{Parser, number};
use super::syntax::{Letter, Space, Type, Variable};
use super::{Refusal, refuse};

/// The parts of a declaration before its name.
#[derive(Default)]
pub(super) struct Head {
    pub(super) space: Option<Space>,
    pub(super) kind: Option<Type>,
    pub(super) align: Option<u64>,
    pub(super) is_extern: bool,
    pub(super) vector: u64,
}

impl Parser<'_> {
    /// One declaration statement, which may declare several names.
    pub(super) fn declaration(&mut self, mut head: Head, end: u8) -> Result<Vec<Variable>, Refusal> {
        self.head(&mut head)?;
        let mut list = vec![self.variable(&head)?];
        while self.eat(b',') {
            list.push(self.variable(&head)?);
        }
        self.expect(end)?;
        Ok(list)
    }

    pub(super) fn head(&mut self, head: &mut Head) -> Result<(), Refusal> {
        while let Some(Token::Word(word)) = self.peek()
            && let Some(part) = word.strip_prefix('.')
        {
            let line = self.line();
            self.at += 1;
            match part {
                "align" => head.align = Some(self.number()?),
                // `.ptr .global .align n` describes what a parameter points to.
                "ptr" => {
                    while let Some(Token::Word(word)) = self.peek()
                        && word.starts_with('.')
                    {
                        self.at += 1;
                        if word == ".align" {
                            self.number()?;
                        }
                    }
                }
                "v2" => head.vector = 2,
                "v4" => head.vector = 4,
                _ => {
                    let space = match part {
                        "reg" => Some(Space::Register),
                        "global" => Some(Space::Global),
                        "const" => Some(Space::Constant),
                        "shared" => Some(Space::Shared),
                        "local" => Some(Space::Local),
                        "param" => Some(Space::Parameter),
                        _ => None,
                    };
                    match (space, Type::parse(part)) {
                        (Some(_), _) => head.space = space,
                        (None, Some(kind)) => head.kind = Some(kind),
                        (None, None) => return refuse(line, format!("{word} is no known directive")),
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn variable(&mut self, head: &Head) -> Result<Variable, Refusal> {
        let line = self.line();
        let name = self.word()?.to_owned();
        let (Some(space), Some(kind)) = (head.space, head.kind) else {
            return refuse(line, format!("the declaration of {name} lacks a space or a type"));
        };
        let mut count = None;
        if self.eat(b'<') {
            count = Some(self.number()?);
            self.expect(b'>')?;
        }
        while self.eat(b'[') {
            let elements = if self.peek() == Some(Token::Mark(b']')) {
                0
            } else {
                self.number()?
            };
            self.expect(b']')?;
            count = Some(count.unwrap_or(1).saturating_mul(elements));
        }
        if head.vector != 0 {
            count = Some(count.unwrap_or(1).saturating_mul(head.vector));
        }
        let mut initial = Vec::new();
        if self.eat(b'=') {
            self.initial(kind, &mut initial)?;
        }
        let align = head.align.unwrap_or(kind.bytes() * head.vector.max(1));
        if !align.is_power_of_two() || align > 4096 {
            return refuse(line, format!("{name} cannot be aligned to {align} bytes"));
        }
        Ok(Variable {
            space,
            kind,
            name,
            align,
            count,
            initial,
            is_extern: head.is_extern,
            line,
        })
    }

    fn initial(&mut self, kind: Type, bytes: &mut Vec<u8>) -> Result<(), Refusal> {
        let line = self.line();
        if self.eat(b'{') {
            self.deeper()?;
            while !self.eat(b'}') {
                self.initial(kind, bytes)?;
                self.eat(b',');
            }
            self.depth -= 1;
            return Ok(());
        }
        let minus = self.eat(b'-');
        let Token::Word(word) = self.next()? else {
            return refuse(line, "an initial value is no number");
        };
        let Some(value) = number(word) else {
            return refuse(
                line,
                format!("the initial value {word} is no number; addresses are not supported"),
            );
        };
        if kind.letter == Letter::Float && !word.starts_with("0f") && !word.starts_with("0d") {
            return refuse(line, format!("the initial value {word} is no floating constant"));
        }
        let value = if minus { value.wrapping_neg() } else { value };
        bytes.extend_from_slice(&value.to_le_bytes()[..kind.bytes() as usize]);
        Ok(())
    }
}
