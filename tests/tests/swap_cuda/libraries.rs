//! The libraries that cargo has put beside this program.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// A library by its name.
pub fn library(name: &str) -> PathBuf {
    let program = std::env::current_exe().expect("a program has a path");
    program.with_file_name(name)
}

/// The same without what only a debugger needs: nine tenths of the file, which each load copies. Where there is no
/// `strip`, as it is.
pub fn stripped(name: &str, folder: &Path) -> PathBuf {
    let (whole, stripped) = (library(name), folder.join(name));
    let made = Command::new("strip")
        .arg("-o")
        .arg(&stripped)
        .arg(&whole)
        .status();
    match made {
        Ok(status) if status.success() => stripped,
        _ => whole,
    }
}
