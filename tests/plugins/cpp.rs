/// The C++ parts that are linked in.
mod cpp {
    use met_backend_api::Error;
    use std::ffi::{CString, c_char, c_int};

    unsafe extern "C" {
        fn parts_begin(folder: *const c_char, keep: c_int) -> c_int;
    }

    pub(super) fn begin(folder: &str, keep: bool) -> Result<(), Error> {
        let folder = CString::new(folder).map_err(|e| Error::invalid(e.to_string()))?;
        // SAFETY: a C string that lives through the call.
        match unsafe { parts_begin(folder.as_ptr(), keep.into()) } {
            1 => Ok(()),
            other => Err(Error::bug(format!("the C++ parts gave {other}"))),
        }
    }
}
