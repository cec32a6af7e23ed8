//! The operations that a forward pass is written over.
//!
//! A backend is an implementation of [`Ops`]. Calls of one object are made from one thread and take effect
//! in the order of the calls; an implementation may run them asynchronously until [`Ops::download`] or
//! [`Ops::synchronize`]. Shapes are `[rows, cols]`, row major; a row of an activation is one token.
//!
//! What must stay true: the values computed for a token don't depend on which other tokens are in the step.

use crate::{
    DeltaWeights, Error, Place, Result, ScanWeights, WeightSource,
    sample::{Choice, Request, Scratch},
};

/// Bytes that a loaded weight holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightFootprint {
    /// In the weight store: the checkpoint's own form, on the device.
    pub store: u64,
    /// In derived weights: repacked or dequantised at load.
    pub derived: u64,
}

/// One sequence's part of a step.
#[derive(Clone, Copy, Debug)]
pub struct StepRow<'a> {
    /// Its first token among the step's tokens.
    pub first: usize,
    /// How many tokens; at least 1.
    pub len: usize,
    /// Position of the first token.
    pub position: usize,
    /// Block table: block `blocks[p / block_size]` holds position `p`.
    pub blocks: &'a [u32],
    /// Slot of its recurrent state; [`NO_STATE`] where the model has none.
    pub state: u32,
}

/// No slot: the row belongs to a model without recurrent state.
pub const NO_STATE: u32 = u32::MAX;

/// A step: the tokens of all rows one after another.
#[derive(Clone, Copy, Debug)]
pub struct StepRows<'a> {
    /// The tokens.
    pub tokens: &'a [u32],
    /// The rows, covering `tokens` in order.
    pub rows: &'a [StepRow<'a>],
}

/// One product of [`Ops::linear`]: `out = x · weightᵀ + bias`.
pub struct Linear<'a, O: Ops + ?Sized> {
    /// `[out, in]`.
    pub weight: &'a O::Weight,
    /// `[out]`.
    pub bias: Option<&'a O::Vector>,
    /// `[tokens, out]`.
    pub out: &'a mut O::Tensor,
}

/// Gated activations: `out = f(gate) * up`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x · sigmoid(x).
    Silu,
    /// x · Φ(x), the tanh approximation.
    GeluTanh,
    /// 1 / (1 + exp(-x)).
    Sigmoid,
}

/// Rotary embedding: which angle each pair of dimensions turns by.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// Dimensions that turn; even, at most the head's.
    pub dims: usize,
    /// Radians a position for each of `dims / 2` pairs, scaling included.
    pub inverse_frequencies: Vec<f32>,
    /// Multiplies sine and cosine (YaRN); 1 otherwise.
    pub magnitude: f32,
    /// Pairs are (i, i + dims/2) where set, else (2i, 2i + 1). GGUF's Llama files use the latter.
    pub half_split: bool,
}

impl RopeTable {
    /// Checks that it fits heads of `head_dim` dimensions.
    pub fn check(&self, head_dim: usize) -> Result<()> {
        if self.dims > head_dim || self.dims != 2 * self.inverse_frequencies.len() {
            return Err(Error::invalid(format!(
                "{} frequencies for {} rotary dimensions of a head of {head_dim}",
                self.inverse_frequencies.len(),
                self.dims
            )));
        }
        Ok(())
    }
}

/// Shape of an attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// Attend to this many last positions, itself included; 0 is all.
    pub window: usize,
    /// Scores become `cap · tanh(score / cap)`; 0 is off.
    pub softcap: f32,
}

/// A token of a step that is one chosen before.
#[derive(Clone, Copy, Debug)]
pub struct Taken<'a, C> {
    /// Which of the step's tokens.
    pub token: usize,
    /// The choices that it comes from, and which of them.
    pub choices: &'a C,
    /// Index of its request.
    pub request: usize,
}

/// Takes the bytes done, and may stop a load by an error.
pub type Progress<'a> = dyn FnMut(u64) -> Result<()> + 'a;

/// The operations of a backend.
pub trait Ops {
    /// An activation `[rows, cols]` with room for more rows than a step uses.
    type Tensor;
    /// A weight matrix in the form that the backend keeps.
    type Weight;
    /// A short f32 vector: a norm's weight, a bias.
    type Vector;
    /// Paged keys and values of all layers, f16.
    type KvCache;
    /// Recurrent states: slots of as many f32 each.
    type State;
    /// A step's tokens, positions and block tables, where the operations can read them.
    type Step;
    /// Choices of tokens that were asked for and may still be under way.
    type Choices;
    /// Steps that may be under way at a time.
    const IN_FLIGHT: u32;

    /// Loads a matrix; what it takes is entered on the ledger as "weight store" or "derived weights".
    ///
    /// `progress` is told how many of the source's bytes are done, at least every 100 ms on any sensible machine;
    /// its error stops the load, and nothing is left of it.
    fn load_weight(&mut self, source: &WeightSource, progress: &mut Progress<'_>) -> Result<Self::Weight>;
    /// What a weight holds.
    fn footprint(&self, weight: &Self::Weight) -> WeightFootprint;
    /// Releases the derived part and returns its bytes; the weight is of no use afterwards.
    fn release_derived(&mut self, weight: &mut Self::Weight) -> Result<u64>;
    /// Releases the rest of a weight and returns its bytes.
    fn release_weight(&mut self, weight: Self::Weight) -> Result<u64>;

    /// Loads a vector into the weight store.
    fn load_vector(&mut self, values: &[f32]) -> Result<Self::Vector>;
    /// Releases a vector and returns its bytes.
    fn release_vector(&mut self, vector: Self::Vector) -> Result<u64>;

    /// An activation for at most `rows` rows, on the ledger under `owner`.
    fn alloc_tensor(&mut self, owner: &str, rows: usize, cols: usize) -> Result<Self::Tensor>;
    /// Releases it and returns its bytes.
    fn release_tensor(&mut self, tensor: Self::Tensor) -> Result<u64>;

    /// A KV cache of `blocks` blocks of `block_size` positions for `layers` layers, on the ledger as
    /// "kv cache".
    fn alloc_kv(
        &mut self,
        layers: usize,
        kv_heads: usize,
        head_dim: usize,
        block_size: usize,
        blocks: usize,
    ) -> Result<Self::KvCache>;
    /// Releases it and returns its bytes.
    fn release_kv(&mut self, kv: Self::KvCache) -> Result<u64>;
    /// Copies one block of all layers to `data`.
    fn read_block(&mut self, kv: &Self::KvCache, block: u32, data: &mut [u8]) -> Result<()>;
    /// Fills one block of all layers from `data`.
    fn write_block(&mut self, kv: &mut Self::KvCache, block: u32, data: &[u8]) -> Result<()>;

    /// `slots` recurrent states of `values` f32 each, on the ledger under `owner`.
    fn alloc_state(&mut self, owner: &str, slots: usize, values: usize) -> Result<Self::State>;
    /// Releases them and returns their bytes.
    fn release_state(&mut self, state: Self::State) -> Result<u64>;
    /// `to[to_slot] = from[slot]`, all values.
    fn copy_state(&mut self, from: &Self::State, slot: u32, to: &mut Self::State, to_slot: u32)
    -> Result<()>;
    /// Copies a slot to `data`, after all work before it.
    fn read_state(&mut self, state: &Self::State, slot: u32, data: &mut [u8]) -> Result<()>;
    /// Fills a slot from `data`.
    fn write_state(&mut self, state: &mut Self::State, slot: u32, data: &[u8]) -> Result<()>;

    /// Makes a step's metadata readable to the operations. Every index in it has been checked.
    fn begin(&mut self, step: &StepRows<'_>) -> Result<Self::Step>;

    /// `out[t] = table[token t]`.
    fn embed(&mut self, table: &Self::Weight, step: &Self::Step, out: &mut Self::Tensor) -> Result<()>;
    /// `out = x / rms(x) * weight`, for each group of as many columns as `weight` has: the whole row, or each head.
    fn rms_norm(
        &mut self,
        x: &Self::Tensor,
        weight: &Self::Vector,
        eps: f32,
        rows: usize,
        out: &mut Self::Tensor,
    ) -> Result<()>;
    /// `residual += x; out = residual / rms(residual) * weight`.
    fn add_rms_norm(
        &mut self,
        residual: &mut Self::Tensor,
        x: &Self::Tensor,
        weight: &Self::Vector,
        eps: f32,
        rows: usize,
        out: &mut Self::Tensor,
    ) -> Result<()>;
    /// Several products of one input, for its first `rows` rows.
    fn linear(&mut self, x: &Self::Tensor, rows: usize, products: &mut [Linear<'_, Self>]) -> Result<()>;
    /// Turns `q` in place, turns `k`, and writes `k` and `v` to the cache.
    #[allow(clippy::too_many_arguments)]
    fn rope_kv_write(
        &mut self,
        q: &mut Self::Tensor,
        k: &mut Self::Tensor,
        v: &Self::Tensor,
        rope: &RopeTable,
        shape: &AttentionShape,
        kv: &mut Self::KvCache,
        layer: usize,
        step: &Self::Step,
    ) -> Result<()>;
    /// Causal attention of each token over its sequence's positions up to its own.
    fn attention(
        &mut self,
        q: &Self::Tensor,
        kv: &Self::KvCache,
        layer: usize,
        shape: &AttentionShape,
        step: &Self::Step,
        out: &mut Self::Tensor,
    ) -> Result<()>;
    /// `out = f(gate) * up`.
    fn gated(
        &mut self,
        activation: Activation,
        gate: &Self::Tensor,
        up: &Self::Tensor,
        rows: usize,
        out: &mut Self::Tensor,
    ) -> Result<()>;
    /// `x *= factor` (Granite's multipliers, Gemma's embedding scale).
    fn scale(&mut self, x: &mut Self::Tensor, rows: usize, factor: f32) -> Result<()>;
    /// `x = cap · tanh(x / cap)` (Gemma 2's logits).
    fn softcap(&mut self, x: &mut Self::Tensor, rows: usize, cap: f32) -> Result<()>;
    /// `x[t] *= sigmoid(gate[t])`; `gate` is `[rows, 1]`.
    fn gate_rows(&mut self, x: &mut Self::Tensor, gate: &Self::Tensor, rows: usize) -> Result<()>;
    /// Causal convolution of each channel along its sequence, and SiLU:
    /// `out[t][c] = silu(bias[c] + Σ_i weight[c][i] · x[t - (taps - 1) + i][c])`.
    ///
    /// `weight` is `[channels, taps]`. The state is the last `taps - 1` inputs, `[taps - 1, channels]`, the oldest
    /// first. A row at position 0 begins with zeros, whatever its slot holds.
    #[allow(clippy::too_many_arguments)]
    fn conv(
        &mut self,
        x: &Self::Tensor,
        weight: &Self::Vector,
        bias: Option<&Self::Vector>,
        taps: usize,
        place: Place<'_, Self::State>,
        step: &Self::Step,
        out: &mut Self::Tensor,
    ) -> Result<()>;
    /// The selective scan of Mamba-2 (Dao and Gu 2024, "Transformers are SSMs"). For each head, with group `g`:
    /// `Δ = softplus(dt + dt_bias)`, `h = exp(Δ · a) · h + Δ · x ⊗ B[g]`, `out = h · C[g] + d · x`.
    ///
    /// A row of `xbc` is x `[heads, head_dim]`, then B and C `[groups, state_dim]`; `dt` is `[tokens, heads]`, and
    /// `out` `[tokens, heads · head_dim]`. The state is h, `[heads, head_dim, state_dim]`. A row at position 0
    /// begins with zeros, whatever its slot holds.
    fn scan(
        &mut self,
        xbc: &Self::Tensor,
        dt: &Self::Tensor,
        weights: &ScanWeights<'_, Self::Vector>,
        place: Place<'_, Self::State>,
        step: &Self::Step,
        out: &mut Self::Tensor,
    ) -> Result<()>;
    /// The gated delta rule (Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks"). For each value head, whose
    /// key head is `head / (value_heads / key_heads)`, with q and k divided by their norm, `√(Σx² + 1e-6)`, and q by
    /// `√key_dim`:
    /// `S = exp(a · softplus(alpha + dt_bias)) · S`, `S += k ⊗ sigmoid(beta) · (v - k · S)`, `out = q · S`.
    ///
    /// A row of `qkv` is q and k `[key_heads, key_dim]`, then v `[value_heads, value_dim]`; `alpha` and `beta` are
    /// `[tokens, value_heads]`, and `out` `[tokens, value_heads · value_dim]`. The state is S,
    /// `[value_heads, key_dim, value_dim]`. A row at position 0 begins with zeros, whatever its slot holds.
    #[allow(clippy::too_many_arguments)]
    fn delta_rule(
        &mut self,
        qkv: &Self::Tensor,
        alpha: &Self::Tensor,
        beta: &Self::Tensor,
        weights: &DeltaWeights<'_, Self::Vector>,
        place: Place<'_, Self::State>,
        step: &Self::Step,
        out: &mut Self::Tensor,
    ) -> Result<()>;
    /// Chooses the `chosen` most probable of `experts` for each row of `logits`, the lowest number among equals.
    ///
    /// A row of `routing` is the experts' numbers, the most probable first, then their weights: their softmax over
    /// all experts, or over the chosen ones where `normalised`.
    fn route(
        &mut self,
        logits: &Self::Tensor,
        rows: usize,
        experts: usize,
        chosen: usize,
        normalised: bool,
        routing: &mut Self::Tensor,
    ) -> Result<()>;
    /// The product of each row with the part of `weight`, `[experts · out, in]`, that belongs to each of its experts:
    /// `out[t · chosen + j] = weight[expert j of t] · x[t]`, or `· x[t · chosen + j]` where `x` is `spread` like that.
    #[allow(clippy::too_many_arguments)]
    fn expert_linear(
        &mut self,
        x: &Self::Tensor,
        spread: bool,
        rows: usize,
        weight: &Self::Weight,
        experts: usize,
        routing: &Self::Tensor,
        out: &mut Self::Tensor,
    ) -> Result<()>;
    /// `out[t] = Σ_j weight j of t · x[t · chosen + j]`.
    fn combine(
        &mut self,
        x: &Self::Tensor,
        routing: &Self::Tensor,
        rows: usize,
        out: &mut Self::Tensor,
    ) -> Result<()>;
    /// `residual += x`.
    fn add(&mut self, residual: &mut Self::Tensor, x: &Self::Tensor, rows: usize) -> Result<()>;
    /// `out[i] = x[rows[i]]`: keeps the rows whose logits are wanted.
    fn gather(&mut self, x: &Self::Tensor, rows: &[u32], out: &mut Self::Tensor) -> Result<()>;
    /// Chooses a token for each request from the row of `logits` of its index; a row has `vocab` values.
    ///
    /// An implementation may do it where the logits are; then the sums that a draw compares may be rounded otherwise.
    fn sample(
        &mut self,
        logits: &Self::Tensor,
        vocab: usize,
        requests: &[Request<'_>],
        scratch: &mut Scratch,
    ) -> Result<Self::Choices>;
    /// Waits for choices.
    fn collect(&mut self, choices: Self::Choices) -> Result<Vec<Choice>>;
    /// Replaces tokens of a step by chosen ones that may still be under way. Asked for only where
    /// [`Ops::IN_FLIGHT`] is above 1.
    fn take(&mut self, _step: &mut Self::Step, inputs: &[Taken<'_, Self::Choices>]) -> Result<()> {
        match inputs {
            [] => Ok(()),
            _ => Err(Error::bug(
                "a step's input is under way, but steps are one by one",
            )),
        }
    }
    /// Does `work`: a step's layers, which are operations on activations, weights, the cache and the states, without a
    /// [`gather`](Ops::gather) or copy. An implementation may note what `work` asks for, and start it as one.
    fn layers(&mut self, _step: &Self::Step, work: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<()> {
        work(self)
    }
    /// Copies the first `rows` rows to host memory, after all work before it.
    fn download(&mut self, x: &Self::Tensor, rows: usize, data: &mut [f32]) -> Result<()>;
    /// Waits for all work.
    fn synchronize(&mut self) -> Result<()>;
}
