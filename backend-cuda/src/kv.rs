//! The paged cache: f16, `[block][layer][key, value][kv head][position in block][dimension]`, so that a block of all
//! layers is one piece, which is copied as such.

use crate::{
    context::Stream,
    memory::{Allocator, DeviceBuffer},
    modules::{Kernel, Modules},
};
use met_kernels::{AttentionShape, Error, HostStep, Result, ledger::owner};

/// Keys and values of all layers.
#[derive(Debug)]
pub struct KvCache {
    pub(crate) layers: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) block_size: usize,
    pub(crate) blocks: usize,
    pub(crate) data: DeviceBuffer,
    pub(crate) attention: Kernel,
    pub(crate) merge: Kernel,
    /// Dimensions that the kernels are made for, those that fill up included.
    pub(crate) padded_dim: usize,
}

/// Dimensions of a head that there are kernels for.
const DIMS: [usize; 5] = [32, 64, 96, 128, 256];
/// Query heads that may share a KV head: those of a token go to one block.
const MAX_GROUP: usize = 64;

impl KvCache {
    /// `sizes` are layers, KV heads, dimensions, positions of a block, and blocks.
    pub(crate) fn new(allocator: &Allocator, modules: &mut Modules, sizes: [usize; 5]) -> Result<Self> {
        let [layers, kv_heads, head_dim, block_size, blocks] = sizes;
        let padded = DIMS.into_iter().find(|&dim| dim >= head_dim);
        let Some(padded_dim) = padded.filter(|_| head_dim.is_multiple_of(8)) else {
            return Err(Error::invalid(format!(
                "heads of {head_dim} dimensions: the CUDA kernels take multiples of 8 up to 256"
            )));
        };
        let len = sizes.iter().try_fold(2usize, |len, &size| len.checked_mul(size));
        let fits = sizes.iter().all(|&size| u32::try_from(size).is_ok()) && kv_heads <= 65_535;
        let len = len.filter(|&len| len > 0 && fits);
        let len = len.ok_or_else(|| Error::invalid(format!("a KV cache of {sizes:?}")))?;
        let file = format!("attention_{padded_dim}");
        Ok(Self {
            layers,
            kv_heads,
            head_dim,
            block_size,
            blocks,
            attention: modules.kernel(&file, "attention")?,
            merge: modules.kernel(&file, "attention_merge")?,
            padded_dim,
            data: allocator.zeroed::<u16>(owner::KV, len)?,
        })
    }

    /// Checks that a layer's attention of this shape over this step stays within this cache.
    pub(crate) fn check(&self, layer: usize, shape: &AttentionShape, step: &HostStep) -> Result<()> {
        let fits = layer < self.layers
            && shape.kv_heads == self.kv_heads
            && shape.head_dim == self.head_dim
            && shape.heads.is_multiple_of(self.kv_heads)
            && (1..=MAX_GROUP).contains(&(shape.heads / self.kv_heads));
        if !fits {
            return Err(Error::invalid(format!(
                "layer {layer} of {shape:?} doesn't fit the KV cache, or more than {MAX_GROUP} heads share a KV head"
            )));
        }
        step.check_blocks(self.block_size, self.blocks)
    }

    pub(crate) fn read_block(&self, block: u32, data: &mut [u8], stream: &Stream) -> Result<()> {
        let at = self.place_of(block, data.len())?;
        self.data.read(at, data, stream)
    }

    pub(crate) fn write_block(&mut self, block: u32, data: &[u8], stream: &Stream) -> Result<()> {
        let at = self.place_of(block, data.len())?;
        self.data.write(at, data, stream)
    }

    /// Where a block starts; `bytes` must be what it takes.
    fn place_of(&self, block: u32, bytes: usize) -> Result<usize> {
        let expected = self.data.bytes() / self.blocks;
        if block as usize >= self.blocks || bytes != expected {
            return Err(Error::invalid(format!(
                "block {block} with {bytes} bytes: the KV cache has {} blocks of {expected}",
                self.blocks
            )));
        }
        Ok(block as usize * expected)
    }
}
