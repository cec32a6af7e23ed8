//! From this crate's types to those of the boundary.

use crate::{Error, ErrorKind};
use met_backend_api as abi;
use met_kernels::{Entry, Kind, Ledger, sample};

/// An error as it crosses the boundary.
pub fn error(error: Error) -> abi::Error {
    let kind = match error.kind {
        ErrorKind::Invalid => abi::ErrorKind::Invalid,
        ErrorKind::Exhausted => abi::ErrorKind::Exhausted,
        ErrorKind::Fault => abi::ErrorKind::Fault,
        ErrorKind::Bug => abi::ErrorKind::Bug,
        ErrorKind::Cancelled => abi::ErrorKind::Cancelled,
    };
    abi::Error::new(kind, error.message)
}

/// Every live entry of a ledger.
pub fn ledger(ledger: &Ledger) -> Vec<abi::LedgerEntry> {
    ledger.entries().into_iter().map(entry).collect()
}

/// A ledger entry.
pub fn entry(entry: Entry) -> abi::LedgerEntry {
    abi::LedgerEntry {
        serial: entry.serial,
        kind: match entry.kind {
            Kind::Context => abi::ResourceKind::Context,
            Kind::Pool => abi::ResourceKind::Pool,
            Kind::Memory => abi::ResourceKind::Memory,
            Kind::Pinned => abi::ResourceKind::Pinned,
            Kind::Stream => abi::ResourceKind::Stream,
            Kind::Event => abi::ResourceKind::Event,
            Kind::Graph => abi::ResourceKind::Graph,
            Kind::Module => abi::ResourceKind::Module,
            Kind::Thread => abi::ResourceKind::Thread,
        },
        owner: entry.owner.into(),
        bytes: entry.bytes,
    }
}

pub(crate) fn sampling(s: &abi::Sampling) -> sample::Params {
    sample::Params {
        seed: s.seed,
        sequence: s.sequence,
        temperature: s.temperature,
        top_p: s.top_p,
        min_p: s.min_p,
        top_k: s.top_k,
        repetition_penalty: s.repetition_penalty,
        presence_penalty: s.presence_penalty,
        frequency_penalty: s.frequency_penalty,
    }
}

pub(crate) fn logprob(s: sample::Sampled) -> abi::TokenLogprob {
    abi::TokenLogprob {
        token: s.token,
        logprob: s.logprob,
    }
}
