//! Embedding and products, over every tensor type.

use super::*;
use crate::Linear;
use half::{bf16, f16};

/// Random blocks of a type, with values of about 1.
pub(super) fn random_weight(random: &mut Random, ty: TensorType, rows: usize, cols: usize) -> WeightSource {
    // Where each block keeps its f16 scale and minimum, and how large their codes' values are.
    let (halves, size): (&[usize], f32) = match ty {
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => (&[], 1.0),
        TensorType::Q4_0 | TensorType::Q5_0 => (&[0], 0.1),
        TensorType::Q4_1 | TensorType::Q5_1 => (&[0, 2], 0.1),
        TensorType::Q8_0 => (&[0], 0.01),
        TensorType::Q2_K => (&[80, 82], 0.05),
        TensorType::Q3_K => (&[108], 0.01),
        TensorType::Q4_K | TensorType::Q5_K => (&[0, 2], 0.002),
        TensorType::Q6_K => (&[208], 0.001),
    };
    let mut data = Vec::new();
    for _ in 0..rows * cols / ty.block_len() {
        let start = data.len();
        match ty {
            TensorType::F32 => data.extend(random.normal().to_le_bytes()),
            TensorType::F16 => data.extend(f16::from_f32(random.normal()).to_le_bytes()),
            TensorType::BF16 => data.extend(bf16::from_f32(random.normal()).to_le_bytes()),
            _ => data.extend((0..ty.block_bytes()).map(|_| random.bits() as u8)),
        }
        for at in halves {
            let half = f16::from_f32(random.normal() * size).to_le_bytes();
            data[start + at..start + at + 2].copy_from_slice(&half);
        }
    }
    WeightSource {
        name: format!("{} {rows} × {cols}", ty.name()),
        ty,
        rows,
        cols,
        data: data.into(),
    }
}

pub(super) fn embed<O: Ops>(ops: &mut O, _: &Ledger) {
    fn rows<O: Ops>(ops: &mut O, source: &WeightSource, tokens: &[u32]) -> Vec<f32> {
        let table = ops.load_weight(source, &mut |_| Ok(())).unwrap();
        let mut out = zeros(ops, tokens.len(), source.cols);
        let step = one_row(ops, tokens);
        ops.embed(&table, &step, &mut out).unwrap();
        let values = take(ops, out, tokens.len(), source.cols);
        ops.release_weight(table).unwrap();
        values
    }
    let mut random = Random::new(5);
    // Rows of several blocks, and rows that fill no tile.
    let odd = [
        (TensorType::F16, 33),
        (TensorType::BF16, 129),
        (TensorType::Q4_0, 32),
    ];
    for (ty, cols) in TensorType::ALL.map(|ty| (ty, 512)).into_iter().chain(odd) {
        let source = random_weight(&mut random, ty, 37, cols);
        let tokens: Vec<u32> = (0..90).map(|_| random.below(37) as u32).collect();
        for tokens in [&tokens[..], &[36], &[0, 0]] {
            let (actual, expected) = (
                rows(ops, &source, tokens),
                rows(&mut reference(), &source, tokens),
            );
            assert_same_bits(&actual, &expected, &source.name);
        }
    }
}

pub(super) fn linear<O: Ops>(ops: &mut O, _: &Ledger) {
    let mut random = Random::new(6);
    for ty in TensorType::ALL {
        for rows in [1, 3, 13, 32, 33, 130] {
            check(ops, &mut random, ty, rows, 512, [48, 16, 33]);
        }
    }
}

/// Numbers of rows, columns and outputs around those of a tile, of one type of each kind of block.
pub(super) fn linear_edges<O: Ops>(ops: &mut O, _: &Ledger) {
    const ROWS: [usize; 13] = [1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 127, 128, 129];
    const OUTPUTS: [[usize; 3]; 2] = [[15, 16, 17], [63, 64, 65]];
    let mut random = Random::new(17);
    for (ty, cols) in [
        (TensorType::Q4_0, &[32, 64, 288, 512][..]),
        (TensorType::Q5_K, &[256, 2304]),
        (TensorType::F16, &[31, 32, 33]),
        (TensorType::BF16, &[40, 96]),
        (TensorType::F32, &[1, 33]),
    ] {
        for &cols in cols {
            for (i, rows) in ROWS.into_iter().enumerate() {
                check(ops, &mut random, ty, rows, cols, OUTPUTS[i % 2]);
            }
        }
    }
}

/// Checks products of an activation with weights of so many outputs, of which all but the first have a bias.
fn check<O: Ops>(
    ops: &mut O,
    random: &mut Random,
    ty: TensorType,
    rows: usize,
    cols: usize,
    outputs: [usize; 3],
) {
    let sources = outputs.map(|outputs| random_weight(random, ty, outputs, cols));
    let biases = [
        None,
        Some(random.normals(outputs[1])),
        Some(random.normals(outputs[2])),
    ];
    let x = random.normals(rows * cols);
    let actual = products(ops, &x, &sources, &biases);
    let expected = products(&mut reference(), &x, &sources, &biases);
    for ((actual, expected), source) in actual.iter().zip(&expected).zip(&sources) {
        // Sums of terms of about 1; a backend may round its activations and weights to f16.
        let rms = (expected.iter().map(|x| x * x).sum::<f32>() / expected.len() as f32).sqrt();
        let scaled = |values: &[f32]| values.iter().map(|x| x / rms).collect::<Vec<_>>();
        assert_close(
            &scaled(actual),
            &scaled(expected),
            3e-3,
            format_args!("{} of {rows} rows", source.name),
        );
    }
}

fn products<O: Ops>(
    ops: &mut O,
    x: &[f32],
    sources: &[WeightSource],
    biases: &[Option<Vec<f32>>],
) -> Vec<Vec<f32>> {
    let cols = sources[0].cols;
    let rows = x.len() / cols;
    let x = upload(ops, x, cols);
    let weights: Vec<_> = sources
        .iter()
        .map(|source| ops.load_weight(source, &mut |_| Ok(())).unwrap())
        .collect();
    let load = |bias: &Option<Vec<f32>>| bias.as_ref().map(|bias| ops.load_vector(bias).unwrap());
    let biases: Vec<_> = biases.iter().map(load).collect();
    let mut outs: Vec<_> = sources
        .iter()
        .map(|source| zeros(ops, rows, source.rows))
        .collect();
    let parts = weights.iter().zip(&biases).zip(&mut outs);
    let mut products: Vec<_> = parts
        .map(|((weight, bias), out)| Linear {
            weight,
            bias: bias.as_ref(),
            out,
        })
        .collect();
    ops.linear(&x, rows, &mut products).unwrap();
    let outs = outs.into_iter().zip(sources);
    let values = outs
        .map(|(out, source)| take(ops, out, rows, source.rows))
        .collect();
    ops.release_tensor(x).unwrap();
    for weight in weights {
        ops.release_weight(weight).unwrap();
    }
    for bias in biases.into_iter().flatten() {
        ops.release_vector(bias).unwrap();
    }
    values
}
