//! Where the script is acted out: counts the calls, does what the script says, keeps the ledger.

use crate::{
    record,
    script::{Action, Script, Settings},
};
use met_backend_api::Error;
use met_kernels::{Kind, Ledger};
use std::{cell::RefCell, collections::HashMap, rc::Rc, thread, time::Duration};

/// Shared by a backend and its models, which all live on one thread.
#[derive(Clone, Default)]
pub struct Stage(Rc<RefCell<State>>);

#[derive(Default)]
struct State {
    script: Script,
    calls: HashMap<&'static str, u64>,
    ledger: Ledger,
}

impl Stage {
    /// Plays `script` from here on; calls made so far keep their count.
    pub fn play(&self, script: Script) {
        self.0.borrow_mut().script = script;
    }

    /// What the model claims to be.
    pub fn settings(&self) -> Settings {
        self.0.borrow().script.settings.clone()
    }

    /// The ledger.
    pub fn ledger(&self) -> Ledger {
        self.0.borrow().ledger.clone()
    }

    /// Counts a call and does what the script says. `Ok(true)` asks the caller for nonsense.
    pub fn call(&self, name: &'static str) -> Result<bool, Error> {
        let action = {
            let mut state = self.0.borrow_mut();
            let n = state.calls.entry(name).or_default();
            *n += 1;
            let n = *n;
            record::called(state.script.settings.label, name);
            state.script.at(name, n).cloned()
        };
        match action {
            None => Ok(false),
            Some(Action::Fail(kind, message)) => Err(Error::new(kind, message)),
            Some(Action::Panic) => panic!("the script says so at {name}"),
            Some(Action::Hang(ms)) => {
                thread::sleep(Duration::from_millis(ms));
                Ok(false)
            }
            Some(Action::Leak(bytes)) => {
                self.ledger()
                    .enter(Kind::Memory, "nobody", bytes)
                    .map_err(met_model::convert::error)?;
                Ok(false)
            }
            Some(Action::Thread(ms)) => {
                thread::Builder::new()
                    .name("scripted".to_owned())
                    .spawn(move || thread::sleep(Duration::from_millis(ms)))
                    .map_err(|e| Error::exhausted(e.to_string()))?;
                Ok(false)
            }
            Some(Action::Nonsense) => Ok(true),
        }
    }
}
