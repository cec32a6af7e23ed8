//! The paged KV cache: f16, in the order in which attention reads it.
//!
//! Of each layer and KV head, first the keys of all blocks, then the values, in **strips** of 16 positions.
//! A strip of keys is `[dimension][16 positions]`, so that a vector of scores needs no sums across lanes; a
//! strip of values is `[position][dimension]`, its rows padded to whole vectors. What one thread reads for one
//! head lies together, as far as its blocks do, and threads can write a head each.

use super::{Buffer, simd::LANES};
use crate::{AttentionShape, Error, HostStep, Ledger, Result, ledger::owner};
use half::f16;

/// 16 elements that lie together.
pub(super) type Lanes = [f16; LANES];

/// Keys and values of all layers.
#[derive(Debug)]
pub struct KvCache {
    layers: usize,
    blocks: usize,
    layout: Layout,
    data: Buffer<f16>,
}

/// Sizes of a cache's parts, counted in [`Lanes`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub kv_heads: usize,
    pub head_dim: usize,
    pub block_size: usize,
}

impl Layout {
    /// Lanes that hold the dimensions of one value.
    pub fn value(self) -> usize {
        self.head_dim.div_ceil(LANES)
    }

    /// Strips of a block.
    fn strips(self) -> usize {
        self.block_size / LANES
    }

    /// The strip that holds a position.
    #[inline(always)]
    fn strip(self, blocks: &[u32], position: usize) -> usize {
        let block = blocks[position / self.block_size] as usize;
        block * self.strips() + position % self.block_size / LANES
    }

    /// The keys of one block and head.
    fn keys(self) -> usize {
        self.strips() * self.head_dim
    }

    /// The values of one block and head.
    fn values(self) -> usize {
        self.block_size * self.value()
    }
}

impl KvCache {
    /// [`crate::ErrorKind::Invalid`] where a size is 0 or a block isn't a whole number of strips.
    pub(super) fn new(ledger: &Ledger, layers: usize, blocks: usize, layout: Layout) -> Result<Self> {
        let Layout {
            kv_heads, block_size, ..
        } = layout;
        if !block_size.is_multiple_of(LANES) {
            return Err(Error::invalid(format!(
                "KV blocks of {block_size} positions: on the CPU the block size must be a multiple of {LANES}"
            )));
        }
        let sizes = [layers, kv_heads, blocks, layout.keys() + layout.values(), LANES];
        let len = sizes
            .iter()
            .try_fold(1usize, |len, &size| len.checked_mul(size))
            .filter(|&len| len > 0);
        let len = len.ok_or_else(|| Error::invalid(format!("a KV cache of {sizes:?} elements")))?;
        Ok(Self {
            layers,
            blocks,
            layout,
            data: Buffer::zeroed(ledger, owner::KV, len)?,
        })
    }

    pub(super) fn release(self) -> Result<u64> {
        self.data.release()
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// Checks that a layer's attention of this shape over this step reads and writes this cache only.
    pub(super) fn check(&self, layer: usize, shape: &AttentionShape, step: &HostStep) -> Result<()> {
        let layout = self.layout;
        let fits = layer < self.layers
            && shape.kv_heads == layout.kv_heads
            && shape.head_dim == layout.head_dim
            && shape.heads.is_multiple_of(shape.kv_heads);
        if !fits {
            return Err(Error::invalid(format!(
                "layer {layer} of {shape:?} doesn't fit the KV cache"
            )));
        }
        step.check_blocks(layout.block_size, self.blocks)
    }

    /// One head of one layer.
    pub(super) fn head(&self, layer: usize, head: usize) -> Head<'_> {
        let len = self.head_len();
        let start = (layer * self.layout.kv_heads + head) * len;
        let lanes = &self.data.as_chunks().0[start..start + len];
        let (keys, values) = lanes.split_at(self.blocks * self.layout.keys());
        Head {
            layout: self.layout,
            keys,
            values,
        }
    }

    /// All heads of one layer, to be written.
    pub(super) fn heads_mut(&mut self, layer: usize) -> impl Iterator<Item = HeadMut<'_>> {
        let (layout, len) = (self.layout, self.head_len());
        let all_keys = self.blocks * layout.keys();
        let start = layer * layout.kv_heads * len;
        let lanes = &mut self.data.as_chunks_mut().0[start..start + layout.kv_heads * len];
        lanes.chunks_exact_mut(len).map(move |lanes| {
            let (keys, values) = lanes.split_at_mut(all_keys);
            HeadMut { layout, keys, values }
        })
    }

    /// Copies a block of all layers to `data`, without padding.
    pub(super) fn read_block(&self, block: u32, data: &mut [u8]) -> Result<()> {
        self.check_block(block, data.len())?;
        let lanes: &[Lanes] = self.data.as_chunks().0;
        let mut data = data.as_chunks_mut::<2>().0.iter_mut();
        for (start, dims) in self.rows_of(block) {
            for (from, to) in lanes[start..].as_flattened()[..dims].iter().zip(&mut data) {
                *to = from.to_le_bytes();
            }
        }
        Ok(())
    }

    /// Fills a block of all layers from what [`KvCache::read_block`] wrote.
    pub(super) fn write_block(&mut self, block: u32, data: &[u8]) -> Result<()> {
        self.check_block(block, data.len())?;
        let rows = self.rows_of(block);
        let lanes: &mut [Lanes] = self.data.as_chunks_mut().0;
        let mut data = data.as_chunks::<2>().0.iter();
        for (start, dims) in rows {
            for (to, &from) in lanes[start..].as_flattened_mut()[..dims]
                .iter_mut()
                .zip(&mut data)
            {
                *to = f16::from_le_bytes(from);
            }
        }
        Ok(())
    }

    /// Lanes of one head of one layer.
    fn head_len(&self) -> usize {
        self.blocks * (self.layout.keys() + self.layout.values())
    }

    /// Where each row of a block starts, in all layers and heads, and how many of its elements count.
    fn rows_of(&self, block: u32) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (layout, block, len) = (self.layout, block as usize, self.head_len());
        let keys = block * layout.keys();
        let values = self.blocks * layout.keys() + block * layout.values();
        (0..self.layers * layout.kv_heads).flat_map(move |head| {
            let keys = (0..layout.keys()).map(move |i| (head * len + keys + i, LANES));
            let values = (0..layout.block_size)
                .map(move |i| (head * len + values + i * layout.value(), layout.head_dim));
            keys.chain(values)
        })
    }

    fn check_block(&self, block: u32, bytes: usize) -> Result<()> {
        let Layout {
            kv_heads,
            head_dim,
            block_size,
        } = self.layout;
        let expected = self.layers * kv_heads * block_size * head_dim * 2 * size_of::<f16>();
        if block as usize >= self.blocks || bytes != expected {
            return Err(Error::invalid(format!(
                "block {block} with {bytes} bytes: the KV cache has {} blocks of {expected}",
                self.blocks
            )));
        }
        Ok(())
    }
}

/// One head of one layer.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    layout: Layout,
    keys: &'a [Lanes],
    values: &'a [Lanes],
}

impl<'a> Head<'a> {
    /// The keys of the strip that holds `position`: for each dimension, 16 positions.
    #[inline(always)]
    pub fn keys(self, blocks: &[u32], position: usize) -> &'a [Lanes] {
        let len = self.layout.head_dim;
        &self.keys[self.layout.strip(blocks, position) * len..][..len]
    }

    /// Its values: for each of 16 positions, its dimensions.
    #[inline(always)]
    pub fn values(self, blocks: &[u32], position: usize) -> &'a [Lanes] {
        let len = LANES * self.layout.value();
        &self.values[self.layout.strip(blocks, position) * len..][..len]
    }
}

/// One head of one layer, to be written.
pub(super) struct HeadMut<'a> {
    layout: Layout,
    keys: &'a mut [Lanes],
    values: &'a mut [Lanes],
}

impl HeadMut<'_> {
    /// Writes the key and the value of a position, both padded to whole vectors.
    #[inline(always)]
    pub fn write(&mut self, blocks: &[u32], position: usize, key: &[Lanes], value: &[Lanes]) {
        let (strip, lane) = (self.layout.strip(blocks, position), position % LANES);
        let len = self.layout.head_dim;
        for (lanes, &x) in self.keys[strip * len..][..len].iter_mut().zip(key.as_flattened()) {
            lanes[lane] = x;
        }
        self.values[(strip * LANES + lane) * value.len()..][..value.len()].copy_from_slice(value);
    }
}
