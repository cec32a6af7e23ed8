//! The paged KV cache: f16, in the order in which attention reads it.
//!
//! Of each layer and KV head, first the values of all blocks, then the keys, in **strips** of 16 positions. A
//! strip of values is `[position][dimension]`; one of keys is `[dimension][16 positions]`, so that a vector of
//! scores needs no sums across lanes. What one thread reads for one head lies together, as far as its blocks
//! do, and threads can write a head each.

use super::{Buffer, simd::LANES};
use crate::{AttentionShape, Error, HostStep, Ledger, Result, ledger::owner};
use half::f16;
use std::ops::Range;

/// Keys and values of all layers.
#[derive(Debug)]
pub struct KvCache {
    layers: usize,
    layout: Layout,
    data: Buffer<f16>,
}

/// Sizes of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub kv_heads: usize,
    pub head_dim: usize,
    pub block_size: usize,
    pub blocks: usize,
}

impl Layout {
    /// Elements of the keys, or of the values, of one block and head.
    fn block(self) -> usize {
        self.block_size * self.head_dim
    }

    /// Elements of one head: values, then as many keys.
    fn head(self) -> usize {
        2 * self.blocks * self.block()
    }

    /// Where a position's strip of values, and of keys, starts in its half of a head.
    #[inline(always)]
    fn strip(self, blocks: &[u32], position: usize) -> usize {
        let block = blocks[position / self.block_size] as usize;
        (block * self.block_size + position % self.block_size / LANES * LANES) * self.head_dim
    }
}

impl KvCache {
    /// [`crate::ErrorKind::Invalid`] where a size is 0 or a block isn't a whole number of strips.
    pub(super) fn new(ledger: &Ledger, layers: usize, layout: Layout) -> Result<Self> {
        if !layout.block_size.is_multiple_of(LANES) {
            return Err(Error::invalid(format!(
                "KV blocks of {} positions: on the CPU the block size must be a multiple of {LANES}",
                layout.block_size
            )));
        }
        let Layout {
            kv_heads,
            head_dim,
            block_size,
            blocks,
        } = layout;
        let sizes = [layers, kv_heads, blocks, block_size, head_dim];
        let len = sizes
            .iter()
            .try_fold(2usize, |len, &size| len.checked_mul(size))
            .filter(|&len| len > 0);
        let len = len.ok_or_else(|| Error::invalid(format!("a KV cache of {sizes:?} keys")))?;
        Ok(Self {
            layers,
            layout,
            data: Buffer::zeroed(ledger, owner::KV, len)?,
        })
    }

    pub(super) fn release(self) -> Result<u64> {
        self.data.release()
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
        step.check_blocks(layout.block_size, layout.blocks)
    }

    /// One head of one layer.
    pub(super) fn head(&self, layer: usize, head: usize) -> Head<'_> {
        let len = self.layout.head();
        let start = (layer * self.layout.kv_heads + head) * len;
        Head {
            layout: self.layout,
            data: &self.data[start..start + len],
        }
    }

    /// All heads of one layer, to be written.
    pub(super) fn heads_mut(&mut self, layer: usize) -> impl Iterator<Item = HeadMut<'_>> {
        let layout = self.layout;
        let layer = layer * layout.kv_heads * layout.head();
        let heads = self.data[layer..]
            .chunks_exact_mut(layout.head())
            .take(layout.kv_heads);
        heads.map(move |data| {
            let (values, keys) = data.split_at_mut(layout.head() / 2);
            HeadMut { layout, values, keys }
        })
    }

    /// Copies a block of all layers to `data`.
    pub(super) fn read_block(&self, block: u32, data: &mut [u8]) -> Result<()> {
        let parts = self.parts_of(block, data.len())?;
        let mut data = data.as_chunks_mut::<2>().0.iter_mut();
        for part in parts {
            for (from, to) in self.data[part].iter().zip(&mut data) {
                *to = from.to_le_bytes();
            }
        }
        Ok(())
    }

    /// Fills a block of all layers from what [`KvCache::read_block`] wrote.
    pub(super) fn write_block(&mut self, block: u32, data: &[u8]) -> Result<()> {
        let parts = self.parts_of(block, data.len())?;
        let mut data = data.as_chunks::<2>().0.iter();
        for part in parts {
            for (to, &from) in self.data[part].iter_mut().zip(&mut data) {
                *to = f16::from_le_bytes(from);
            }
        }
        Ok(())
    }

    /// Where the values and keys of a block are, in all layers and heads; `bytes` must be what they take.
    fn parts_of(&self, block: u32, bytes: usize) -> Result<impl Iterator<Item = Range<usize>> + use<>> {
        let (layout, block) = (self.layout, block as usize);
        let halves = 2 * self.layers * layout.kv_heads;
        let expected = halves * layout.block() * size_of::<f16>();
        if block >= layout.blocks || bytes != expected {
            return Err(Error::invalid(format!(
                "block {block} with {bytes} bytes: the KV cache has {} blocks of {expected}",
                layout.blocks
            )));
        }
        Ok((0..halves).map(move |half| {
            let start = half * layout.head() / 2 + block * layout.block();
            start..start + layout.block()
        }))
    }
}

/// One head of one layer.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    layout: Layout,
    data: &'a [f16],
}

impl<'a> Head<'a> {
    /// The keys of the strip that holds `position`: for each dimension, 16 positions.
    #[inline(always)]
    pub fn keys(self, blocks: &[u32], position: usize) -> &'a [[f16; LANES]] {
        let start = self.layout.head() / 2 + self.layout.strip(blocks, position);
        self.data[start..][..LANES * self.layout.head_dim].as_chunks().0
    }

    /// From the values of `position` on: those of the positions that follow in its strip come next. There is
    /// always more behind the last, so that a vector may reach past a row that isn't a whole number of them.
    #[inline(always)]
    pub fn values(self, blocks: &[u32], position: usize) -> &'a [f16] {
        let row = position % LANES * self.layout.head_dim;
        &self.data[self.layout.strip(blocks, position) + row..]
    }
}

/// One head of one layer, to be written.
pub(super) struct HeadMut<'a> {
    layout: Layout,
    values: &'a mut [f16],
    keys: &'a mut [f16],
}

impl HeadMut<'_> {
    /// Writes the key and the value of a position.
    #[inline(always)]
    pub fn write(&mut self, blocks: &[u32], position: usize, key: &[f16], value: &[f16]) {
        let (strip, lane, dims) = (
            self.layout.strip(blocks, position),
            position % LANES,
            self.layout.head_dim,
        );
        self.values[strip + lane * dims..][..dims].copy_from_slice(&value[..dims]);
        let keys = self.keys[strip..][..LANES * dims].as_chunks_mut::<LANES>().0;
        for (lanes, &x) in keys.iter_mut().zip(key) {
            lanes[lane] = x;
        }
    }
}
