//! Digests of files.

use super::FetchError;
use sha2::{Digest, Sha256};
use std::{
    fmt::Write as _,
    fs::File,
    io::{self, Read},
    path::Path,
};

/// The SHA-256 of a file, in hexadecimal digits.
pub(super) fn sha256(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => hash.update(&buffer[..read]),
        }
    }
    let mut text = String::with_capacity(64);
    for byte in hash.finalize() {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

/// Whether a text is a SHA-256, as a hub tells it of a large file.
pub(super) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Compares two digests.
pub(super) fn check(found: String, expected: &str) -> Result<(), FetchError> {
    if found.eq_ignore_ascii_case(expected) {
        return Ok(());
    }
    Err(FetchError::WrongDigest {
        found,
        expected: expected.to_owned(),
    })
}
