//! Slots of recurrent states, and what the operations with one refuse.

use super::{
    recurrent::{Kind, Layer, read},
    resources::refused,
    *,
};
use crate::{DeltaShape, NO_STATE, Place, Result, ScanShape};

/// Slots are copied, read and written whole, and given back.
pub(super) fn slots<O: Ops>(ops: &mut O, ledger: &Ledger) {
    let mut random = Random::new(22);
    let before = ledger.total();
    for values in [1, 7, 1000] {
        let contents: Vec<_> = (0..5).map(|_| random.normals(values)).collect();
        let mut state = ops.alloc_state("test slots", 5, values).unwrap();
        let mut other = ops.alloc_state("test slots", 3, values).unwrap();
        assert_eq!(read(ops, &state, 4, values), vec![0.0; values]);
        for (slot, values) in contents.iter().enumerate() {
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            ops.write_state(&mut state, slot as u32, &bytes).unwrap();
        }
        ops.copy_state(&state, 3, &mut other, 1).unwrap();
        ops.copy_state(&other, 1, &mut state, 0).unwrap();
        for (slot, from) in [3, 1, 2, 3, 4].into_iter().enumerate() {
            assert_same_bits(
                &read(ops, &state, slot as u32, values),
                &contents[from],
                format_args!("slot {slot}"),
            );
        }
        for (slot, expected) in [vec![0.0; values], contents[3].clone(), vec![0.0; values]]
            .iter()
            .enumerate()
        {
            assert_same_bits(
                &read(ops, &other, slot as u32, values),
                expected,
                format_args!("copy {slot}"),
            );
        }

        let mut wider = ops.alloc_state("test slots", 1, values + 1).unwrap();
        let mut bytes = vec![0; values * 4];
        refused(ops.copy_state(&state, 0, &mut wider, 0), "a copy to a wider slot");
        refused(
            ops.copy_state(&state, 5, &mut other, 0),
            "a copy of a slot that isn't there",
        );
        refused(
            ops.copy_state(&state, 0, &mut other, 3),
            "a copy to a slot that isn't there",
        );
        refused(ops.read_state(&state, 5, &mut bytes), "a slot that isn't there");
        refused(ops.write_state(&mut state, NO_STATE, &bytes), "no slot");
        refused(
            ops.read_state(&state, 0, &mut bytes[1..]),
            "a slot of another size",
        );
        refused(
            ops.write_state(&mut state, 0, &bytes[1..]),
            "a slot of another size",
        );

        let (bytes, entries) = ledger.owned_by("test slots");
        assert!(entries >= 3 && bytes >= 4 * (8 * values as u64 + values as u64 + 1));
        let released = [state, other, wider].map(|state| ops.release_state(state).unwrap());
        assert_eq!(released.iter().sum::<u64>(), bytes);
        assert_eq!(ledger.total(), before);
    }
    refused(ops.alloc_state("test slots", 0, 4), "no slots");
    refused(ops.alloc_state("test slots", 4, 0), "empty slots");
    refused(
        ops.alloc_state("test slots", usize::MAX, 4),
        "more than can be addressed",
    );
}

/// Shapes that disagree, and places outside the state.
pub(super) fn refusals<O: Ops>(ops: &mut O, _: &Ledger) {
    let scan = ScanShape {
        heads: 2,
        head_dim: 4,
        groups: 1,
        state_dim: 3,
    };
    let delta = DeltaShape {
        key_heads: 1,
        value_heads: 2,
        key_dim: 4,
        value_dim: 3,
    };
    let conv = Kind::Conv {
        channels: 6,
        taps: 3,
        bias: true,
    };
    let mut random = Random::new(23);
    for kind in [conv, Kind::Scan(scan), Kind::Delta(delta)] {
        let good = Call::new(kind);
        good.make(ops, &mut random).unwrap();
        let values = kind.state();
        for (call, what) in [
            (
                Call {
                    offset: 1,
                    ..good.clone()
                },
                "values past the slot",
            ),
            (
                Call {
                    offset: usize::MAX,
                    ..good.clone()
                },
                "an offset past everything",
            ),
            (
                Call {
                    values: values - 1,
                    ..good.clone()
                },
                "a slot that is too small",
            ),
            (
                Call {
                    slot: 2,
                    ..good.clone()
                },
                "a slot that isn't there",
            ),
            (
                Call {
                    slot: NO_STATE,
                    ..good.clone()
                },
                "no slot",
            ),
            (
                Call {
                    out: [kind.outputs() + 1, 2],
                    ..good.clone()
                },
                "another width",
            ),
            (
                Call {
                    out: [kind.outputs(), 1],
                    ..good.clone()
                },
                "too few rows",
            ),
        ] {
            refused(call.make(ops, &mut random), &format!("{kind:?}: {what}"));
        }
        for i in 0..good.inputs.len() {
            for change in [[1, 0], [0, usize::MAX]] {
                let mut call = good.clone();
                (0..2)
                    .for_each(|side| call.inputs[i][side] = call.inputs[i][side].wrapping_add(change[side]));
                refused(
                    call.make(ops, &mut random),
                    &format!("{kind:?}: input {i} changed by {change:?}"),
                );
            }
        }
        for i in 0..Layer::new(&mut random, kind).vectors.len() {
            let call = Call {
                short: Some(i),
                ..good.clone()
            };
            refused(
                call.make(ops, &mut random),
                &format!("{kind:?}: vector {i} is short"),
            );
        }
    }
    for (kind, what) in [
        (
            Kind::Scan(ScanShape { groups: 3, ..scan }),
            "heads that aren't whole groups",
        ),
        (Kind::Scan(ScanShape { groups: 0, ..scan }), "no groups"),
        (
            Kind::Delta(DeltaShape {
                key_heads: 3,
                ..delta
            }),
            "value heads that aren't whole groups",
        ),
        (
            Kind::Delta(DeltaShape {
                key_heads: 0,
                ..delta
            }),
            "no key heads",
        ),
    ] {
        refused(Call::new(kind).make(ops, &mut random), what);
    }
    let mut call = Call::new(conv);
    call.kind = Kind::Conv {
        channels: 6,
        taps: 0,
        bias: false,
    };
    refused(call.make(ops, &mut random), "no taps");
}

/// What a call of a layer is given.
#[derive(Clone)]
struct Call {
    kind: Kind,
    /// Columns and rows.
    inputs: Vec<[usize; 2]>,
    out: [usize; 2],
    values: usize,
    offset: usize,
    slot: u32,
    /// A vector that lacks a value.
    short: Option<usize>,
}

impl Call {
    fn new(kind: Kind) -> Self {
        Self {
            kind,
            inputs: kind.inputs().into_iter().map(|cols| [cols, 2]).collect(),
            out: [kind.outputs(), 2],
            values: kind.state(),
            offset: 0,
            slot: 1,
            short: None,
        }
    }

    fn make<O: Ops>(&self, ops: &mut O, random: &mut Random) -> Result<()> {
        let mut layer = Layer::new(random, self.kind);
        if let Some(i) = self.short {
            layer.vectors[i].pop();
        }
        let row = StepRow {
            first: 0,
            len: 2,
            position: 0,
            blocks: &[],
            state: self.slot,
        };
        let step = ops
            .begin(&StepRows {
                tokens: &[0; 2],
                rows: &[row],
            })
            .unwrap();
        let inputs: Vec<_> = self
            .inputs
            .iter()
            .map(|&[cols, rows]| zeros(ops, rows, cols))
            .collect();
        let mut out = zeros(ops, self.out[1], self.out[0]);
        let mut state = ops.alloc_state("test", 2, self.values).unwrap();
        let place = Place {
            state: &mut state,
            offset: self.offset,
        };
        let result = layer.call(ops, &inputs, place, &step, &mut out);
        ops.release_state(state).unwrap();
        for tensor in inputs.into_iter().chain([out]) {
            ops.release_tensor(tensor).unwrap();
        }
        result
    }
}
