//! What is taken, refused and given back.

use super::{attention::shape, *};
use crate::{ErrorKind, Kind, Linear};

pub(super) fn refused<T>(result: crate::Result<T>, what: &str) {
    match result {
        Err(error) => assert_eq!(error.kind, ErrorKind::Invalid, "{what}: {error}"),
        Ok(_) => panic!("{what} was accepted"),
    }
}

pub(super) fn wrong_shapes<O: Ops>(ops: &mut O, _: &Ledger) {
    let (mut narrow, mut wide) = (zeros(ops, 4, 32), zeros(ops, 4, 64));
    let mut out = zeros(ops, 4, 64);
    let norm = ops.load_vector(&[1.0; 32]).unwrap();
    let weight = f32_weight(ops, &[0.0; 32 * 48], 48, 32);
    refused(
        ops.rms_norm(&narrow, &norm, 1e-5, 4, &mut wide),
        "a norm to another width",
    );
    refused(
        ops.rms_norm(&wide, &norm, 1e-5, 1, &mut narrow),
        "a norm from another width",
    );
    refused(ops.add(&mut narrow, &wide, 1), "adding another width");
    refused(ops.scale(&mut narrow, 5, 2.0), "more rows than there is room for");
    refused(ops.gather(&wide, &[4], &mut out), "a row that isn't there");
    refused(
        ops.download(&narrow, 4, &mut [0.0; 100]),
        "a download to another size",
    );
    let product = Linear {
        weight: &weight,
        bias: None,
        out: &mut wide,
    };
    refused(
        ops.linear(&narrow, 1, &mut [product]),
        "a product to another width",
    );
    let step = one_row(ops, &[48]);
    refused(
        ops.embed(&weight, &step, &mut narrow),
        "a token outside the table",
    );
    refused(ops.alloc_kv(1, 1, 32, 16, 0), "an empty cache");

    let short = WeightSource {
        name: "short".into(),
        ty: TensorType::Q4_0,
        rows: 2,
        cols: 32,
        data: vec![0; 35].into(),
    };
    refused(
        ops.load_weight(&short, &mut |_| Ok(())),
        "a weight with bytes missing",
    );

    let shape = shape(2, 1, 32);
    let mut kv = ops.alloc_kv(2, 1, 32, 16, 3).unwrap();
    refused(ops.read_block(&kv, 3, &mut [0; 4096]), "a block that isn't there");
    refused(ops.write_block(&mut kv, 0, &[0; 100]), "a block of another size");
    for (position, blocks, layer) in [(16, vec![0], 0), (0, vec![3], 0), (0, vec![0], 2)] {
        let row = StepRow {
            first: 0,
            len: 1,
            position,
            blocks: &blocks,
            state: crate::NO_STATE,
        };
        let step = ops
            .begin(&StepRows {
                tokens: &[0],
                rows: &[row],
            })
            .unwrap();
        refused(
            ops.attention(&wide, &kv, layer, &shape, &step, &mut out),
            "a place outside the cache",
        );
    }
    ops.release_kv(kv).unwrap();
    ops.release_weight(weight).unwrap();
    ops.release_vector(norm).unwrap();
    for tensor in [narrow, wide, out] {
        ops.release_tensor(tensor).unwrap();
    }
}

pub(super) fn releases<O: Ops>(ops: &mut O, ledger: &Ledger) {
    let memory = || {
        ledger
            .entries()
            .into_iter()
            .filter(|e| e.kind == Kind::Memory)
            .map(|e| e.bytes)
            .sum::<u64>()
    };
    // Earlier checks have released everything, and with the last activation any workspace went.
    assert_eq!(memory(), 0, "{:?}", ledger.entries());
    let mut random = Random::new(14);
    let source = weights::random_weight(&mut random, TensorType::Q4_0, 64, 64);
    let mut weight = ops.load_weight(&source, &mut |_| Ok(())).unwrap();
    let vector = ops.load_vector(&[1.0; 100]).unwrap();
    let (x, mut out) = (upload(ops, &[1.0; 640], 64), zeros(ops, 10, 64));
    let product = Linear {
        weight: &weight,
        bias: None,
        out: &mut out,
    };
    ops.linear(&x, 10, &mut [product]).unwrap();
    let kv = ops.alloc_kv(2, 2, 64, 16, 4).unwrap();
    let footprint = ops.footprint(&weight);
    let taken = memory();
    assert!(taken >= footprint.store + footprint.derived + 400);

    let derived = ops.release_derived(&mut weight).unwrap();
    assert_eq!(derived, footprint.derived);
    assert_eq!(ops.footprint(&weight).derived, 0);
    let mut released = derived + ops.release_weight(weight).unwrap();
    assert_eq!(released, footprint.store + footprint.derived);
    released += ops.release_vector(vector).unwrap() + ops.release_kv(kv).unwrap();
    released += ops.release_tensor(x).unwrap() + ops.release_tensor(out).unwrap();
    assert_eq!(released, taken);
    assert_eq!(memory(), 0);
}
