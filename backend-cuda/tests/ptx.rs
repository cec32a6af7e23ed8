//! The committed PTX is what its sources and options make: every file names the digests of what it was made from and of
//! what came of it.

use met_cuda::ptx::FILES;
use sha2::{Digest, Sha256};
use std::{fmt::Write, path::PathBuf};

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels/cuda"))
}

/// The strings of a list in build.py, for example of `OPTIONS = ["a", "b"]`.
fn list_in_script(script: &str, name: &str) -> Vec<String> {
    let start = script.find(&format!("\n{name} = ")).unwrap();
    let line = script[start + 1..].lines().next().unwrap();
    line.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// A source file and all that it includes, in the order in which they are first met.
fn includes(source: &str) -> Vec<String> {
    let mut found = vec![source.to_owned()];
    let text = std::fs::read_to_string(folder().join(source)).unwrap();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("#include \"") {
            for file in includes(name.trim_end_matches('"')) {
                if !found.contains(&file) {
                    found.push(file);
                }
            }
        }
    }
    found
}

#[test]
fn every_file_is_fresh() {
    let script = std::fs::read_to_string(folder().join("build.py")).unwrap();
    let mut lines = list_in_script(&script, "OPTIONS");
    lines.extend(list_in_script(&script, "PTX_VERSION"));
    assert!(lines.len() > 3, "{lines:?}");
    for file in FILES {
        let (first, body) = file.text.split_once('\n').unwrap();
        let [slashes, source, define, digest, body_digest] = first.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{}: {first}", file.name);
        };
        assert_eq!(slashes, "//");
        let mut hash = Sha256::new();
        for line in lines.iter().map(String::as_str).chain([define.trim_matches('-')]) {
            hash.update(line);
            hash.update("\n");
        }
        for name in includes(source) {
            hash.update(std::fs::read(folder().join(name)).unwrap());
        }
        assert_eq!(
            hex(hash),
            digest,
            "{}.ptx is stale: run kernels/cuda/build.py and commit the result",
            file.name
        );
        assert_eq!(
            hex(Sha256::new_with_prefix(body)),
            body_digest,
            "{}.ptx was changed by hand: run kernels/cuda/build.py and commit the result",
            file.name
        );
    }
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[test]
fn every_committed_file_is_embedded() {
    let mut names: Vec<_> = std::fs::read_dir(folder().join("ptx"))
        .unwrap()
        .map(|entry| {
            entry
                .unwrap()
                .path()
                .file_stem()
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    names.sort();
    let embedded: Vec<_> = FILES.iter().map(|file| file.name).collect();
    assert_eq!(names, embedded);
}
