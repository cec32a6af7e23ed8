//! The KV cache as a pool, and how large it is made.

use crate::{
    Error, ModelConfig, Result,
    pools::{ModelResource, Released},
};
use met_kernels::{Ops, ledger::owner};

/// Positions a block holds: few are wasted at a sequence's end, and copies of a block are long enough.
pub const BLOCK_SIZE: usize = 32;

/// How many blocks there are, and of what size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSize {
    /// Blocks in all.
    pub blocks: usize,
    /// Bytes of a block, all layers together: keys and values in f16.
    pub block_bytes: u64,
}

impl KvSize {
    /// `bytes` worth of blocks; 0 asks for `sequences` of `context` positions, or for what fits into a quarter
    /// of the memory that is free. More than is free is an error: a device that hands out memory it doesn't have
    /// would fail in the middle of an answer.
    pub fn new(
        config: &ModelConfig,
        context: usize,
        sequences: usize,
        bytes: u64,
        free: u64,
    ) -> Result<Self> {
        let shape = &config.attention;
        let values = [config.kv_layers(), shape.kv_heads, shape.head_dim, BLOCK_SIZE]
            .iter()
            .try_fold(2u64, |product, &n| product.checked_mul(n as u64));
        let block_bytes = values
            .and_then(|n| n.checked_mul(size_of::<half::f16>() as u64))
            .ok_or_else(|| Error::invalid("a KV block of this model exceeds the address space"))?;
        let enough = (context.div_ceil(BLOCK_SIZE) as u64).saturating_mul(sequences as u64);
        let blocks = match bytes {
            0 => (free / 4 / block_bytes).min(enough),
            bytes if bytes > free => {
                return Err(Error::exhausted(format!(
                    "a KV cache of {bytes} bytes is asked for, but {free} are free"
                )));
            }
            bytes => bytes / block_bytes,
        };
        if blocks == 0 {
            return Err(Error::exhausted(format!(
                "the KV cache has no room for one block of {block_bytes} bytes: {bytes} are asked for (0: a quarter of what is free), {free} are free; give it more memory"
            )));
        }
        Ok(Self {
            // A block table holds `u32`s.
            blocks: usize::try_from(blocks.min(u32::MAX.into())).unwrap_or(usize::MAX),
            block_bytes,
        })
    }

    /// Positions in all.
    pub fn positions(&self) -> usize {
        self.blocks.saturating_mul(BLOCK_SIZE)
    }
}

/// The pool.
pub struct Kv<O: Ops> {
    cache: Option<O::KvCache>,
    bytes: u64,
}

impl<O: Ops> Default for Kv<O> {
    fn default() -> Self {
        Self {
            cache: None,
            bytes: 0,
        }
    }
}

impl<O: Ops> Kv<O> {
    /// Allocates it.
    pub fn alloc(&mut self, ops: &mut O, config: &ModelConfig, size: KvSize) -> Result<()> {
        let shape = &config.attention;
        self.cache = Some(ops.alloc_kv(
            config.kv_layers(),
            shape.kv_heads,
            shape.head_dim,
            BLOCK_SIZE,
            size.blocks,
        )?);
        self.bytes = size.block_bytes * size.blocks as u64;
        Ok(())
    }

    /// The cache.
    pub fn get(&mut self) -> Result<&mut O::KvCache> {
        self.cache
            .as_mut()
            .ok_or_else(|| Error::bug("the KV cache was used after its release"))
    }
}

impl<O: Ops> ModelResource<O> for Kv<O> {
    fn label(&self) -> &'static str {
        owner::KV
    }
    fn bytes(&self) -> u64 {
        self.bytes
    }
    fn allocations(&self) -> u64 {
        u64::from(self.cache.is_some())
    }
    fn release(&mut self, ops: &mut O) -> Released {
        self.bytes = 0;
        self.cache
            .take()
            .map(|cache| ops.release_kv(cache))
            .into_iter()
            .collect()
    }
}
