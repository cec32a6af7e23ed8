//! A step's metadata on the card: tokens and positions at once, the rest when the first layer needs it, for all layers.

use crate::{
    kv::KvCache,
    memory::{Allocator, DeviceBuffer, as_bytes},
};
use cudarc::driver::sys::CUdeviceptr;
use met_kernels::{AttentionShape, HostStep, Result, RopeTable, StepRows};
use std::cell::RefCell;

/// Owner label of what a step takes.
pub(crate) const OWNER: &str = "step";
/// Positions that are summed by themselves, as in attention.cu.
const CHUNK: usize = 256;
/// Query rows of a block.
const ROWS: usize = 64;
/// An item whose result is final.
const DIRECT: u32 = u32::MAX;

/// A step.
#[derive(Debug)]
pub struct Step {
    pub(crate) host: HostStep,
    tokens: DeviceBuffer,
    /// One for each table that the model's layers use.
    pub(crate) angles: RefCell<Vec<(RopeTable, DeviceBuffer)>>,
    pub(crate) places: RefCell<Option<Places>>,
}

impl Step {
    pub(crate) fn new(allocator: &Allocator, rows: &StepRows<'_>) -> Result<Self> {
        let host = HostStep::new(rows)?;
        let positions = host.positions().map(|position| position as u32);
        let words: Vec<u32> = host.tokens().iter().copied().chain(positions).collect();
        Ok(Self {
            tokens: allocator.upload(OWNER, &words)?,
            host,
            angles: RefCell::default(),
            places: RefCell::default(),
        })
    }

    /// Token ids; those that are taken on the card are 0 on the host.
    pub(crate) fn tokens(&self) -> CUdeviceptr {
        self.tokens.address()
    }

    /// The position of each token.
    pub(crate) fn positions(&self) -> CUdeviceptr {
        self.tokens.address() + size_of_val(self.host.tokens()) as u64
    }
}

/// Where a step's keys and values are, and how attention is cut, for one shape of cache and attention.
#[derive(Debug)]
pub(crate) struct Places {
    shape: AttentionShape,
    block_size: usize,
    data: DeviceBuffer,
    tables: u64,
    item_list: u64,
    merge_list: u64,
    /// Items: tokens that a block does.
    pub(crate) items: usize,
    /// Tokens whose chunks are done apart.
    pub(crate) merges: usize,
    /// Partial sums, then their states.
    partials: Option<(DeviceBuffer, u64)>,
}

impl Places {
    pub(crate) fn new(
        allocator: &Allocator,
        step: &HostStep,
        kv: &KvCache,
        shape: &AttentionShape,
    ) -> Result<Self> {
        let work = Work::new(step, kv, shape);
        let mut words = work.slots;
        let mut append = |part: Vec<u32>| {
            // Items are read 16 bytes at a time.
            words.resize(words.len().next_multiple_of(4), 0);
            words.extend(part);
            (words.len(), words.len())
        };
        let lens = [work.tables.len(), work.items.len(), work.merges.len()];
        let ends = [work.tables, work.items, work.merges].map(|part| append(part).0);
        let start = |i: usize| ((ends[i] - lens[i]) * size_of::<u32>()) as u64;
        let partials = match work.partials {
            0 => None,
            n => {
                let heads = n * shape.heads;
                let sums = heads * shape.head_dim * size_of::<f32>();
                let states = heads * 2 * size_of::<f32>();
                Some((allocator.scratch(OWNER, sums + states)?, sums as u64))
            }
        };
        let data = allocator.scratch(OWNER, size_of_val(&words[..]))?;
        data.write(0, as_bytes(&words), &allocator.stream)?;
        Ok(Self {
            shape: *shape,
            block_size: kv.block_size,
            data,
            tables: start(0),
            item_list: start(1),
            merge_list: start(2),
            items: lens[1] / Work::ITEM,
            merges: lens[2] / Work::MERGE,
            partials,
        })
    }

    /// Whether they serve another layer.
    pub(crate) fn are_of(&self, kv: &KvCache, shape: &AttentionShape) -> bool {
        self.shape == *shape && self.block_size == kv.block_size
    }

    /// Each token's block and place in it.
    pub(crate) fn slots(&self) -> CUdeviceptr {
        self.data.address()
    }

    pub(crate) fn tables(&self) -> CUdeviceptr {
        self.data.address() + self.tables
    }

    pub(crate) fn item_list(&self) -> CUdeviceptr {
        self.data.address() + self.item_list
    }

    pub(crate) fn merge_list(&self) -> CUdeviceptr {
        self.data.address() + self.merge_list
    }

    /// Partial sums and their states; 0 where there are none.
    pub(crate) fn partials(&self) -> [CUdeviceptr; 2] {
        self.partials.as_ref().map_or([0; 2], |(buffer, states)| {
            [buffer.address(), buffer.address() + states]
        })
    }
}

/// The lists, in words, as the kernels read them.
#[derive(Debug, Default)]
struct Work {
    slots: Vec<u32>,
    tables: Vec<u32>,
    items: Vec<u32>,
    merges: Vec<u32>,
    partials: usize,
}

impl Work {
    /// Words of an item, and of a merge.
    const ITEM: usize = 8;
    const MERGE: usize = 4;

    /// The step's block tables were checked against the cache, so that every number fits.
    fn new(step: &HostStep, kv: &KvCache, shape: &AttentionShape) -> Self {
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
}
