//! What was computed of a sequence, kept outside of the device: in host memory, or in a file that has no name, so that
//! the system removes it however this process ends.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::FileExt,
    sync::Arc,
};

/// The KV blocks and the recurrent state of a sequence's first tokens, as its backend copies them out.
#[derive(Clone, Debug)]
pub struct Kept {
    tokens: u32,
    place: Arc<Place>,
}

#[derive(Debug)]
enum Place {
    Memory(Vec<u8>),
    File { file: File, bytes: u64 },
}

impl Kept {
    /// Of so many tokens, in memory.
    pub fn in_memory(tokens: u32, data: Vec<u8>) -> Self {
        Self {
            tokens,
            place: Arc::new(Place::Memory(data)),
        }
    }

    /// Of so many tokens, in a file.
    pub fn in_file(tokens: u32, data: &[u8]) -> io::Result<Self> {
        let mut file = tempfile::tempfile()?;
        file.write_all(data)?;
        let bytes = data.len() as u64;
        Ok(Self {
            tokens,
            place: Arc::new(Place::File { file, bytes }),
        })
    }

    /// Tokens that it stands for.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        match &*self.place {
            Place::Memory(data) => data.len() as u64,
            Place::File { bytes, .. } => *bytes,
        }
    }

    /// Whether it takes host memory.
    pub fn is_in_memory(&self) -> bool {
        matches!(*self.place, Place::Memory(_))
    }

    /// What is kept, and keeps it no longer.
    pub fn into_data(self) -> io::Result<Vec<u8>> {
        match Arc::try_unwrap(self.place) {
            Ok(Place::Memory(data)) => Ok(data),
            Ok(place) => place.read(),
            Err(shared) => shared.read(),
        }
    }
}

impl PartialEq for Kept {
    fn eq(&self, other: &Self) -> bool {
        self.tokens == other.tokens && Arc::ptr_eq(&self.place, &other.place)
    }
}

impl Place {
    fn read(&self) -> io::Result<Vec<u8>> {
        match self {
            Self::Memory(data) => Ok(data.clone()),
            Self::File { file, bytes } => {
                let bytes = usize::try_from(*bytes).map_err(io::Error::other)?;
                let mut data = vec![0; bytes];
                file.read_exact_at(&mut data, 0)?;
                Ok(data)
            }
        }
    }
}
