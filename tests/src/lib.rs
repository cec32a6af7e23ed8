//! What the whole-system tests share.

pub mod plugins;
use std::{
    env,
    path::{Path, PathBuf},
};

/// Name of the real model's file.
pub const MODEL_FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// The real model: `MET_TEST_MODEL`, else the one that `met-host fetch` puts into the user's cache folder.
///
/// # Panics
/// Where neither is there, with what to do.
pub fn model_path() -> PathBuf {
    let cache = || {
        let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".cache")))?;
        Some(cache.join("met-host").join(MODEL_FILE))
    };
    let path = env::var_os("MET_TEST_MODEL").map(PathBuf::from).or_else(cache);
    path.filter(|path| path.is_file()).unwrap_or_else(|| {
        panic!("the real model isn't here: run `met-host fetch`, or name {MODEL_FILE} in MET_TEST_MODEL")
    })
}

/// A file of `tests/fixtures`.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}
