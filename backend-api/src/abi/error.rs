//! Typed errors: control flow reads [`ErrorKind`], never the message.

use abi_stable::{StableAbi, std_types::RString};

/// Who must act on an error, and what is left behind.
#[repr(u8)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request, model file or option is wrong. Nothing changed; asking again gives the same.
    Invalid,
    /// Out of KV blocks, state slots or memory. Nothing changed; it may succeed after something is freed.
    Exhausted,
    /// The device is lost. No further call on this backend will compute; release and sweep still may.
    Fault,
    /// The backend broke its own rules (a panic). The object is out of use, except for release and sweep.
    Bug,
    /// The host's cancel flag was seen. What the call had begun was undone.
    Cancelled,
}

/// An error as it crosses the boundary.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What kind of failure this is.
    pub kind: ErrorKind,
    /// What happened and what to do about it, in words for an operator.
    pub message: RString,
}

impl Error {
    /// An error of `kind` with `message`.
    pub fn new(kind: ErrorKind, message: impl Into<RString>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }
    /// An [`ErrorKind::Invalid`] error.
    pub fn invalid(message: impl Into<RString>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }
    /// An [`ErrorKind::Exhausted`] error.
    pub fn exhausted(message: impl Into<RString>) -> Self {
        Self::new(ErrorKind::Exhausted, message)
    }
    /// An [`ErrorKind::Fault`] error.
    pub fn fault(message: impl Into<RString>) -> Self {
        Self::new(ErrorKind::Fault, message)
    }
    /// An [`ErrorKind::Bug`] error.
    pub fn bug(message: impl Into<RString>) -> Self {
        Self::new(ErrorKind::Bug, message)
    }
    /// The [`ErrorKind::Cancelled`] error.
    pub fn cancelled() -> Self {
        Self::new(ErrorKind::Cancelled, "cancelled by the host")
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
