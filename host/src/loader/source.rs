//! Where a backend comes from: linked in, or a library.

use super::LoadError;
use met_backend_api::BackendModule_Ref;
use std::{
    fmt,
    path::{Path, PathBuf},
};

/// What marks a built-in on the command line.
const BUILT_IN: &str = "builtin:";

/// The backends that are linked into this program. `main` fills it.
#[derive(Clone, Debug, Default)]
pub struct Builtins(Vec<BuiltIn>);

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct BuiltIn {
    pub(super) name: &'static str,
    pub(super) root_module: fn() -> BackendModule_Ref,
}

impl Builtins {
    /// Adds a backend under a name, for `builtin:NAME`.
    pub fn with(mut self, name: &'static str, root_module: fn() -> BackendModule_Ref) -> Self {
        self.0.push(BuiltIn { name, root_module });
        self
    }

    /// The names there are.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|b| b.name)
    }
}

/// A backend to load.
#[derive(Clone, Debug)]
pub struct BackendSource(pub(super) Place);

/// Where it is.
#[derive(Clone, Debug)]
pub(super) enum Place {
    BuiltIn(BuiltIn),
    File(PathBuf),
}

impl BackendSource {
    /// Reads `builtin:NAME` or a path. A bare file name is looked for in the working folder, then beside
    /// this executable.
    pub fn parse(text: &str, builtins: &Builtins) -> Result<Self, LoadError> {
        let Some(name) = text.strip_prefix(BUILT_IN) else {
            return Ok(Self(Place::File(find(Path::new(text)))));
        };
        let found = builtins.0.iter().find(|b| b.name == name);
        found.map(|b| Self(Place::BuiltIn(*b))).ok_or_else(|| {
            let known: Vec<String> = builtins.names().map(|n| format!("{BUILT_IN}{n}")).collect();
            LoadError::UnknownBuiltIn {
                name: name.to_owned(),
                known: if known.is_empty() {
                    "none".to_owned()
                } else {
                    known.join(", ")
                },
            }
        })
    }
}

impl fmt::Display for BackendSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::BuiltIn(b) => write!(f, "{BUILT_IN}{}", b.name),
            Place::File(path) => write!(f, "{}", path.display()),
        }
    }
}

fn find(path: &Path) -> PathBuf {
    let is_bare = path.parent().is_some_and(|p| p.as_os_str().is_empty());
    let beside = std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.join(path)));
    match beside {
        Some(beside) if is_bare && !path.exists() && beside.exists() => beside,
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_file_and_a_prefix_is_a_built_in() {
        let file = BackendSource::parse("some/libx.so", &Builtins::default()).unwrap();
        assert_eq!(file.to_string(), "some/libx.so");
        let error = BackendSource::parse("builtin:gpu", &Builtins::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "there is no built-in backend \"gpu\"; this program has none, or give the path of a library"
        );
    }
}
