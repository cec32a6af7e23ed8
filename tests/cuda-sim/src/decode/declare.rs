//! The decoder's state, and functions: their parameters, declarations, labels and calls.

use std::collections::HashMap;

use super::Kernel;
use super::scope::{Binding, Class, Slots, find};
use crate::exec::{Flow, Inst, nothing};
use crate::ptx::{Function, Operand, Refusal, Space, Statement, Variable, refuse};

/// Most shared or local memory that declarations may ask for.
const MOST_BYTES: u64 = 1 << 24;
/// How deep calls may nest; each is expanded in place.
const MOST_CALLS: usize = 16;
/// Most instructions of a kernel, calls expanded.
const MOST_CODE: usize = 1 << 22;

/// Decodes one kernel.
pub(super) struct Decoder<'a> {
    functions: &'a HashMap<&'a str, &'a Function>,
    pub(super) slots: Slots,
    pub(super) code: Vec<Inst>,
    scopes: Vec<HashMap<String, Binding>>,
    labels: Labels,
    targets: Vec<u32>,
    calls: Vec<&'a str>,
    shared_bytes: u64,
    local_bytes: u64,
}

/// Labels of the function that is being decoded.
#[derive(Default)]
struct Labels {
    at: HashMap<String, u32>,
    /// Instructions whose `imm` becomes a label's place.
    branches: Vec<(usize, String)>,
    /// Entries of the target list that become a label's place.
    entries: Vec<(usize, String, u32)>,
    tables: HashMap<String, usize>,
    /// Instructions that return from a function expanded in place.
    returns: Vec<usize>,
}

/// Places a variable behind what is `used`; its offset.
pub(super) fn reserve(used: &mut u64, variable: &Variable) -> Result<u64, Refusal> {
    let offset = used.next_multiple_of(variable.align.max(1));
    let end = offset.saturating_add(variable.bytes());
    if end > MOST_BYTES {
        return refuse(variable.line, format!("{} is too large", variable.name));
    }
    *used = end;
    Ok(offset)
}

impl<'a> Decoder<'a> {
    pub(super) fn new(
        functions: &'a HashMap<&'a str, &'a Function>,
        outer: &HashMap<String, Binding>,
        shared_bytes: u64,
    ) -> Decoder<'a> {
        Decoder {
            functions,
            slots: Slots::new(),
            code: Vec::new(),
            scopes: vec![outer.clone(), HashMap::new()],
            labels: Labels::default(),
            targets: Vec::new(),
            calls: Vec::new(),
            shared_bytes,
            local_bytes: 0,
        }
    }

    /// Decodes `function`; the `dynamic` shared variables begin behind all others.
    pub(super) fn kernel(
        &mut self,
        function: &'a Function,
        dynamic: &[&Variable],
        ptx_version: u32,
    ) -> Result<Kernel, Refusal> {
        let (mut end, mut parameters) = (0, Vec::new());
        for parameter in &function.parameters {
            let offset = reserve(&mut end, parameter)?;
            parameters.push((offset as u32, parameter.bytes() as u32));
            self.bind(parameter, Binding::Parameter(offset as u32))?;
        }
        let align = dynamic.iter().map(|variable| variable.align).max().unwrap_or(1);
        self.reserve_static(&function.body)?;
        if !dynamic.is_empty() {
            self.shared_bytes = self.shared_bytes.next_multiple_of(align);
        }
        for variable in dynamic {
            self.bind(variable, Binding::Address(Space::Shared, self.shared_bytes))?;
        }
        self.body(&function.body)?;
        self.emit(Inst {
            flow: Flow::Exit,
            ..blank(function.line)
        });
        self.resolve()?;
        Ok(Kernel {
            name: function.name.clone(),
            parameters,
            parameter_bytes: end as u32,
            slots: self.slots.count,
            code: std::mem::take(&mut self.code),
            targets: std::mem::take(&mut self.targets),
            words: self
                .slots
                .words
                .iter()
                .map(|(value, slot)| (*slot, *value))
                .collect(),
            longs: self
                .slots
                .longs
                .iter()
                .map(|(value, slot)| (*slot, *value))
                .collect(),
            specials: std::mem::take(&mut self.slots.specials),
            shared_bytes: self.shared_bytes,
            local_bytes: self.local_bytes,
            most_threads: function.most_threads.unwrap_or(1024),
            ptx_version,
        })
    }

    pub(super) fn emit(&mut self, inst: Inst) {
        self.code.push(inst);
    }

    /// What `name` stands for in the present scope.
    pub(super) fn find(&self, name: &str) -> Option<Binding> {
        find(&self.scopes, name)
    }

    /// Emits a branch to `label` with the guard that `inst` carries.
    pub(super) fn branch(&mut self, inst: Inst, label: &str) {
        self.labels.branches.push((self.code.len(), label.to_owned()));
        self.emit(Inst {
            flow: Flow::Branch,
            ..inst
        });
    }

    /// Emits a branch by the table `name`, indexed by the register in `inst.a`.
    pub(super) fn branch_by_table(&mut self, inst: Inst, name: &str) -> Result<(), Refusal> {
        let Some(first) = self.labels.tables.get(name) else {
            return refuse(
                inst.line,
                format!("{name} is no list of branch targets declared before"),
            );
        };
        let imm = *first as i64;
        self.emit(Inst {
            flow: Flow::Table,
            imm,
            ..inst
        });
        Ok(())
    }

    /// Emits the end of the function: of the kernel, or of a call.
    pub(super) fn leave(&mut self, inst: Inst) {
        if self.calls.is_empty() {
            self.emit(Inst {
                flow: Flow::Exit,
                ..inst
            });
        } else {
            self.labels.returns.push(self.code.len());
            self.emit(Inst {
                flow: Flow::Branch,
                ..inst
            });
        }
    }

    /// Expands a call in place: `operands` are `(results), name, (arguments)`.
    pub(super) fn call(&mut self, operands: &[Operand], line: u32) -> Result<(), Refusal> {
        let (results, name, arguments) = match operands {
            [
                Operand::List(results),
                Operand::Name(name),
                Operand::List(arguments),
            ] => (&results[..], name, &arguments[..]),
            [Operand::List(results), Operand::Name(name)] => (&results[..], name, &[][..]),
            [Operand::Name(name), Operand::List(arguments)] => (&[][..], name, &arguments[..]),
            [Operand::Name(name)] => (&[][..], name, &[][..]),
            _ => return refuse(line, "only direct calls are supported"),
        };
        let Some((name, function)) = self.functions.get_key_value(name.as_str()) else {
            return refuse(line, format!("the function {name} has no body in this module"));
        };
        if self.calls.len() >= MOST_CALLS || self.calls.contains(name) {
            return refuse(line, format!("the call of {name} recurses or nests too deep"));
        }
        let formal = function.results.iter().chain(&function.parameters);
        let actual: Vec<_> = results.iter().chain(arguments).collect();
        if formal.clone().count() != actual.len() {
            return refuse(
                line,
                format!("the call of {name} has the wrong number of arguments"),
            );
        }
        let mut scope = HashMap::new();
        for (formal, actual) in formal.zip(actual) {
            let binding = match actual {
                Operand::Name(actual) => self.find(actual),
                _ => None,
            };
            let Some(binding) = binding else {
                return refuse(
                    line,
                    format!("an argument of the call of {name} is no declared parameter"),
                );
            };
            scope.insert(formal.name.clone(), binding);
        }
        let outer = self.scopes[0].clone();
        let scopes = std::mem::replace(&mut self.scopes, vec![outer, scope]);
        let labels = std::mem::take(&mut self.labels);
        self.calls.push(name);
        self.body(&function.body)?;
        let end = self.code.len() as i64;
        for at in std::mem::take(&mut self.labels.returns) {
            self.code[at].imm = end;
        }
        self.resolve()?;
        self.calls.pop();
        self.labels = labels;
        self.scopes = scopes;
        Ok(())
    }

    fn body(&mut self, statements: &'a [Statement]) -> Result<(), Refusal> {
        for statement in statements {
            match statement {
                Statement::Block(inner) => {
                    self.scopes.push(HashMap::new());
                    self.body(inner)?;
                    self.scopes.pop();
                }
                Statement::Label(name, line) => {
                    if self
                        .labels
                        .at
                        .insert(name.clone(), self.code.len() as u32)
                        .is_some()
                    {
                        return refuse(*line, format!("label {name} is there twice"));
                    }
                }
                Statement::Targets(name, targets, line) => {
                    self.labels.tables.insert(name.clone(), self.targets.len());
                    for target in targets {
                        self.labels
                            .entries
                            .push((self.targets.len(), target.clone(), *line));
                        self.targets.push(0);
                    }
                }
                Statement::Declare(variable) => self.declare(variable)?,
                Statement::Run(instruction) => self.instruction(instruction)?,
            }
            if self.code.len() > MOST_CODE {
                return refuse(1, "the kernel is too long");
            }
        }
        Ok(())
    }

    fn declare(&mut self, variable: &Variable) -> Result<(), Refusal> {
        let binding = match variable.space {
            Space::Register => {
                let class = Class::of(variable.kind);
                match variable.count {
                    Some(count) => {
                        let count = count.min(u32::MAX as u64) as u32;
                        Binding::Registers(class, self.slots.fresh(class, count, variable.line)?, count)
                    }
                    None => Binding::Register(class, self.slots.fresh(class, 1, variable.line)?),
                }
            }
            Space::Shared => {
                // A kernel's own were placed before its body.
                if let Some(Binding::Address(..)) = self.scopes[1].get(&variable.name) {
                    return Ok(());
                }
                return refuse(
                    variable.line,
                    format!("{} is shared memory of a called function", variable.name),
                );
            }
            // Parameters of a call live in the caller's frame.
            Space::Local | Space::Parameter => {
                let offset = reserve(&mut self.local_bytes, variable)?;
                Binding::Address(Space::Local, offset)
            }
            Space::Global | Space::Constant => {
                return refuse(
                    variable.line,
                    format!("{} must be declared outside the function", variable.name),
                );
            }
        };
        self.bind(variable, binding)
    }

    /// Places the shared variables of a kernel's body before anything else, so that the dynamic part can
    /// follow them.
    fn reserve_static(&mut self, statements: &[Statement]) -> Result<(), Refusal> {
        for statement in statements {
            match statement {
                Statement::Block(inner) => self.reserve_static(inner)?,
                Statement::Declare(variable) if variable.space == Space::Shared => {
                    let offset = reserve(&mut self.shared_bytes, variable)?;
                    self.scopes[1].insert(variable.name.clone(), Binding::Address(Space::Shared, offset));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn bind(&mut self, variable: &Variable, binding: Binding) -> Result<(), Refusal> {
        let Some(scope) = self.scopes.last_mut() else {
            return refuse(variable.line, "a declaration outside every scope");
        };
        scope.insert(variable.name.clone(), binding);
        Ok(())
    }

    /// Puts the labels' places into the branches of the function that ends here.
    fn resolve(&mut self) -> Result<(), Refusal> {
        for (at, label) in std::mem::take(&mut self.labels.branches) {
            let line = self.code[at].line;
            let Some(place) = self.labels.at.get(&label) else {
                return refuse(line, format!("label {label} does not exist"));
            };
            self.code[at].imm = *place as i64;
        }
        for (entry, label, line) in std::mem::take(&mut self.labels.entries) {
            let Some(place) = self.labels.at.get(&label) else {
                return refuse(line, format!("label {label} does not exist"));
            };
            self.targets[entry] = *place;
        }
        Ok(())
    }
}

/// An instruction that does nothing, unguarded.
pub(super) fn blank(line: u32) -> Inst {
    Inst {
        run: nothing,
        imm: 0,
        flow: Flow::Next,
        inverted: false,
        width: 0,
        guard: 0,
        d: 0,
        a: 0,
        b: 0,
        c: 0,
        more: [0; 14],
        line,
    }
}
