//! Weights that are read in place from a mapped file: on the ledger like memory, since they take as much.

use crate::{Kind, Ledger, Result, Serial, SharedBytes};
use std::ops::Deref;

/// A part of a file that is read in place.
#[derive(Debug)]
pub struct Mapped {
    data: SharedBytes,
    entry: Option<(Ledger, Serial)>,
}

impl Mapped {
    /// Enters `data` on the ledger under `owner`.
    pub fn new(ledger: &Ledger, owner: &str, data: SharedBytes) -> Result<Self> {
        let serial = ledger.enter(Kind::Mapping, owner, data.len() as u64)?;
        Ok(Self {
            data,
            entry: Some((ledger.clone(), serial)),
        })
    }

    /// Lets go of it and returns its bytes. The file is unmapped with its last part.
    pub fn release(mut self) -> Result<u64> {
        self.strike()
    }

    fn strike(&mut self) -> Result<u64> {
        match self.entry.take() {
            Some((ledger, serial)) => ledger.strike(serial),
            None => Ok(0),
        }
    }
}

impl Deref for Mapped {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // A drop without `release` is an error path of a load: its first error is the one that is reported.
        let _ = self.strike();
    }
}
