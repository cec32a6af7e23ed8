//! One list of checks for every implementation of [`Ops`]: each operation against the [`Reference`] on random
//! input, and the promises that hold across operations. A check panics where it fails.

pub(crate) mod attention;
mod batch;
mod elementwise;
mod experts;
pub(crate) mod recurrent;
mod resources;
mod sample;
mod states;
mod weights;

use crate::{Ledger, Ops, StepRow, StepRows, TensorType, WeightSource, reference::Reference};

/// Checks one thing. The ledger is that of the implementation.
pub type Check<O> = fn(&mut O, &Ledger);

/// Every check, with its name.
pub fn checks<O: Ops>() -> Vec<(&'static str, Check<O>)> {
    vec![
        ("embed", weights::embed),
        ("linear", weights::linear),
        ("linear at the edges of tiles", weights::linear_edges),
        ("rms_norm", elementwise::rms_norm),
        ("add_rms_norm", elementwise::add_rms_norm),
        ("gated", elementwise::gated),
        ("softcap", elementwise::softcap),
        ("scale, add and gather", elementwise::scale_add_gather),
        ("rope", attention::rope),
        ("attention of ragged batches", attention::ragged_batches),
        ("attention at the edges of tiles", attention::edges),
        (
            "attention with windows and soft caps",
            attention::windows_and_softcaps,
        ),
        ("blocks can be copied out and in", attention::blocks),
        ("a decode equals a prefill", batch::decode_equals_prefill),
        ("the batch doesn't matter", batch::alone_equals_among_others),
        ("state slots", states::slots),
        (
            "convolution, scan and delta rule",
            recurrent::against_the_reference,
        ),
        ("a state after any steps", recurrent::steps_dont_matter),
        ("wrong states are refused", states::refusals),
        ("route", experts::route),
        ("products of experts", experts::expert_linear),
        ("combine", experts::combine),
        ("gates", experts::gates),
        ("wrong shapes of experts are refused", experts::refusals),
        ("sample", sample::sample),
        ("wrong shapes are refused", resources::wrong_shapes),
        ("what is released is off the ledger", resources::releases),
    ]
}

/// Runs every check on `ops`, each with its name in front of a failure.
pub fn run<O: Ops>(ops: &mut O, ledger: &Ledger) {
    for (name, check) in checks() {
        eprintln!("{name}");
        check(ops, ledger);
    }
}

/// A small deterministic generator (xorshift64*).
pub struct Random(u64);

impl Random {
    /// Seeded by `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// From 0 to `end`, without it.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() >> 33) as usize % end
    }

    /// About normal, as a sum of four uniform values; its variance is 1.
    pub fn normal(&mut self) -> f32 {
        let bits = self.bits();
        let sum: u64 = (0..4).map(|i| bits >> (16 * i) & 0xFFFF).sum();
        (sum as f32 / 65535.0 - 2.0) * 3f32.sqrt()
    }

    /// `len` normal values.
    pub fn normals(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.normal()).collect()
    }

    /// `0..len` in random order.
    pub fn shuffled(&mut self, len: usize) -> Vec<u32> {
        let mut values: Vec<u32> = (0..len as u32).collect();
        for i in (1..len).rev() {
            values.swap(i, self.below(i + 1));
        }
        values
    }
}

/// A matrix of f32.
pub fn f32_weight<O: Ops>(ops: &mut O, values: &[f32], rows: usize, cols: usize) -> O::Weight {
    let mut bytes = Vec::with_capacity(size_of_val(values));
    values
        .iter()
        .for_each(|x| bytes.extend_from_slice(&x.to_le_bytes()));
    let source = WeightSource {
        name: "test".into(),
        ty: TensorType::F32,
        rows,
        cols,
        data: bytes.into(),
    };
    ops.load_weight(&source, &mut |_| Ok(())).unwrap()
}

/// A step of one row that starts at position 0.
pub fn one_row<O: Ops>(ops: &mut O, tokens: &[u32]) -> O::Step {
    let row = StepRow {
        first: 0,
        len: tokens.len(),
        position: 0,
        blocks: &[],
        state: crate::NO_STATE,
    };
    ops.begin(&StepRows { tokens, rows: &[row] }).unwrap()
}

/// An activation with these values: they are embedded from a table of f32, which is exact.
pub fn upload<O: Ops>(ops: &mut O, values: &[f32], cols: usize) -> O::Tensor {
    let rows = values.len() / cols;
    let mut tensor = ops.alloc_tensor("test", rows, cols).unwrap();
    let table = f32_weight(ops, values, rows, cols);
    let tokens: Vec<u32> = (0..rows as u32).collect();
    let step = one_row(ops, &tokens);
    ops.embed(&table, &step, &mut tensor).unwrap();
    ops.synchronize().unwrap();
    ops.release_weight(table).unwrap();
    tensor
}

/// An activation of zeros.
pub fn zeros<O: Ops>(ops: &mut O, rows: usize, cols: usize) -> O::Tensor {
    ops.alloc_tensor("test", rows, cols).unwrap()
}

/// The values of an activation, which is released.
pub fn take<O: Ops>(ops: &mut O, tensor: O::Tensor, rows: usize, cols: usize) -> Vec<f32> {
    let mut values = vec![0.0; rows * cols];
    ops.download(&tensor, rows, &mut values).unwrap();
    ops.release_tensor(tensor).unwrap();
    values
}

/// The reference, in a ledger of its own.
pub fn reference() -> Reference {
    Reference::new(Ledger::default())
}

/// Checks that each value is within `tolerance` of the expected one, relative to it where it is above 1.
pub fn assert_close(actual: &[f32], expected: &[f32], tolerance: f32, what: impl std::fmt::Display) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        let error = (a - e).abs();
        assert!(
            error <= tolerance * e.abs().max(1.0),
            "{what}: element {i} is {a}, not {e} (off by {error:e})"
        );
    }
}

/// Checks that the values are the same to the bit.
pub fn assert_same_bits(actual: &[f32], expected: &[f32], what: impl std::fmt::Display) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert!(
            a.to_bits() == e.to_bits(),
            "{what}: element {i} is {a:e}, not {e:e}"
        );
    }
}
