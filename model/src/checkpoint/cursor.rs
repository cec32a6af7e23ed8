//! Reads little-endian fields one after another; what is missing is an error that names the field.

use crate::{Error, Result};
use std::fmt::Arguments;

/// The longest header that is read: ten times those of the largest vocabularies.
pub(super) const MAX_HEADER: u64 = 256 << 20;

/// A position in a file, of which the beginning is in memory.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    file_bytes: u64,
    wanted: Option<u64>,
}

impl<'a> Cursor<'a> {
    /// At the start of a file of `file_bytes` that begins with `bytes`.
    pub(super) fn new(bytes: &'a [u8], file_bytes: u64) -> Self {
        Self {
            bytes,
            at: 0,
            file_bytes,
            wanted: None,
        }
    }

    /// At the start of bytes that are all there is.
    pub(super) fn whole(bytes: &'a [u8]) -> Self {
        Self::new(bytes, bytes.len() as u64)
    }

    /// How much of the file must be in memory for the last read that failed, where that is why it failed.
    pub(super) fn wanted(&self) -> Option<u64> {
        self.wanted
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn passed(&self) -> &'a [u8] {
        &self.bytes[..self.at]
    }

    /// The bytes that were passed since `start`.
    pub(super) fn since(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.at]
    }

    fn remaining(&self) -> u64 {
        self.file_bytes.saturating_sub(self.at as u64)
    }

    pub(super) fn take(&mut self, len: u64, field: Arguments<'_>) -> Result<&'a [u8]> {
        if len > self.remaining() {
            return Err(Error::invalid(format!(
                "{field}: needs {len} bytes at offset {}, but the file has {} left; it is damaged or its download incomplete",
                self.at,
                self.remaining()
            )));
        }
        let end = self.at as u64 + len;
        let Some(taken) = self.bytes.get(self.at..end as usize) else {
            self.wanted = Some(end);
            return Err(Error::invalid(format!(
                "{field}: ends at byte {end}, but a header may have {MAX_HEADER} bytes at most"
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
        let most = self.remaining() / record as u64;
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
