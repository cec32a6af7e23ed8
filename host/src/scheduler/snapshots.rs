//! The snapshots of recurrent state: which are free, which are being taken, and which stand at the end of a known block.
//!
//! One that stands there is found with its block, and gives way, the least recently used first, unless it is pinned:
//! by a session, or by a sequence into whose slot it is to be copied.

use std::collections::BTreeMap;

/// Snapshots `0..total`.
#[derive(Debug)]
pub(super) struct Snapshots {
    free: Vec<u32>,
    of: Vec<Option<Standing>>,
    /// Those that nobody pins, by when they were used last.
    unpinned: BTreeMap<u64, u32>,
    clock: u64,
}

#[derive(Clone, Copy, Debug)]
struct Standing {
    block: u32,
    pins: u32,
    /// Its place in `unpinned`, while nobody pins it.
    since: u64,
    mark: Mark,
}

/// Tells what stands in a snapshot from whatever stands there later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub snapshot: u32,
    time: u64,
}

impl Snapshots {
    pub fn new(total: u32) -> Self {
        Self {
            free: (0..total).rev().collect(),
            of: vec![None; total as usize],
            unpinned: BTreeMap::new(),
            clock: 0,
        }
    }

    /// Snapshots in all.
    pub fn total(&self) -> u32 {
        self.of.len() as u32
    }

    /// Those that hold something, or are about to.
    pub fn used(&self) -> u32 {
        self.total() - self.free.len() as u32
    }

    /// One that can be written to, and whose end it stood at where it had to give way for that. None where all are
    /// pinned or being taken.
    pub fn reserve(&mut self) -> Option<(u32, Option<u32>)> {
        if let Some(snapshot) = self.free.pop() {
            return Some((snapshot, None));
        }
        let (_, snapshot) = self.unpinned.pop_first()?;
        let standing = self.of[snapshot as usize].take();
        Some((snapshot, standing.map(|standing| standing.block)))
    }

    /// A reserved one holds the state at the end of `block`.
    pub fn attach(&mut self, snapshot: u32, block: u32) -> Mark {
        self.clock += 1;
        let mark = Mark {
            snapshot,
            time: self.clock,
        };
        self.of[snapshot as usize] = Some(Standing {
            block,
            pins: 0,
            since: self.clock,
            mark,
        });
        self.unpinned.insert(self.clock, snapshot);
        mark
    }

    /// A reserved one was not written to, or one that stood at the end of a block does so no more.
    pub fn release(&mut self, snapshot: u32) {
        if let Some(standing) = self.of[snapshot as usize].take() {
            debug_assert_eq!(standing.pins, 0, "snapshot {snapshot} is pinned");
            self.unpinned.remove(&standing.since);
        }
        debug_assert!(
            !self.free.contains(&snapshot),
            "snapshot {snapshot} came back twice"
        );
        self.free.push(snapshot);
    }

    /// Whether what was marked is still there.
    pub fn holds(&self, mark: Mark) -> bool {
        self.of[mark.snapshot as usize].is_some_and(|standing| standing.mark == mark)
    }

    /// The block at whose end one stands that nobody pins.
    pub fn unpinned_at(&self, snapshot: u32) -> Option<u32> {
        let standing = self.of[snapshot as usize]?;
        (standing.pins == 0).then_some(standing.block)
    }

    /// It does not give way until it is unpinned as often.
    pub fn pin(&mut self, snapshot: u32) {
        if let Some(standing) = &mut self.of[snapshot as usize] {
            self.unpinned.remove(&standing.since);
            standing.pins += 1;
        }
    }

    pub fn unpin(&mut self, snapshot: u32) {
        if let Some(standing) = &mut self.of[snapshot as usize] {
            standing.pins -= 1;
            if standing.pins == 0 {
                self.clock += 1;
                standing.since = self.clock;
                self.unpinned.insert(self.clock, snapshot);
            }
        }
    }

    /// For each, the block at whose end it stands and how often it is pinned; none for one that is being taken.
    #[cfg(test)]
    pub fn standing(&self) -> impl Iterator<Item = (u32, Option<(u32, u32)>)> {
        let used = (0..self.total()).filter(|snapshot| !self.free.contains(snapshot));
        used.map(|snapshot| {
            let standing = self.of[snapshot as usize];
            (snapshot, standing.map(|standing| (standing.block, standing.pins)))
        })
    }
}
