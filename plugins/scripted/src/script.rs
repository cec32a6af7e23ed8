//! The script: what the model claims to be, and what goes wrong at which call.
//!
//! ```text
//! # comment
//! set vocab 320
//! set step_us 500
//! at collect 3 fail fault the device fell off
//! at load_model 1 hang 2000
//! at release_pools 1 leak 4096
//! ```

use met_backend_api::ErrorKind;
use std::collections::HashMap;

/// Every call that a rule can name, as the boundary spells it.
pub const CALLS: [&str; 19] = [
    "open",
    "info",
    "memory",
    "ledger",
    "load_model",
    "synchronize",
    "sweep_unreleased",
    "model_info",
    "resources",
    "submit",
    "collect",
    "save_state",
    "restore_state",
    "free_state",
    "take_snapshot",
    "use_snapshot",
    "release_pools",
    "drop_model",
    "drop_backend",
];

/// What happens at a call instead of, or beside, what should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Returns an error of this kind with this message.
    Fail(ErrorKind, String),
    /// Panics.
    Panic,
    /// Blocks for so many milliseconds, then goes on. Doesn't look at the cancel flag.
    Hang(u64),
    /// Takes so many bytes that no pool owns.
    Leak(u64),
    /// Starts a thread that nobody joins and that sleeps for so many milliseconds.
    Thread(u64),
    /// Returns values that break the contract.
    Nonsense,
}

/// What the model claims to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Vocabulary.
    pub vocab: u32,
    /// Context.
    pub context: u32,
    /// KV blocks; 0 makes enough for every row's whole context.
    pub blocks: u32,
    /// Tokens of a block.
    pub block_size: u32,
    /// Tickets in flight.
    pub in_flight: u32,
    /// Slots of recurrent state; 0 for a model without.
    pub state_slots: u32,
    /// Snapshots of it.
    pub snapshots: u32,
    /// Bytes of the weight store.
    pub weights: u64,
    /// Microseconds of a step.
    pub step_us: u64,
    /// Milliseconds of a load, in slices that poll the cancel flag.
    pub load_ms: u64,
    /// Generated tokens lie in `first..last`.
    pub first: u32,
    /// See `first`.
    pub last: u32,
    /// Two models with one salt generate the same tokens.
    pub salt: u64,
    /// What backends of this label do is on [`record`](crate::record); 0 is on none.
    pub label: u64,
}

impl Settings {
    /// The salt of a model that names none.
    pub const SALT: u64 = 1;
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            vocab: 320,
            context: 2048,
            blocks: 0,
            block_size: 16,
            in_flight: 1,
            state_slots: 0,
            snapshots: 0,
            weights: 1 << 20,
            step_us: 0,
            load_ms: 0,
            first: 0,
            last: 320,
            salt: Self::SALT,
            label: 0,
        }
    }
}

/// A parsed script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// What the model claims to be.
    pub settings: Settings,
    rules: HashMap<(String, u64), Action>,
}

impl Script {
    /// Parses a script; an error names the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut script = Self::default();
        // The vocabulary's end, where no line says otherwise.
        script.settings.last = 0;
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                script
                    .line(line)
                    .map_err(|e| format!("line {} of the script, '{line}': {e}", number + 1))?;
            }
        }
        let s = &mut script.settings;
        if s.last == 0 {
            s.last = s.vocab;
        }
        if s.block_size == 0 || s.context == 0 || s.in_flight == 0 || s.first >= s.last || s.last > s.vocab {
            return Err("the settings allow no model".to_owned());
        }
        Ok(script)
    }

    /// What happens at the `n`-th call of `call`, counted from 1.
    pub fn at(&self, call: &str, n: u64) -> Option<&Action> {
        self.rules.get(&(call.to_owned(), n))
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["set", name, value] => self.set(name, number(value)?),
            ["at", call, n, action @ ..] => {
                if !CALLS.contains(call) {
                    return Err(format!("'{call}' is none of {}", CALLS.join(", ")));
                }
                let action = self::action(action)?;
                self.rules.insert(((*call).to_owned(), number(n)?), action);
                Ok(())
            }
            _ => Err("expected 'set NAME VALUE' or 'at CALL N ACTION'".to_owned()),
        }
    }

    fn set(&mut self, name: &str, value: u64) -> Result<(), String> {
        let s = &mut self.settings;
        let small = || u32::try_from(value).map_err(|_| format!("{value} is too large"));
        match name {
            "vocab" => s.vocab = small()?,
            "context" => s.context = small()?,
            "blocks" => s.blocks = small()?,
            "block_size" => s.block_size = small()?,
            "in_flight" => s.in_flight = small()?,
            "state_slots" => s.state_slots = small()?,
            "snapshots" => s.snapshots = small()?,
            "weights" => s.weights = value,
            "step_us" => s.step_us = value,
            "load_ms" => s.load_ms = value,
            "first" => s.first = small()?,
            "last" => s.last = small()?,
            "salt" => s.salt = value,
            "label" => s.label = value,
            _ => return Err(format!("there is no setting '{name}'")),
        }
        Ok(())
    }
}

fn action(words: &[&str]) -> Result<Action, String> {
    Ok(match words {
        ["fail", kind, message @ ..] => {
            let kind = match *kind {
                "invalid" => ErrorKind::Invalid,
                "exhausted" => ErrorKind::Exhausted,
                "fault" => ErrorKind::Fault,
                "bug" => ErrorKind::Bug,
                "cancelled" => ErrorKind::Cancelled,
                _ => return Err(format!("there is no error kind '{kind}'")),
            };
            Action::Fail(kind, message.join(" "))
        }
        ["panic"] => Action::Panic,
        ["hang", ms] => Action::Hang(number(ms)?),
        ["leak", bytes] => Action::Leak(number(bytes)?),
        ["thread", ms] => Action::Thread(number(ms)?),
        ["nonsense"] => Action::Nonsense,
        _ => {
            return Err(
                "expected fail KIND MESSAGE, panic, hang MS, leak BYTES, thread MS or nonsense".to_owned(),
            );
        }
    })
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("'{text}' is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_says_what_happens_when() {
        let script = Script::parse(
            "# a bad day\nset vocab 50\nset last 40\n\nat submit 3 fail fault it broke # here\nat collect 1 hang 20\n",
        );
        let Ok(script) = script else { panic!("{script:?}") };
        assert_eq!((script.settings.vocab, script.settings.last), (50, 40));
        assert_eq!(
            script.at("submit", 3),
            Some(&Action::Fail(ErrorKind::Fault, "it broke".into()))
        );
        assert_eq!(script.at("collect", 1), Some(&Action::Hang(20)));
        assert_eq!(script.at("submit", 2), None);
    }

    #[test]
    fn no_script_is_an_empty_one() {
        assert_eq!(Script::parse(""), Ok(Script::default()));
        assert_eq!(
            Script::parse("set vocab 50").map(|script| script.settings.last),
            Ok(50)
        );
    }

    #[test]
    fn a_bad_line_is_named() {
        for bad in [
            "jump",
            "set vocab many",
            "set wings 2",
            "at sumbit 1 panic",
            "at submit 1 explode",
            "set vocab 0",
        ] {
            let text = format!("set salt 1\n{bad}");
            assert!(Script::parse(&text).is_err(), "{bad}");
        }
        assert!(Script::parse("set salt 1\njump").is_err_and(|e| e.contains("line 2")));
    }
}
