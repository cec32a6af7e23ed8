//! The KV blocks of a generation: how many tables hold each, which are free, and which hold tokens that a later
//! request may share.
//!
//! A block is held by tables, or kept for its tokens though nobody holds it, or free. Kept ones are given away when
//! no free one is left, the least recently used first.
//!
//! Of a model with recurrent state a beginning can be shared only where there is a snapshot of the state at its end.
//! A snapshot goes with its block; a block outlives its snapshot, because deeper ones need it.

use super::{
    prefix::{Prefixes, ROOT, Serial},
    snapshots::{Mark, Snapshots},
};

/// Blocks `0..total`, each of `block_size` tokens.
#[derive(Debug)]
pub(super) struct BlockPool {
    free: Vec<u32>,
    /// How many tables hold each block.
    holders: Vec<u32>,
    prefixes: Prefixes,
    block_size: u32,
    /// Whether the model has recurrent state.
    is_recurrent: bool,
    snapshots: Snapshots,
}

/// A beginning that a table shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shared {
    /// Where the next block's tokens would be known.
    pub prefix: Serial,
    /// The snapshot at its end, which is pinned; of a model with recurrent state alone.
    pub snapshot: Option<u32>,
}

impl BlockPool {
    pub fn new(total: u32, block_size: u32) -> Self {
        Self {
            free: (0..total).rev().collect(),
            holders: vec![0; total as usize],
            prefixes: Prefixes::new(total),
            block_size,
            is_recurrent: false,
            snapshots: Snapshots::new(0),
        }
    }

    /// Of a model with recurrent state, of which there can be so many snapshots.
    pub fn with_state(mut self, snapshots: u32) -> Self {
        self.is_recurrent = true;
        self.snapshots = Snapshots::new(snapshots);
        self
    }

    /// Blocks in all.
    pub fn total(&self) -> u32 {
        self.holders.len() as u32
    }

    /// Blocks that can be had: those that nobody holds, kept ones included.
    pub fn free(&self) -> u32 {
        (self.free.len() + self.prefixes.kept()) as u32
    }

    /// Tokens that a block holds.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Blocks that `table` lacks to hold `tokens`.
    pub fn missing(&self, table: &[u32], tokens: u32) -> u32 {
        tokens
            .div_ceil(self.block_size)
            .saturating_sub(table.len() as u32)
    }

    /// Whether `count` blocks can be had.
    pub fn can_allocate(&self, count: u32) -> bool {
        count <= self.free()
    }

    /// Moves `count` blocks to the end of `table`; [`can_allocate`](Self::can_allocate) must hold.
    pub fn allocate(&mut self, count: u32, table: &mut Vec<u32>) {
        assert!(
            self.can_allocate(count),
            "{count} blocks asked for, {} can be had",
            self.free()
        );
        for _ in 0..count {
            if let Some(block) = self.free.pop().or_else(|| self.evict()) {
                self.holders[block as usize] = 1;
                table.push(block);
            }
        }
    }

    fn evict(&mut self) -> Option<u32> {
        let (block, snapshot) = self.prefixes.evict()?;
        if let Some(snapshot) = snapshot {
            self.snapshots.release(snapshot);
        }
        Some(block)
    }

    /// Lets an empty `table` share the blocks that hold the beginning of `tokens`, of which it leaves at least one
    /// to be computed.
    pub fn share(&mut self, tokens: &[u32], table: &mut Vec<u32>) -> Shared {
        let size = self.block_size as usize;
        let known = tokens.len().saturating_sub(1) / size;
        let mut shared = Shared {
            prefix: ROOT,
            snapshot: None,
        };
        let (mut parent, mut end) = (ROOT, 0);
        for content in tokens.chunks_exact(size).take(known) {
            let Some((block, serial)) = self.prefixes.find(parent, content) else {
                break;
            };
            table.push(block);
            parent = serial;
            let snapshot = self.prefixes.snapshot(block);
            if !self.is_recurrent || snapshot.is_some() {
                end = table.len();
                shared = Shared {
                    prefix: serial,
                    snapshot,
                };
            }
        }
        table.truncate(end);
        for block in table.iter() {
            self.prefixes.use_again(*block);
            self.holders[*block as usize] += 1;
        }
        if let Some(snapshot) = shared.snapshot {
            self.snapshots.pin(snapshot);
        }
        shared
    }

    /// Makes known that `block` holds `tokens` after those of `parent`, now and for as long as it is not given away.
    /// Returns the block that is known to hold them, and what stands for these tokens together.
    pub fn know(&mut self, parent: Serial, tokens: &[u32], block: u32) -> (u32, Serial) {
        match self.prefixes.find(parent, tokens) {
            // Another block holds the same; the first one is as good.
            Some(known) => known,
            None => (block, self.prefixes.insert(parent, tokens, block)),
        }
    }

    /// A snapshot that can be written to. The least recently used one gives way; none where all are pinned or being
    /// taken.
    pub fn reserve_snapshot(&mut self) -> Option<u32> {
        let (snapshot, from) = self.snapshots.reserve()?;
        if let Some(block) = from {
            self.prefixes.set_snapshot(block, None);
        }
        Some(snapshot)
    }

    /// A reserved snapshot holds the state at the end of `block`, which is known. None where there is one already.
    pub fn attach_snapshot(&mut self, snapshot: u32, block: u32) -> Option<Mark> {
        if self.prefixes.snapshot(block).is_some() || !self.prefixes.set_snapshot(block, Some(snapshot)) {
            self.snapshots.release(snapshot);
            return None;
        }
        Some(self.snapshots.attach(snapshot, block))
    }

    /// A reserved snapshot was not written to.
    pub fn release_snapshot(&mut self, snapshot: u32) {
        self.snapshots.release(snapshot);
    }

    /// What was marked is needed no more, unless somebody pins it.
    pub fn drop_snapshot(&mut self, mark: Mark) {
        if self.snapshots.holds(mark) {
            self.forget_snapshot(mark.snapshot);
        }
    }

    /// A snapshot that [`share`](Self::share) pinned may give way again.
    pub fn unpin_snapshot(&mut self, snapshot: u32) {
        self.snapshots.unpin(snapshot);
    }

    /// Snapshots that hold something or are about to, and all.
    pub fn snapshots(&self) -> (u32, u32) {
        (self.snapshots.used(), self.snapshots.total())
    }

    fn forget_snapshot(&mut self, snapshot: u32) {
        if let Some(block) = self.snapshots.unpinned_at(snapshot) {
            self.prefixes.set_snapshot(block, None);
            self.snapshots.release(snapshot);
        }
    }

    /// Takes back `table`: what nobody else holds is free, or kept where its tokens are known.
    pub fn release(&mut self, table: &mut Vec<u32>) {
        // The last ones first: a beginning is of use without its end, and not the other way round.
        for block in table.drain(..).rev() {
            let holders = &mut self.holders[block as usize];
            debug_assert!(*holders > 0, "block {block} came back twice");
            *holders -= 1;
            if *holders == 0 && !self.prefixes.keep(block) {
                self.free.push(block);
            }
        }
    }

    /// Each snapshot in use, with the block at whose end it stands and how often it is pinned.
    #[cfg(test)]
    pub fn standing_snapshots(&self) -> impl Iterator<Item = (u32, Option<(u32, u32)>)> {
        self.snapshots.standing()
    }

    /// The snapshot at the end of a block.
    #[cfg(test)]
    pub fn snapshot_of(&self, block: u32) -> Option<u32> {
        self.prefixes.snapshot(block)
    }

    /// How many tables hold each block, and whether it can be had.
    #[cfg(test)]
    pub fn blocks(&self) -> impl Iterator<Item = (u32, bool)> {
        let can_be_had = |block: u32| self.free.contains(&block) || self.prefixes.is_kept(block);
        self.holders
            .iter()
            .zip(0..)
            .map(move |(holders, block)| (*holders, can_be_had(block)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes `tokens` into a table of its own, and says what each full block holds.
    fn compute(pool: &mut BlockPool, tokens: &[u32]) -> (Vec<u32>, usize) {
        let mut table = Vec::new();
        let mut parent = pool.share(tokens, &mut table).prefix;
        let shared = table.len();
        let missing = pool.missing(&table, tokens.len() as u32);
        pool.allocate(missing, &mut table);
        let blocks: Vec<(usize, &[u32])> = tokens.chunks_exact(2).enumerate().skip(shared).collect();
        for (at, content) in blocks {
            parent = pool.know(parent, content, table[at]).1;
        }
        (table, shared)
    }

    #[test]
    fn a_beginning_is_shared_and_its_last_token_is_computed() {
        let mut pool = BlockPool::new(8, 2);
        let (first, shared) = compute(&mut pool, &[1, 2, 3, 4, 5]);
        assert_eq!((first.len(), shared), (3, 0));
        let (second, shared) = compute(&mut pool, &[1, 2, 3, 4, 9, 9]);
        assert_eq!(shared, 2);
        assert_eq!(second[..2], first[..2]);
        let (third, shared) = compute(&mut pool, &[1, 2, 3, 4]);
        assert_eq!(
            (third.len(), shared),
            (2, 1),
            "its last block is computed, for its logits"
        );
        let (_, shared) = compute(&mut pool, &[3, 4, 5, 6]);
        assert_eq!(shared, 0, "the same tokens elsewhere are something else");
    }

    #[test]
    fn what_nobody_holds_is_kept_until_it_is_needed_and_the_oldest_end_goes_first() {
        let mut pool = BlockPool::new(4, 2);
        let (mut first, _) = compute(&mut pool, &[1, 2, 3, 4]);
        pool.release(&mut first);
        assert_eq!(pool.free(), 4);
        let (mut second, shared) = compute(&mut pool, &[1, 2, 3, 4, 5]);
        assert_eq!(shared, 2);
        pool.release(&mut second);
        // Two blocks were never known, so they go first; then the end of what is kept.
        let mut other = Vec::new();
        pool.allocate(2, &mut other);
        let (mut third, shared) = compute(&mut pool, &[1, 2, 9]);
        assert_eq!(shared, 1, "its beginning is still there");
        assert!(!pool.can_allocate(1));
        let mut table = Vec::new();
        pool.share(&[1, 2, 3, 4, 5], &mut table);
        assert_eq!(table.len(), 1, "its end is gone");
        pool.release(&mut table);
        pool.release(&mut third);
        pool.release(&mut other);
        assert_eq!(pool.free(), 4);
        assert!(
            pool.blocks()
                .all(|(holders, can_be_had)| holders == 0 && can_be_had)
        );
    }
}
