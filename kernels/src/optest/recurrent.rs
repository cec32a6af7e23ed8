//! The operations with a recurrent state: convolution, selective scan, gated delta rule.

use super::*;
use crate::{DeltaShape, DeltaWeights, Place, Result, ScanShape, ScanWeights};

/// An operation and its constants.
pub(super) struct Layer {
    kind: Kind,
    pub(super) vectors: Vec<Vec<f32>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Conv {
        channels: usize,
        taps: usize,
        bias: bool,
    },
    Scan(ScanShape),
    Delta(DeltaShape),
}

impl Kind {
    /// Columns of each input.
    pub(super) fn inputs(self) -> Vec<usize> {
        match self {
            Kind::Conv { channels, .. } => vec![channels],
            Kind::Scan(shape) => vec![shape.channels(), shape.heads],
            Kind::Delta(shape) => vec![shape.channels(), shape.value_heads, shape.value_heads],
        }
    }

    /// Columns of the output.
    pub(super) fn outputs(self) -> usize {
        match self {
            Kind::Conv { channels, .. } => channels,
            Kind::Scan(shape) => shape.heads * shape.head_dim,
            Kind::Delta(shape) => shape.value_heads * shape.value_dim,
        }
    }

    /// Values of the state.
    pub(super) fn state(self) -> usize {
        match self {
            Kind::Conv { channels, taps, .. } => channels * (taps - 1),
            Kind::Scan(shape) => shape.state(),
            Kind::Delta(shape) => shape.state(),
        }
    }
}

impl Layer {
    pub(super) fn new(random: &mut Random, kind: Kind) -> Self {
        let negative = |x: f32| -x.exp();
        let vectors = match kind {
            Kind::Conv { channels, taps, bias } => {
                let weight = random.normals(channels * taps);
                [Some(weight), bias.then(|| random.normals(channels))]
                    .into_iter()
                    .flatten()
                    .collect()
            }
            Kind::Scan(ScanShape { heads, .. }) => {
                let a = random.normals(heads).into_iter().map(negative).collect();
                vec![a, random.normals(heads), random.normals(heads)]
            }
            Kind::Delta(DeltaShape { value_heads, .. }) => {
                let a = random.normals(value_heads).into_iter().map(negative).collect();
                vec![a, random.normals(value_heads)]
            }
        };
        Self { kind, vectors }
    }

    /// Runs it once, with its constants loaded for the call.
    pub(super) fn call<O: Ops>(
        &self,
        ops: &mut O,
        inputs: &[O::Tensor],
        place: Place<'_, O::State>,
        step: &O::Step,
        out: &mut O::Tensor,
    ) -> Result<()> {
        let vectors: Vec<_> = self
            .vectors
            .iter()
            .map(|values| ops.load_vector(values).unwrap())
            .collect();
        let result = match (self.kind, &vectors[..], inputs) {
            (Kind::Conv { taps, .. }, [weight, bias @ ..], [x]) => {
                ops.conv(x, weight, bias.first(), taps, place, step, out)
            }
            (Kind::Scan(shape), [a, d, dt_bias], [xbc, dt]) => {
                let weights = ScanWeights { shape, a, d, dt_bias };
                ops.scan(xbc, dt, &weights, place, step, out)
            }
            (Kind::Delta(shape), [a, dt_bias], [qkv, alpha, beta]) => {
                let weights = DeltaWeights { shape, a, dt_bias };
                ops.delta_rule(qkv, alpha, beta, &weights, place, step, out)
            }
            _ => panic!(
                "{:?} with {} vectors and {} inputs",
                self.kind,
                vectors.len(),
                inputs.len()
            ),
        };
        ops.synchronize().unwrap();
        for vector in vectors {
            ops.release_vector(vector).unwrap();
        }
        result
    }
}

/// Some tokens of a sequence.
pub(crate) type Part = (usize, std::ops::Range<usize>);

/// Sequences of random inputs to a layer.
pub(crate) struct Sequences {
    layer: Layer,
    /// Each sequence's inputs, of all its tokens.
    data: Vec<Vec<Vec<f32>>>,
    lens: Vec<usize>,
    /// Each sequence's slot, of [`SLOTS`].
    slots: Vec<u32>,
}

const SLOTS: usize = 9;
/// Values of a slot before and behind the layer's.
const AROUND: usize = 3;

impl Sequences {
    pub(crate) fn new(random: &mut Random, kind: Kind, lens: &[usize]) -> Self {
        let data = lens.iter().map(|len| {
            let inputs = kind.inputs().into_iter();
            inputs.map(|cols| random.normals(len * cols)).collect()
        });
        Self {
            data: data.collect(),
            layer: Layer::new(random, kind),
            lens: lens.to_vec(),
            slots: random.shuffled(SLOTS)[..lens.len()].to_vec(),
        }
    }

    /// Slots that hold what no sequence may see, and their values.
    fn state<O: Ops>(&self, ops: &mut O) -> O::State {
        let values = self.layer.kind.state() + 2 * AROUND;
        let mut state = ops.alloc_state("test", SLOTS, values).unwrap();
        for slot in 0..SLOTS as u32 {
            ops.write_state(&mut state, slot, &[0xFF; 4].repeat(values))
                .unwrap();
        }
        state
    }

    /// The outputs of one step, as they follow one another.
    fn step<O: Ops>(&self, ops: &mut O, state: &mut O::State, parts: &[Part]) -> Vec<f32> {
        let kind = self.layer.kind;
        let mut first = 0;
        let rows: Vec<_> = parts
            .iter()
            .map(|(sequence, tokens)| {
                first += tokens.len();
                StepRow {
                    first: first - tokens.len(),
                    len: tokens.len(),
                    position: tokens.start,
                    blocks: &[],
                    state: self.slots[*sequence],
                }
            })
            .collect();
        let tokens = vec![0; first];
        let step = ops
            .begin(&StepRows {
                tokens: &tokens,
                rows: &rows,
            })
            .unwrap();
        let inputs = kind.inputs().into_iter().enumerate().map(|(i, cols)| {
            let part =
                |(sequence, tokens): &Part| &self.data[*sequence][i][tokens.start * cols..tokens.end * cols];
            let values: Vec<f32> = parts.iter().flat_map(part).copied().collect();
            upload(ops, &values, cols)
        });
        let inputs: Vec<_> = inputs.collect();
        let mut out = zeros(ops, first, kind.outputs());
        let place = Place {
            state,
            offset: AROUND,
        };
        self.layer.call(ops, &inputs, place, &step, &mut out).unwrap();
        for input in inputs {
            ops.release_tensor(input).unwrap();
        }
        take(ops, out, first, kind.outputs())
    }

    /// The outputs of each sequence after some steps, and what the slots hold then.
    pub(crate) fn run<O: Ops>(&self, ops: &mut O, steps: &[Vec<Part>]) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
        let mut state = self.state(ops);
        let mut outputs = vec![Vec::new(); self.lens.len()];
        let cols = self.layer.kind.outputs();
        for parts in steps {
            let mut values = &self.step(ops, &mut state, parts)[..];
            for (sequence, tokens) in parts {
                let (mine, rest) = values.split_at(tokens.len() * cols);
                outputs[*sequence].extend_from_slice(mine);
                values = rest;
            }
        }
        let slots =
            (0..SLOTS as u32).map(|slot| read(ops, &state, slot, self.layer.kind.state() + 2 * AROUND));
        let slots = slots.collect();
        ops.release_state(state).unwrap();
        (outputs, slots)
    }

    /// Each sequence in pieces of about `size` tokens, several sequences a step, in changing order.
    pub(crate) fn steps(&self, random: &mut Random, size: usize) -> Vec<Vec<Part>> {
        let mut done = vec![0; self.lens.len()];
        let mut steps = Vec::new();
        while done != self.lens {
            let mut parts = Vec::new();
            for sequence in random.shuffled(self.lens.len()) {
                let sequence = sequence as usize;
                let left = self.lens[sequence] - done[sequence];
                if left > 0 && random.below(4) > 0 {
                    let len = left.min(1 + random.below(size));
                    parts.push((sequence, done[sequence]..done[sequence] + len));
                    done[sequence] += len;
                }
            }
            if !parts.is_empty() {
                steps.push(parts);
            }
        }
        steps
    }
}

/// What a slot holds.
pub(super) fn read<O: Ops>(ops: &mut O, state: &O::State, slot: u32, values: usize) -> Vec<f32> {
    let mut bytes = vec![0; values * 4];
    ops.read_state(state, slot, &mut bytes).unwrap();
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|&bytes| f32::from_le_bytes(bytes))
        .collect()
}

/// Shapes around the edges of vectors.
pub(crate) fn kinds() -> impl Iterator<Item = Kind> {
    let conv = [
        (1, 4, true),
        (17, 2, false),
        (80, 4, true),
        (33, 1, true),
        (130, 5, true),
    ];
    let conv = conv.map(|(channels, taps, bias)| Kind::Conv { channels, taps, bias });
    let scan = [
        (1, 1, 1, 1),
        (3, 5, 1, 7),
        (4, 16, 2, 16),
        (2, 8, 1, 128),
        (6, 3, 3, 40),
        (1, 19, 1, 130),
    ];
    let scan = scan.map(|(heads, head_dim, groups, state_dim)| {
        Kind::Scan(ScanShape {
            heads,
            head_dim,
            groups,
            state_dim,
        })
    });
    let delta = [
        (1, 1, 1, 1),
        (1, 2, 7, 5),
        (2, 4, 16, 16),
        (1, 2, 64, 128),
        (3, 3, 40, 72),
        (1, 1, 130, 3),
    ];
    let delta = delta.map(|(key_heads, value_heads, key_dim, value_dim)| {
        Kind::Delta(DeltaShape {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
        })
    });
    conv.into_iter().chain(scan).chain(delta)
}

/// Sequences in pieces, beside one another, against the reference; outputs and states.
pub(super) fn against_the_reference<O: Ops>(ops: &mut O, _: &Ledger) {
    let mut random = Random::new(20);
    for kind in kinds() {
        let sequences = Sequences::new(&mut random, kind, &[1, 9, 40, 2, 23]);
        let steps = sequences.steps(&mut random, 12);
        let (outputs, slots) = sequences.run(ops, &steps);
        let (expected_outputs, expected_slots) = sequences.run(&mut reference(), &steps);
        for (i, (actual, expected)) in outputs.iter().zip(&expected_outputs).enumerate() {
            assert_near(actual, expected, format_args!("{kind:?}, sequence {i}"));
        }
        for (slot, (actual, expected)) in slots.iter().zip(&expected_slots).enumerate() {
            let what = format_args!("{kind:?}, slot {slot}");
            let (actual, around) = split(actual);
            assert!(
                around.iter().all(|x| x.is_nan()),
                "{what}: its neighbours were written"
            );
            match sequences.slots.contains(&(slot as u32)) {
                true => assert_near(actual, split(expected).0, what),
                false => assert!(actual.iter().all(|x| x.is_nan()), "{what}: it is nobody's"),
            }
        }
    }
}

/// What a slot holds of the layer, and around it.
fn split(slot: &[f32]) -> (&[f32], [f32; 2 * AROUND]) {
    let end = slot.len() - AROUND;
    let around = std::array::from_fn(|i| {
        if i < AROUND {
            slot[i]
        } else {
            slot[end + i - AROUND]
        }
    });
    (&slot[AROUND..end], around)
}

/// Compares sums by the size of what they are sums of.
fn assert_near(actual: &[f32], expected: &[f32], what: impl std::fmt::Display) {
    let rms = (expected.iter().map(|x| x * x).sum::<f32>() / expected.len() as f32).sqrt();
    let scaled = |values: &[f32]| values.iter().map(|x| x / rms.max(1e-3)).collect::<Vec<_>>();
    assert_close(&scaled(actual), &scaled(expected), 2e-5, what);
}

/// A prefill in steps of any size, beside others or not, gives the same bits as a prefill at once.
pub(super) fn steps_dont_matter<O: Ops>(ops: &mut O, _: &Ledger) {
    let mut random = Random::new(21);
    for kind in kinds() {
        let sequences = Sequences::new(&mut random, kind, &[37, 1, 20, 5]);
        let alone: Vec<_> = sequences
            .lens
            .iter()
            .enumerate()
            .map(|(i, &len)| vec![(i, 0..len)])
            .collect();
        let at_once = sequences.run(ops, &alone);
        for size in [1, 3, 8, 40] {
            let steps = sequences.steps(&mut random, size);
            let in_steps = sequences.run(ops, &steps);
            let what = format!("{kind:?} in steps of up to {size}");
            for (actual, expected) in in_steps.0.iter().zip(&at_once.0) {
                assert_same_bits(actual, expected, &what);
            }
            for (actual, expected) in in_steps.1.iter().zip(&at_once.1) {
                assert_same_bits(split(actual).0, split(expected).0, &what);
            }
        }
    }
}
