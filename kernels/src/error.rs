//! Typed errors of an operation.

/// What kind of failure it is; the same five kinds as at the backend's boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The caller's shapes or data are wrong; nothing changed.
    Invalid,
    /// Out of memory; nothing changed.
    Exhausted,
    /// The device is lost.
    Fault,
    /// A rule of this crate was broken.
    Bug,
    /// The host asked to stop.
    Cancelled,
}

/// An error of an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What kind.
    pub kind: ErrorKind,
    /// What happened and what to do about it.
    pub message: String,
}

/// The result of an operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }
    /// An [`ErrorKind::Invalid`] error.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }
    /// An [`ErrorKind::Exhausted`] error.
    pub fn exhausted(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Exhausted, message)
    }
    /// An [`ErrorKind::Bug`] error.
    pub fn bug(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Bug, message)
    }
}
