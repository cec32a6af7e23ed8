//! Calls that fail because a test asks for it.

use crate::code::Code;

/// A failure to come: the `after`-th call from now of `name` (`*`: of any function) fails with `code`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub(crate) name: String,
    pub(crate) after: u64,
    pub(crate) code: Code,
}

impl Failure {
    /// Parses `name:n:code`.
    pub(crate) fn parse(text: &str) -> Option<Failure> {
        let mut parts = text.rsplitn(3, ':');
        let code = Code(parts.next()?.parse().ok()?);
        let after = parts.next()?.parse().ok().filter(|n| *n > 0)?;
        let name = parts.next()?.to_owned();
        (!name.is_empty() && code.0 != 0).then_some(Failure { name, after, code })
    }

    /// Counts a call; `true` where it is the one to fail.
    pub(crate) fn strikes(&mut self, called: &str) -> bool {
        let plain = |name: &str| name.trim_end_matches("_v2").len();
        if self.name != "*" && self.name[..plain(&self.name)] != called[..plain(called)] {
            return false;
        }
        self.after -= 1;
        self.after == 0
    }
}
