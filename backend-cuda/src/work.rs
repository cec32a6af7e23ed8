//! How a step's work is cut for the kernels.

use crate::kv::KvCache;
use met_kernels::{AttentionShape, HostStep};

/// Positions that are summed by themselves, as in attention.cu.
const CHUNK: usize = 256;
/// Query rows of a block.
const ROWS: usize = 64;
/// An item whose result is final.
const DIRECT: u32 = u32::MAX;

/// How attention is cut: the lists, in words, as attention.cu reads them.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) slots: Vec<u32>,
    pub(crate) tables: Vec<u32>,
    pub(crate) items: Vec<u32>,
    pub(crate) merges: Vec<u32>,
    pub(crate) partials: usize,
}

impl Work {
    /// Words of an item, and of a merge.
    pub(crate) const ITEM: usize = 8;
    pub(crate) const MERGE: usize = 4;

    /// The step's block tables were checked against the cache, so that every number fits.
    pub(crate) fn new(step: &HostStep, kv: &KvCache, shape: &AttentionShape) -> Self {
        let mut work = Self::default();
        let tokens_an_item = (ROWS / (shape.heads / shape.kv_heads)).max(1);
        for row in step.rows() {
            let blocks = step.blocks(row);
            let table = work.tables.len();
            work.tables.extend_from_slice(blocks);
            for position in row.position..row.position + row.tokens.len() {
                let (block, within) = (position / kv.block_size, position % kv.block_size);
                work.slots.extend([blocks[block], within as u32]);
            }
            for offset in (0..row.tokens.len()).step_by(tokens_an_item) {
                let position = row.position + offset;
                let tokens = tokens_an_item.min(row.tokens.len() - offset);
                let first = match shape.window {
                    0 => 0,
                    window => (position + 1).saturating_sub(window),
                };
                let chunks = first / CHUNK..(position + tokens).div_ceil(CHUNK);
                let mut item = |chunks: std::ops::Range<usize>, partial: u32| {
                    let token = row.tokens.start + offset;
                    let words = [token, tokens, position, table, chunks.start, chunks.end];
                    work.items.extend(words.map(|word| word as u32));
                    work.items.extend([partial, 0]);
                };
                // A decode's chunks are done side by side, since there is little else to do.
                if row.tokens.len() == 1 && chunks.len() > 1 {
                    let partial = work.partials;
                    for (i, chunk) in chunks.clone().enumerate() {
                        item(chunk..chunk + 1, (partial + i) as u32);
                    }
                    let words = [row.tokens.start, partial, chunks.len(), 0];
                    work.merges.extend(words.map(|word| word as u32));
                    work.partials += chunks.len();
                } else {
                    item(chunks, DIRECT);
                }
            }
        }
        work
    }

    /// Fills the lists of a decode of `rows` rows up, with nothing, so that few lengths occur.
    pub(crate) fn fill_up(&mut self, rows: usize) {
        let items = (self.items.len() / Self::ITEM).next_power_of_two();
        self.items.resize(items * Self::ITEM, 0);
        if !self.merges.is_empty() {
            self.merges.resize(rows * Self::MERGE, 0);
            self.partials = self.partials.next_power_of_two();
        }
    }
}

/// Tokens of a piece; more than the inputs that conv.cu keeps.
const PIECE_TOKENS: usize = 32;

/// Sequences with a state: the lists, in words.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    pub(crate) rows: Vec<u32>,
    pub(crate) pieces: Vec<u32>,
}

impl Pieces {
    /// Words of a piece.
    pub(crate) const PIECE: usize = 8;

    pub(crate) fn new(step: &HostStep) -> Self {
        let mut lists = Self::default();
        for row in step.rows() {
            let (first, total) = (row.tokens.start as u32, row.tokens.len() as u32);
            let is_fresh = u32::from(row.position == 0);
            lists.rows.extend([first, total, row.state, is_fresh]);
            for before in (0..total).step_by(PIECE_TOKENS) {
                let tokens = (total - before).min(PIECE_TOKENS as u32);
                lists.pieces.extend([first + before, tokens, before, total]);
                lists.pieces.extend([row.state, is_fresh, 0, 0]);
            }
        }
        lists
    }
}
