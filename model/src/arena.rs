//! The buffer arena: a step's activations, allocated once for the largest step.

use crate::{
    Error, LlamaConfig, Result,
    pools::{ModelResource, Released},
};
use met_kernels::Ops;

/// The most rows of logits that are computed at a time: more are done in several rounds.
pub const LOGITS_ROWS: usize = 32;

/// Its owner label on the ledger.
const LABEL: &str = "buffer arena";

/// A step's activations, one row a token.
pub struct Buffers<'a, T> {
    /// The residual stream.
    pub residual: &'a mut T,
    /// What a norm gives.
    pub normed: &'a mut T,
    /// What a block adds to the residual stream.
    pub update: &'a mut T,
    /// Queries.
    pub q: &'a mut T,
    /// Keys.
    pub k: &'a mut T,
    /// Values.
    pub v: &'a mut T,
    /// What attention gives.
    pub attended: &'a mut T,
    /// Feed-forward gate.
    pub gate: &'a mut T,
    /// Feed-forward input.
    pub up: &'a mut T,
    /// What the gate lets through.
    pub gated: &'a mut T,
    /// Logits, for [`LOGITS_ROWS`] rows at most.
    pub logits: &'a mut T,
    /// Keys before their norm, where they have one.
    pub raw_k: Option<&'a mut T>,
}

/// The pool.
pub struct Arena<O: Ops> {
    tensors: Vec<O::Tensor>,
    bytes: u64,
}

impl<O: Ops> Default for Arena<O> {
    fn default() -> Self {
        Self {
            tensors: Vec::new(),
            bytes: 0,
        }
    }
}

impl<O: Ops> Arena<O> {
    /// Allocates it for steps of at most `tokens` tokens. What was allocated before an error stays here, to be
    /// released with the pools.
    pub fn alloc(&mut self, ops: &mut O, config: &LlamaConfig, tokens: usize) -> Result<()> {
        let (width, ffn) = (config.width, config.feed_forward);
        let q = config.attention.heads * config.attention.head_dim;
        let kv = config.attention.kv_heads * config.attention.head_dim;
        // In the order of `buffers`.
        for cols in [width, width, width, q, kv, kv, q, ffn, ffn, ffn] {
            self.push(ops, tokens, cols)?;
        }
        self.push(ops, tokens.min(LOGITS_ROWS), config.vocab)?;
        match config.head_norms {
            true => self.push(ops, tokens, kv),
            false => Ok(()),
        }
    }

    fn push(&mut self, ops: &mut O, rows: usize, cols: usize) -> Result<()> {
        self.tensors.push(ops.alloc_tensor(LABEL, rows, cols)?);
        self.bytes += (rows * cols * size_of::<f32>()) as u64;
        Ok(())
    }

    /// The activations, by name.
    pub fn buffers(&mut self) -> Result<Buffers<'_, O::Tensor>> {
        let [
            residual,
            normed,
            update,
            q,
            k,
            v,
            attended,
            gate,
            up,
            gated,
            logits,
            more @ ..,
        ] = &mut self.tensors[..]
        else {
            return Err(Error::bug("the buffer arena was used after its release"));
        };
        Ok(Buffers {
            residual,
            normed,
            update,
            q,
            k,
            v,
            attended,
            gate,
            up,
            gated,
            logits,
            raw_k: more.first_mut(),
        })
    }
}

impl<O: Ops> ModelResource<O> for Arena<O> {
    fn label(&self) -> &'static str {
        LABEL
    }
    fn bytes(&self) -> u64 {
        self.bytes
    }
    fn allocations(&self) -> u64 {
        self.tensors.len() as u64
    }
    fn release(&mut self, ops: &mut O) -> Released {
        self.bytes = 0;
        self.tensors
            .drain(..)
            .map(|tensor| ops.release_tensor(tensor))
            .collect()
    }
}
