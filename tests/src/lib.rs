//! What the whole-system tests share.

pub mod cycles;
pub mod hybrid;
pub mod life;
pub mod operator;
pub mod plugins;
pub mod scripted;
pub mod server;
pub mod stream;
mod texts;

pub use server::Server;
pub use texts::{Bytes, NoText, PanicsTwice};

use met_host::fetch::{self, ModelSource};
use std::{
    env,
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// The real model: `MET_TEST_MODEL`, else the default one, which is fetched into the user's cache the first
/// time.
///
/// # Panics
/// Where it cannot be had, with what to do.
pub fn model_path() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let resolve = || match env::var_os("MET_TEST_MODEL") {
        Some(path) => fetch::resolve(&ModelSource::Path(path.into())),
        None => fetch::resolve(&ModelSource::Default),
    };
    PATH.get_or_init(|| resolve().unwrap_or_else(|e| panic!("no model to test with: {e}")))
        .clone()
}

/// A file of `tests/fixtures`.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}
