//! What parked sequences had in their blocks and their slot of recurrent state: in host memory within a budget, and past it in files that have no name,
//! so that the system removes them however this process ends.

use crate::scheduler::RequestId;
use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
};

/// What is kept, under the names of the requests.
pub(super) struct Parked {
    memory: Budget,
    disk: Budget,
    kept: HashMap<RequestId, Kept>,
}

struct Budget {
    limit: u64,
    used: u64,
}

enum Kept {
    Memory(Vec<u8>),
    File { file: File, bytes: u64 },
}

impl Parked {
    /// Keeps at most so many bytes in memory and on disk.
    pub fn new(memory: u64, disk: u64) -> Self {
        Self {
            memory: Budget {
                limit: memory,
                used: 0,
            },
            disk: Budget { limit: disk, used: 0 },
            kept: HashMap::new(),
        }
    }

    /// Whether so many bytes more would fit anywhere.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.memory.has_room(bytes) || self.disk.has_room(bytes)
    }

    /// Keeps `data`. [`has_room`](Self::has_room) must hold.
    pub fn put(&mut self, id: RequestId, data: Vec<u8>) -> io::Result<()> {
        let bytes = data.len() as u64;
        let kept = if self.memory.has_room(bytes) {
            self.memory.used += bytes;
            Kept::Memory(data)
        } else {
            let mut file = tempfile::tempfile()?;
            file.write_all(&data)?;
            self.disk.used += bytes;
            Kept::File { file, bytes }
        };
        self.kept.insert(id, kept);
        Ok(())
    }

    /// Gives what was kept, and keeps it no longer.
    pub fn take(&mut self, id: RequestId) -> io::Result<Vec<u8>> {
        match self.kept.remove(&id) {
            Some(Kept::Memory(data)) => {
                self.memory.used -= data.len() as u64;
                Ok(data)
            }
            Some(Kept::File { mut file, bytes }) => {
                self.disk.used -= bytes;
                let mut data = Vec::with_capacity(bytes as usize);
                file.seek(SeekFrom::Start(0))?;
                file.read_to_end(&mut data)?;
                Ok(data)
            }
            None => Err(io::Error::new(io::ErrorKind::NotFound, "nothing was kept")),
        }
    }

    /// Keeps nothing any more. Files go as they are closed.
    pub fn clear(&mut self) {
        self.kept.clear();
        (self.memory.used, self.disk.used) = (0, 0);
    }

    /// Keeps nothing under this name any more.
    pub fn forget(&mut self, id: RequestId) {
        match self.kept.remove(&id) {
            Some(Kept::Memory(data)) => self.memory.used -= data.len() as u64,
            Some(Kept::File { bytes, .. }) => self.disk.used -= bytes,
            None => {}
        }
    }
}

impl Budget {
    fn has_room(&self, bytes: u64) -> bool {
        self.used.saturating_add(bytes) <= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_filled_first_then_files_and_then_nothing_fits() {
        let mut parked = Parked::new(10, 20);
        for (id, size) in [(1, 8_u8), (2, 15), (3, 2)] {
            assert!(parked.has_room(u64::from(size)), "{id}");
            parked.put(RequestId(id), (0..size).collect()).expect("kept");
        }
        assert_eq!((parked.memory.used, parked.disk.used), (10, 15));
        assert!(!parked.has_room(6) && parked.has_room(5));
        assert_eq!(parked.take(RequestId(2)).ok(), Some((0..15).collect()));
        assert_eq!(parked.take(RequestId(1)).ok(), Some((0..8).collect()));
        assert!(parked.take(RequestId(1)).is_err());
        parked.forget(RequestId(3));
        parked.forget(RequestId(3));
        parked.put(RequestId(4), vec![0; 12]).expect("kept");
        parked.clear();
        assert!(parked.take(RequestId(4)).is_err());
        assert_eq!((parked.memory.used, parked.disk.used), (0, 0));
    }
}
