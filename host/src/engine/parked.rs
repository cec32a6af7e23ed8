//! What is kept of parked sequences: in host memory within a budget, and past it in files.

use crate::{kept::Kept, scheduler::RequestId};
use std::{collections::HashMap, io};

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

    /// Keeps `data`, which is what was computed of so many tokens. [`has_room`](Self::has_room) must hold.
    pub fn put(&mut self, id: RequestId, tokens: u32, data: Vec<u8>) -> io::Result<()> {
        let kept = match self.memory.has_room(data.len() as u64) {
            true => Kept::in_memory(tokens, data),
            false => Kept::in_file(tokens, &data)?,
        };
        self.insert(id, kept);
        Ok(())
    }

    /// Keeps what was kept elsewhere. False where there is no room.
    pub fn adopt(&mut self, id: RequestId, kept: Kept) -> bool {
        let has_room = self.budget(&kept).has_room(kept.bytes());
        if has_room {
            self.insert(id, kept);
        }
        has_room
    }

    /// Gives what was kept, and keeps it no longer.
    pub fn take(&mut self, id: RequestId) -> io::Result<Vec<u8>> {
        match self.release(id) {
            Some(kept) => kept.into_data(),
            None => Err(io::Error::new(io::ErrorKind::NotFound, "nothing was kept")),
        }
    }

    /// Lets go of what is kept under this name.
    pub fn release(&mut self, id: RequestId) -> Option<Kept> {
        let kept = self.kept.remove(&id)?;
        self.budget(&kept).used -= kept.bytes();
        Some(kept)
    }

    /// Keeps nothing any more. Files go as they are closed.
    pub fn clear(&mut self) {
        self.kept.clear();
        (self.memory.used, self.disk.used) = (0, 0);
    }

    fn insert(&mut self, id: RequestId, kept: Kept) {
        self.budget(&kept).used += kept.bytes();
        self.kept.insert(id, kept);
    }

    fn budget(&mut self, kept: &Kept) -> &mut Budget {
        match kept.is_in_memory() {
            true => &mut self.memory,
            false => &mut self.disk,
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
            parked.put(RequestId(id), 1, (0..size).collect()).expect("kept");
        }
        assert_eq!((parked.memory.used, parked.disk.used), (10, 15));
        assert!(!parked.has_room(6) && parked.has_room(5));
        assert_eq!(parked.take(RequestId(2)).ok(), Some((0..15).collect()));
        assert_eq!(parked.take(RequestId(1)).ok(), Some((0..8).collect()));
        assert!(parked.take(RequestId(1)).is_err());
        assert!(parked.release(RequestId(3)).is_some() && parked.release(RequestId(3)).is_none());
        parked.put(RequestId(4), 1, vec![0; 12]).expect("kept");
        parked.clear();
        assert!(parked.take(RequestId(4)).is_err());
        assert_eq!((parked.memory.used, parked.disk.used), (0, 0));
    }

    #[test]
    fn what_is_handed_over_counts_on_one_side_alone() {
        let (mut from, mut to) = (Parked::new(10, 20), Parked::new(10, 20));
        for (id, size) in [(1, 8_u8), (2, 15), (3, 2)] {
            from.put(RequestId(id), 7, (0..size).collect()).expect("kept");
        }
        let [in_memory, in_file, last] = [1, 2, 3].map(|id| from.release(RequestId(id)).expect("kept"));
        assert_eq!((from.memory.used, from.disk.used), (0, 0));
        assert_eq!((in_file.tokens(), in_file.bytes()), (7, 15));
        assert!(to.adopt(RequestId(9), in_file.clone()) && to.adopt(RequestId(8), in_memory));
        assert!(to.adopt(RequestId(7), last.clone()) && !to.adopt(RequestId(6), last));
        assert!(!to.adopt(RequestId(6), in_file), "the files are full");
        assert_eq!((to.memory.used, to.disk.used), (10, 15));
        assert_eq!(to.take(RequestId(9)).ok(), Some((0..15).collect()));
        assert_eq!(to.take(RequestId(8)).ok(), Some((0..8).collect()));
    }
}
