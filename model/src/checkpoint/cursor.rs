//! Reads little-endian fields one after another; what is missing is an error that names the field.

use crate::{Error, Result};
use std::fmt::Arguments;

/// A position in a header.
#[derive(Clone)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn passed(&self) -> &'a [u8] {
        &self.bytes[..self.at]
    }

    pub(super) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn take(&mut self, len: u64, field: Arguments<'_>) -> Result<&'a [u8]> {
        let end = usize::try_from(len).ok().and_then(|n| self.at.checked_add(n));
        let Some(taken) = end.and_then(|end| self.bytes.get(self.at..end)) else {
            return Err(Error::invalid(format!(
                "{field}: needs {len} bytes at offset {}, but the file has {} left; it is damaged or its download incomplete",
                self.at,
                self.remaining()
            )));
        };
        self.at += taken.len();
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, field: Arguments<'_>) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, field)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self, field: Arguments<'_>) -> Result<u32> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, field: Arguments<'_>) -> Result<u64> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// A number of records of at least `record` bytes each: more than the file could hold is an error.
    pub(super) fn count(&mut self, record: usize, field: Arguments<'_>) -> Result<u64> {
        let count = self.u64(field)?;
        let most = (self.remaining() / record) as u64;
        if count > most {
            return Err(Error::invalid(format!(
                "{field} is {count}, but the rest of the file has room for {most} at most"
            )));
        }
        Ok(count)
    }

    /// A text: its length, then its UTF-8 bytes.
    pub(super) fn text(&mut self, field: Arguments<'_>) -> Result<&'a str> {
        let len = self.u64(field)?;
        let start = self.at;
        std::str::from_utf8(self.take(len, field)?)
            .map_err(|e| Error::invalid(format!("{field}: the text at offset {start} is not UTF-8: {e}")))
    }
}
