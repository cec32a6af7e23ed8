//! Which tokens the full blocks of a generation hold.
//!
//! A block is found by its own tokens and by what stands before them, of which a serial number stands for all: so
//! two are the same only if every token before them is, whatever a hash says. The model is the generation's, so
//! nothing is ever found in another one.

use std::collections::{BTreeMap, HashMap};

/// Stands for the tokens up to the end of a known block. Never used again.
pub(super) type Serial = u64;

/// What stands before the first block.
pub(super) const ROOT: Serial = 0;

/// What stands before a block, and its own tokens.
type Content = (Serial, Box<[u32]>);

#[derive(Debug)]
pub(super) struct Prefixes {
    known: HashMap<Content, (u32, Serial)>,
    /// What each block is known by.
    of_block: Vec<Option<Kept>>,
    /// Blocks that nobody holds, by when they were held last.
    unused: BTreeMap<u64, u32>,
    last_serial: Serial,
    clock: u64,
}

#[derive(Clone, Debug)]
struct Kept {
    content: Content,
    /// Its place in `unused`, while nobody holds it.
    since: Option<u64>,
    /// The snapshot of the recurrent state after its last token.
    snapshot: Option<u32>,
}

impl Prefixes {
    pub fn new(blocks: u32) -> Self {
        Self {
            known: HashMap::new(),
            of_block: vec![None; blocks as usize],
            unused: BTreeMap::new(),
            last_serial: ROOT,
            clock: 0,
        }
    }

    /// Blocks that nobody holds, and that are kept for their tokens.
    pub fn kept(&self) -> usize {
        self.unused.len()
    }

    /// The block that holds `tokens` after those of `parent`, and what stands for all of them.
    pub fn find(&self, parent: Serial, tokens: &[u32]) -> Option<(u32, Serial)> {
        self.known.get(&(parent, Box::from(tokens))).copied()
    }

    /// Makes known what `block`, which somebody holds, holds.
    pub fn insert(&mut self, parent: Serial, tokens: &[u32], block: u32) -> Serial {
        self.last_serial += 1;
        let content: Content = (parent, tokens.into());
        self.known.insert(content.clone(), (block, self.last_serial));
        self.of_block[block as usize] = Some(Kept {
            content,
            since: None,
            snapshot: None,
        });
        self.last_serial
    }

    /// The snapshot at the end of a block.
    pub fn snapshot(&self, block: u32) -> Option<u32> {
        self.of_block[block as usize].as_ref()?.snapshot
    }

    /// Says which snapshot stands at the end of a known block. False where the block isn't known.
    pub fn set_snapshot(&mut self, block: u32, snapshot: Option<u32>) -> bool {
        match &mut self.of_block[block as usize] {
            Some(kept) => {
                kept.snapshot = snapshot;
                true
            }
            None => false,
        }
    }

    /// Keeps a block that nobody holds any more; false where its tokens aren't known.
    pub fn keep(&mut self, block: u32) -> bool {
        let Some(kept) = &mut self.of_block[block as usize] else {
            return false;
        };
        self.clock += 1;
        kept.since = Some(self.clock);
        self.unused.insert(self.clock, block);
        true
    }

    /// Somebody holds the block again, or still.
    pub fn use_again(&mut self, block: u32) {
        let since = self.of_block[block as usize]
            .as_mut()
            .and_then(|kept| kept.since.take());
        if let Some(since) = since {
            self.unused.remove(&since);
        }
    }

    /// Gives away the block that has not been used for longest, and says which snapshot stood at its end.
    pub fn evict(&mut self) -> Option<(u32, Option<u32>)> {
        let (_, block) = self.unused.pop_first()?;
        let kept = self.of_block[block as usize].take();
        if let Some(kept) = &kept {
            self.known.remove(&kept.content);
        }
        Some((block, kept.and_then(|kept| kept.snapshot)))
    }

    #[cfg(test)]
    pub fn is_kept(&self, block: u32) -> bool {
        self.unused.values().any(|kept| *kept == block)
    }
}
