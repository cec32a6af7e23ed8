//! What can go wrong, in words for the operator, on one line.

use met_backend_api::API_VERSION;
use std::time::Duration;

/// Why a backend could not be loaded. Nothing of it is left in the process, unless the text says so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No such built-in.
    #[error("there is no built-in backend {name:?}; this program has {known}, or give the path of a library")]
    UnknownBuiltIn {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The file cannot be read or copied.
    #[error("{file}: {reason}; give the path of a backend library that this user can read")]
    Unreadable {
        /// The file.
        file: String,
        /// What the system said.
        reason: String,
    },
    /// The copy that is to run can't be made.
    #[error(
        "{file}: it can't be copied to {to} ({reason}); make room there, or let this program write there"
    )]
    NotCopied {
        /// The file.
        file: String,
        /// Where.
        to: String,
        /// What the system said.
        reason: String,
    },
    /// The file is not a shared library of this machine.
    #[error("{file}: not a shared library ({reason}); a backend is a file like libmet_cpu.so")]
    NotALibrary {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The dynamic linker refused it: a missing symbol or a missing library.
    #[error("{file}: the dynamic linker refused it ({reason}); install what it needs")]
    Unlinkable {
        /// The file.
        file: String,
        /// What the linker said.
        reason: String,
    },
    /// A library, but no backend.
    #[error(
        "{file}: a library, but no backend ({reason}); one is made with met-backend-api's export_backend!"
    )]
    NotABackend {
        /// The file.
        file: String,
        /// What is missing.
        reason: String,
    },
    /// A backend for another version of the contract.
    #[error(
        "{file}: built for version {found} of the backend API, this program has version {API_VERSION}; rebuild it with met-backend-api {API_VERSION}.x"
    )]
    ApiVersion {
        /// The file.
        file: String,
        /// Its version.
        found: u32,
    },
    /// A backend for this version of the contract, whose types are laid out otherwise.
    #[error(
        "{file}: its types differ from this program's ({difference}); rebuild it with the met-backend-api that this program was built with"
    )]
    Layout {
        /// The file.
        file: String,
        /// The first difference.
        difference: String,
    },
    /// There is no thread to load it on.
    #[error("{file}: the system gives no thread to load it on ({reason}); allow this user more (ulimit -u)")]
    NoThread {
        /// The file.
        file: String,
        /// What the system said.
        reason: String,
    },
    /// Its initialisers did not return; it stays mapped.
    #[error(
        "{file}: its initialisers did not return within {waited:?}; it stays mapped until this program ends, report it to its author"
    )]
    Hung {
        /// The file.
        file: String,
        /// How long they had.
        waited: Duration,
    },
}

/// Joins lines, and cuts what is too long for a log line.
pub(super) fn one_line(text: &str, longest: usize) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    match line.char_indices().nth(longest) {
        Some((cut, _)) => format!("{} …", &line[..cut]),
        None => line,
    }
}

/// An error with all its causes: libloading's own text leaves the linker's words to `source()`.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |e| e.source());
    let texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_joins_and_cuts_between_characters() {
        assert_eq!(one_line("  a\n\t b  ", 10), "a b");
        assert_eq!(one_line("äöü", 3), "äöü");
        assert_eq!(one_line("äöüß", 3), "äöü …");
    }
}
