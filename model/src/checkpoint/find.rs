//! Which files a path stands for.

use super::source::wrong_path;
use crate::Result;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// More files than any model has.
pub(super) const MAX_FILES: usize = 1000;

/// What a path stands for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A GGUF file, or all parts of a split one in order.
    Gguf(Vec<PathBuf>),
    /// A folder with `config.json`.
    Folder(PathBuf),
}

/// The files that `path` names: itself with the other parts of a split GGUF file, the one GGUF file in the folder, or
/// the folder.
pub(super) fn find(path: &Path) -> Result<Found> {
    let fail = |message: String| Err(wrong_path(path, &message));
    if !path.is_dir() {
        if has_extension(path, "safetensors") {
            return fail(
                "it is one of several files that make a model; name the folder that it is in".to_owned(),
            );
        }
        return Ok(Found::Gguf(all_parts(path)?));
    }
    let entries = fs::read_dir(path).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let files: Vec<_> = match entries {
        Ok(entries) => entries.into_iter().map(|entry| entry.path()).collect(),
        Err(error) => return fail(format!("can't be read: {error}")),
    };
    let mut found: Vec<_> = files.iter().filter(|file| has_extension(file, "gguf")).collect();
    found.sort();
    match found.as_slice() {
        [] if path.join("config.json").is_file() => Ok(Found::Folder(path.to_owned())),
        [] if files.iter().any(|file| has_extension(file, "safetensors")) => fail(
            "the folder holds safetensors, but no config.json, which says what model they are".to_owned(),
        ),
        [] => fail("the folder holds no .gguf file, and no config.json with safetensors".to_owned()),
        [first, rest @ ..] => {
            let parts = all_parts(first)?;
            if rest.iter().all(|file| parts.contains(file)) {
                return Ok(Found::Gguf(parts));
            }
            let names: Vec<_> = found.iter().filter_map(|file| file.file_name()).collect();
            let names: Vec<_> = names.iter().map(|name| name.to_string_lossy()).collect();
            fail(format!(
                "the folder holds several .gguf files; name one of {}",
                names.join(", ")
            ))
        }
    }
}

/// Bytes of the files that a path stands for, as far as they are there: about what a model takes.
pub fn stored_bytes(path: &Path) -> u64 {
    let files = match find(path) {
        Ok(Found::Gguf(parts)) => parts,
        Ok(Found::Folder(folder)) => match fs::read_dir(folder) {
            Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
            Err(_) => Vec::new(),
        },
        Err(_) => Vec::new(),
    };
    let bytes = |file: PathBuf| fs::metadata(file).map_or(0, |found| found.len());
    files.into_iter().map(bytes).sum()
}

/// All parts of the split file that `path` is one of, in order; `path` alone where its name is no part's.
fn all_parts(path: &Path) -> Result<Vec<PathBuf>> {
    let name = path.file_name().and_then(|name| name.to_str());
    let Some((prefix, count)) = name.and_then(split_name) else {
        return Ok(vec![path.to_owned()]);
    };
    if count > MAX_FILES {
        return Err(wrong_path(
            path,
            &format!("its name says that there are {count} parts, but at most {MAX_FILES} are allowed"),
        ));
    }
    Ok((1..=count)
        .map(|number| path.with_file_name(format!("{prefix}-{number:05}-of-{count:05}.gguf")))
        .collect())
}

/// What `PREFIX-00001-of-00003.gguf` says: the prefix, and how many there are.
fn split_name(name: &str) -> Option<(&str, usize)> {
    let number = |digits: &str| -> Option<usize> {
        let right = digits.len() == 5 && digits.bytes().all(|digit| digit.is_ascii_digit());
        right.then(|| digits.parse().ok())?
    };
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (prefix, part) = rest.rsplit_once('-')?;
    let (part, count) = (number(part)?, number(count)?);
    (1..=count).contains(&part).then_some((prefix, count))
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension()
        .is_some_and(|e| e.eq_ignore_ascii_case(extension))
}

#[cfg(test)]
mod tests {
    use super::split_name;

    #[test]
    fn names_of_parts() {
        assert_eq!(split_name("a-b-00002-of-00003.gguf"), Some(("a-b", 3)));
        for name in [
            "a.gguf",
            "a-00000-of-00003.gguf",
            "a-00004-of-00003.gguf",
            "a-1-of-3.gguf",
            "a-00001-of-+0003.gguf",
            "a-00001-of-00003.bin",
        ] {
            assert_eq!(split_name(name), None, "{name}");
        }
    }
}
