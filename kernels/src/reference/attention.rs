//! The reference's rotary embedding, paged cache and attention.

use crate::{AttentionShape, Error, HostStep, Ledger, Result, RopeTable, cpu::Buffer, ledger::owner};
use half::f16;

/// Keys and values of all layers: `[block][layer][key, value][position in block][kv head][dimension]`.
#[derive(Debug)]
pub struct KvCache {
    layers: usize,
    blocks: usize,
    block_size: usize,
    kv_heads: usize,
    head_dim: usize,
    as_f16: bool,
    data: Buffer<f64>,
}

/// Where a token is.
pub(super) struct Place<'a> {
    /// Its position in its sequence.
    pub position: usize,
    /// Its sequence's block table.
    pub blocks: &'a [u32],
}

/// The place of each token of a step, in order.
pub(super) fn places(step: &HostStep) -> impl Iterator<Item = Place<'_>> {
    step.rows().iter().flat_map(move |row| {
        (0..row.tokens.len()).map(move |i| Place {
            position: row.position + i,
            blocks: step.blocks(row),
        })
    })
}

/// Turns one head by the angles of `position`.
pub(super) fn turn(head: &mut [f64], rope: &RopeTable, position: usize) {
    let pairs = rope.dims / 2;
    for (pair, &frequency) in rope.inverse_frequencies.iter().enumerate() {
        let (a, b) = if rope.half_split {
            (pair, pair + pairs)
        } else {
            (2 * pair, 2 * pair + 1)
        };
        let (sin, cos) = (position as f64 * f64::from(frequency)).sin_cos();
        let (x, y) = (head[a], head[b]);
        head[a] = (x * cos - y * sin) * f64::from(rope.magnitude);
        head[b] = (x * sin + y * cos) * f64::from(rope.magnitude);
    }
}

impl KvCache {
    pub(super) fn new(ledger: &Ledger, shape: [usize; 5], as_f16: bool) -> Result<Self> {
        let [layers, blocks, block_size, kv_heads, head_dim] = shape;
        let len = shape
            .iter()
            .try_fold(2usize, |len, &n| len.checked_mul(n))
            .filter(|&len| len > 0);
        let len = len.ok_or_else(|| Error::invalid(format!("a KV cache of shape {shape:?}")))?;
        Ok(Self {
            layers,
            blocks,
            block_size,
            kv_heads,
            head_dim,
            as_f16,
            data: Buffer::zeroed(ledger, owner::KV, len)?,
        })
    }

    pub(super) fn release(self) -> Result<u64> {
        self.data.release()
    }

    /// Blocks are copied as f16, whatever the cache keeps.
    pub(super) fn read_block(&self, block: u32, data: &mut [u8]) -> Result<()> {
        let range = self.block_range(block, data.len())?;
        for (to, &from) in data.as_chunks_mut::<2>().0.iter_mut().zip(&self.data[range]) {
            *to = f16::from_f64(from).to_le_bytes();
        }
        Ok(())
    }

    pub(super) fn write_block(&mut self, block: u32, data: &[u8]) -> Result<()> {
        let range = self.block_range(block, data.len())?;
        for (to, &from) in self.data[range].iter_mut().zip(data.as_chunks::<2>().0) {
            *to = f16::from_le_bytes(from).to_f64();
        }
        Ok(())
    }

    fn block_range(&self, block: u32, bytes: usize) -> Result<std::ops::Range<usize>> {
        let (block, len) = (block as usize, self.data.len() / self.blocks);
        if block >= self.blocks || bytes != len * 2 {
            return Err(Error::invalid(format!(
                "block {block} with {bytes} bytes: the cache has {} blocks of {}",
                self.blocks,
                len * 2
            )));
        }
        Ok(block * len..(block + 1) * len)
    }

    pub(super) fn check(&self, layer: usize, shape: &AttentionShape, step: &HostStep) -> Result<()> {
        let fits = layer < self.layers && shape.kv_heads == self.kv_heads && shape.head_dim == self.head_dim;
        if !fits || !shape.heads.is_multiple_of(shape.kv_heads) {
            return Err(Error::invalid(format!(
                "layer {layer} of {shape:?} doesn't fit the KV cache"
            )));
        }
        step.check_blocks(self.block_size, self.blocks)
    }

    pub(super) fn write(&mut self, layer: usize, place: &Place<'_>, k: &[f64], v: &[f64]) {
        let as_f16 = self.as_f16;
        for (part, values) in [k, v].into_iter().enumerate() {
            for (head, values) in values.chunks_exact(self.head_dim).enumerate() {
                let at = self.at(layer, part, head, place.position, place.blocks);
                for (to, &value) in self.data[at..].iter_mut().zip(values) {
                    *to = if as_f16 {
                        f16::from_f64(value).to_f64()
                    } else {
                        value
                    };
                }
            }
        }
    }

    /// Attention of one head of one token, by its definition.
    pub(super) fn attend(
        &self,
        layer: usize,
        shape: &AttentionShape,
        head: usize,
        place: &Place<'_>,
        q: &[f64],
        out: &mut [f64],
    ) {
        let kv_head = head / (shape.heads / shape.kv_heads);
        let first = match shape.window {
            0 => 0,
            window => (place.position + 1).saturating_sub(window),
        };
        let row = |part, position| {
            let at = self.at(layer, part, kv_head, position, place.blocks);
            &self.data[at..at + self.head_dim]
        };
        let scores: Vec<f64> = (first..=place.position)
            .map(|position| {
                let dot: f64 = q.iter().zip(row(0, position)).map(|(q, k)| q * k).sum();
                let (score, cap) = (dot * f64::from(shape.scale), f64::from(shape.softcap));
                if cap > 0.0 {
                    cap * (score / cap).tanh()
                } else {
                    score
                }
            })
            .collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
        out.fill(0.0);
        for (position, score) in (first..).zip(scores) {
            let share = (score - max).exp() / sum;
            for (out, v) in out.iter_mut().zip(row(1, position)) {
                *out += share * v;
            }
        }
    }

    /// Where the key (part 0) or value (part 1) of a position starts.
    fn at(&self, layer: usize, part: usize, head: usize, position: usize, blocks: &[u32]) -> usize {
        let block = blocks[position / self.block_size] as usize;
        let row = (block * self.layers + layer) * 2 + part;
        ((row * self.block_size + position % self.block_size) * self.kv_heads + head) * self.head_dim
    }
}
