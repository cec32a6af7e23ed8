//! The buffer arena: a step's activations, allocated once for the largest step.

use crate::{
    Error, ModelConfig, Result,
    config::{Experts, FeedForward, Mixer, Recurrent},
    pools::{ModelResource, Released},
};
use met_kernels::Ops;

/// The most rows of logits that are computed at a time: more are done in several rounds.
pub const LOGITS_ROWS: usize = 32;

/// Its owner label on the ledger.
const LABEL: &str = "buffer arena";

/// A step's activations, one row a token where nothing else is said.
pub struct Buffers<T> {
    /// The residual stream.
    pub residual: T,
    /// What a norm gives.
    pub normed: T,
    /// What a block adds to the residual stream.
    pub update: T,
    /// Logits, for [`LOGITS_ROWS`] rows at most.
    pub logits: T,
    /// Of layers with attention.
    pub attention: AttentionBuffers<T>,
    /// Of layers with a recurrent state.
    pub recurrent: Option<RecurrentBuffers<T>>,
    /// Of dense feed-forward parts.
    pub dense: Option<Gated<T>>,
    /// Of experts.
    pub experts: Option<ExpertBuffers<T>>,
}

/// Activations of attention.
pub struct AttentionBuffers<T> {
    /// Queries.
    pub q: T,
    /// Keys.
    pub k: T,
    /// Values.
    pub v: T,
    /// What attention gives.
    pub attended: T,
    /// Keys before their norm, where they have one.
    pub raw_k: Option<T>,
    /// What attention's result passes, where it passes a gate.
    pub gate: Option<T>,
}

/// Activations of layers with a recurrent state.
pub struct RecurrentBuffers<T> {
    /// Input of the convolution.
    pub mixed: T,
    /// What the convolution gives.
    pub convolved: T,
    /// How fast each head forgets: Mamba-2's dt, the delta rule's alpha.
    pub rate: T,
    /// How much of a token each head learns, where it says so.
    pub beta: Option<T>,
    /// What the recurrence gives.
    pub made: T,
    /// The gate.
    pub gate: T,
    /// Between the gate and the norm, in the model's order.
    pub gated: T,
}

/// Activations of a gated layer.
pub struct Gated<T> {
    /// The gate.
    pub gate: T,
    /// What passes it.
    pub up: T,
    /// What the gate lets through.
    pub gated: T,
}

/// Activations of experts.
pub struct ExpertBuffers<T> {
    /// The router's opinion of each expert.
    pub scores: T,
    /// Numbers of the chosen experts, and their weights.
    pub routing: T,
    /// In the chosen experts: a row for each token and expert.
    pub chosen: Gated<T>,
    /// What the chosen experts give: a row for each token and expert.
    pub made: T,
    /// Of the expert that every token passes.
    pub shared: Option<SharedBuffers<T>>,
}

/// Activations of the expert that every token passes.
pub struct SharedBuffers<T> {
    /// Within it.
    pub inside: Gated<T>,
    /// What it gives.
    pub made: T,
    /// How much of that is taken, where the model says so.
    pub gate: Option<T>,
}

/// Gives the next buffer, of so many rows and columns.
type Next<'a, T> = dyn FnMut(usize, usize) -> Result<T> + 'a;

impl<T> Buffers<T> {
    /// What steps of at most `tokens` tokens need, always in the same order.
    fn new(config: &ModelConfig, tokens: usize, next: &mut Next<'_, T>) -> Result<Self> {
        let width = config.width;
        let recurrent = config.recurrent.as_ref();
        let (dense, experts) = match &config.feed_forward {
            FeedForward::Dense(inner) => (Some(*inner), None),
            FeedForward::Experts(experts) => (None, Some(experts)),
        };
        Ok(Self {
            residual: next(tokens, width)?,
            normed: next(tokens, width)?,
            update: next(tokens, width)?,
            logits: next(tokens.min(LOGITS_ROWS), config.vocab)?,
            attention: AttentionBuffers::new(config, tokens, next)?,
            recurrent: recurrent
                .map(|recurrent| RecurrentBuffers::new(recurrent, tokens, next))
                .transpose()?,
            dense: dense.map(|inner| Gated::new(inner, tokens, next)).transpose()?,
            experts: experts
                .map(|experts| ExpertBuffers::new(experts, width, tokens, next))
                .transpose()?,
        })
    }
}

impl<T> AttentionBuffers<T> {
    fn new(config: &ModelConfig, tokens: usize, next: &mut Next<'_, T>) -> Result<Self> {
        let q = config.attention.heads * config.attention.head_dim;
        let kv = config.attention.kv_heads * config.attention.head_dim;
        Ok(Self {
            q: next(tokens, q)?,
            k: next(tokens, kv)?,
            v: next(tokens, kv)?,
            attended: next(tokens, q)?,
            raw_k: config.head_norms.then(|| next(tokens, kv)).transpose()?,
            gate: config.attention_gate.then(|| next(tokens, q)).transpose()?,
        })
    }
}

impl<T> RecurrentBuffers<T> {
    fn new(recurrent: &Recurrent, tokens: usize, next: &mut Next<'_, T>) -> Result<Self> {
        let (channels, width, heads) = (recurrent.channels(), recurrent.width(), recurrent.heads());
        let learns = matches!(recurrent.mixer, Mixer::Delta(_));
        Ok(Self {
            mixed: next(tokens, channels)?,
            convolved: next(tokens, channels)?,
            rate: next(tokens, heads)?,
            beta: learns.then(|| next(tokens, heads)).transpose()?,
            made: next(tokens, width)?,
            gate: next(tokens, width)?,
            gated: next(tokens, width)?,
        })
    }
}

impl<T> Gated<T> {
    fn new(inner: usize, rows: usize, next: &mut Next<'_, T>) -> Result<Self> {
        Ok(Self {
            gate: next(rows, inner)?,
            up: next(rows, inner)?,
            gated: next(rows, inner)?,
        })
    }
}

impl<T> ExpertBuffers<T> {
    fn new(experts: &Experts, width: usize, tokens: usize, next: &mut Next<'_, T>) -> Result<Self> {
        let rows = tokens * experts.chosen;
        let mut shared = |inner| {
            Ok(SharedBuffers {
                inside: Gated::new(inner, tokens, next)?,
                made: next(tokens, width)?,
                gate: experts.shared_gate.then(|| next(tokens, 1)).transpose()?,
            })
        };
        Ok(Self {
            shared: match experts.shared {
                0 => None,
                inner => Some(shared(inner)?),
            },
            scores: next(tokens, experts.count)?,
            routing: next(tokens, 2 * experts.chosen)?,
            chosen: Gated::new(experts.width, rows, next)?,
            made: next(rows, width)?,
        })
    }
}

/// A layer was run without its buffers.
pub(crate) fn missing(what: &str) -> Error {
    Error::bug(format!("the buffer arena has no room for {what}"))
}

/// The pool.
pub struct Arena<O: Ops> {
    tensors: Vec<O::Tensor>,
    tokens: usize,
    bytes: u64,
}

impl<O: Ops> Default for Arena<O> {
    fn default() -> Self {
        Self {
            tensors: Vec::new(),
            tokens: 0,
            bytes: 0,
        }
    }
}

impl<O: Ops> Arena<O> {
    /// Allocates it for steps of at most `tokens` tokens. What was allocated before an error stays here, to be
    /// released with the pools.
    pub fn alloc(&mut self, ops: &mut O, config: &ModelConfig, tokens: usize) -> Result<()> {
        self.tokens = tokens;
        Buffers::new(config, tokens, &mut |rows, cols| {
            self.tensors.push(ops.alloc_tensor(LABEL, rows, cols)?);
            self.bytes += (rows * cols * size_of::<f32>()) as u64;
            Ok(())
        })
        .map(drop)
    }

    /// The activations, by name.
    pub fn buffers(&mut self, config: &ModelConfig) -> Result<Buffers<&mut O::Tensor>> {
        let mut tensors = self.tensors.iter_mut();
        Buffers::new(config, self.tokens, &mut |_, _| {
            let tensor = tensors.next();
            tensor.ok_or_else(|| Error::bug("the buffer arena was used after its release"))
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
