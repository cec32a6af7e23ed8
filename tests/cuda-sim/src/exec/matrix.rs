//! Matrix instructions: `ldmatrix` and `mma.sync`, with the fragment layouts of the PTX ISA.
//!
//! In a fragment, lane `l` holds row or column `l / 4`, and the pair or quadruple `l % 4` within it.

use super::access::allowed;
use super::half::{brain, half};
use super::{Inst, LANES, Run, Warp, space};
use crate::arena::WRITTEN;
use crate::code::Code;

/// `ldmatrix`, by count of matrices: `more[..count]` destinations, `a` shared address (64-bit where `b` is
/// 1) plus `imm`, `c` is 1 for `.trans`.
pub(crate) static MATRIX_LOADS: [Run; 3] = [load_matrix::<1>, load_matrix::<2>, load_matrix::<4>];

/// `mma.sync` by its modifiers: the function, and how many registers A, B and C have. Registers in `more`:
/// D, A, B, C in turn.
pub(crate) static MULTIPLIES: &[(&str, Run, [usize; 3])] = &[
    (
        "m16n8k16.row.col.f32.f16.f16.f32",
        multiply_half::<16, false>,
        [4, 2, 4],
    ),
    (
        "m16n8k16.row.col.f32.bf16.bf16.f32",
        multiply_half::<16, true>,
        [4, 2, 4],
    ),
    (
        "m16n8k8.row.col.f32.f16.f16.f32",
        multiply_half::<8, false>,
        [2, 1, 4],
    ),
    (
        "m16n8k8.row.col.f32.bf16.bf16.f32",
        multiply_half::<8, true>,
        [2, 1, 4],
    ),
    ("m16n8k32.row.col.s32.s8.s8.s32", multiply_bytes::<32>, [4, 2, 4]),
    ("m16n8k16.row.col.s32.s8.s8.s32", multiply_bytes::<16>, [2, 1, 4]),
];

vector_fn! {
fn load_matrix<const COUNT: usize>(w: &mut Warp, i: &Inst, mask: u32) {
    if mask != !0 {
        return w.fail(i.line, 0, Code::LAUNCH_FAILED, 0, "ldmatrix with inactive lanes");
    }
    let (at, mut rows) = if i.b == 1 {
        w.offsets::<{ space::SHARED }, true>(i.a, i.imm)
    } else {
        w.offsets::<{ space::SHARED }, false>(i.a, i.imm)
    };
    // Lanes 8m to 8m + 7 give the rows of matrix m.
    let givers = if COUNT == 4 { !0 } else { (1u32 << (8 * COUNT)) - 1 };
    if allowed::<16>(at, &mut rows, givers, WRITTEN).is_none() {
        return w.refuse_access(i.line, space::SHARED, (at, &rows), 16, givers, WRITTEN);
    }
    for matrix in 0..COUNT {
        // SAFETY: each of the rows' 16 bytes were checked above; they are aligned.
        let row = |row: usize| unsafe { at.data.add(rows[matrix * 8 + row] as usize).cast::<[u16; 8]>().read() };
        let elements: [[u16; 8]; 8] = std::array::from_fn(row);
        let mut out = [0u32; LANES];
        for (lane, out) in out.iter_mut().enumerate() {
            let (row, pair) = (lane / 4, 2 * (lane % 4));
            let [low, high] = if i.c == 1 {
                [elements[pair][row], elements[pair + 1][row]]
            } else {
                [elements[row][pair], elements[row][pair + 1]]
            };
            *out = low as u32 | (high as u32) << 16;
        }
        w.set_r(i.more[matrix], &out, mask);
    }
}
}

vector_fn! {
/// D = A B + C for A of 16 × K and B of K × 8 in 16-bit floats, in f32: each product is exact, and the sum
/// runs over k in order.
fn multiply_half<const K: usize, const BRAIN: bool>(w: &mut Warp, i: &Inst, mask: u32) {
    if mask != !0 {
        return w.fail(i.line, 0, Code::LAUNCH_FAILED, 0, "mma with inactive lanes");
    }
    let (mut a, mut b) = ([[0f32; 16]; 16], [[0f32; 8]; 16]);
    for register in 0..K / 4 {
        // A lane's two values are neighbours in a row, and a row's four lanes follow each other.
        let values = unpack::<BRAIN>(w.r(i.more[4 + register]));
        let (rows, columns) = (8 * (register & 1), 8 * (register >> 1));
        for row in 0..8 {
            a[rows + row][columns..columns + 8].copy_from_slice(&values[8 * row..8 * row + 8]);
        }
    }
    for register in 0..K / 8 {
        let values = unpack::<BRAIN>(w.r(i.more[4 + K / 4 + register]));
        for column in 0..8 {
            for k in 0..8 {
                b[8 * register + k][column] = values[8 * column + k];
            }
        }
    }
    let mut sum = [[0f32; 8]; 16];
    for (row, sum) in sum.iter_mut().enumerate() {
        let first = 4 + K / 4 + K / 8 + 2 * (row / 8);
        let (even, odd) = (w.r(i.more[first]), w.r(i.more[first + 1]));
        for pair in 0..4 {
            let lane = row % 8 * 4 + pair;
            sum[2 * pair] = f32::from_bits(even[lane]);
            sum[2 * pair + 1] = f32::from_bits(odd[lane]);
        }
        for k in 0..K {
            for column in 0..8 {
                sum[column] = a[row][k].mul_add(b[k][column], sum[column]);
            }
        }
    }
    for register in 0..4 {
        let mut out = [0; LANES];
        for (lane, out) in out.iter_mut().enumerate() {
            *out = sum[lane / 4 + 8 * (register >> 1)][2 * (lane % 4) + (register & 1)].to_bits();
        }
        w.set_r(i.more[register], &out, mask);
    }
}
}

/// The two halves of each lane's register as floats, lane after lane.
#[inline(always)]
fn unpack<const BRAIN: bool>(bits: &[u32; LANES]) -> [f32; 2 * LANES] {
    let mut values = [0.0; 2 * LANES];
    for lane in 0..LANES {
        for part in 0..2 {
            let bits = bits[lane] >> (16 * part) & 0xffff;
            values[2 * lane + part] = if BRAIN { brain(bits) } else { half(bits) };
        }
    }
    values
}

vector_fn! {
/// The same for A of 16 × K and B of K × 8 in signed bytes, in wrapping 32-bit integers.
fn multiply_bytes<const K: usize>(w: &mut Warp, i: &Inst, mask: u32) {
    if mask != !0 {
        return w.fail(i.line, 0, Code::LAUNCH_FAILED, 0, "mma with inactive lanes");
    }
    let (mut a, mut b, mut sum) = ([[0i32; 32]; 16], [[0i32; 8]; 32], [[0i32; 8]; 16]);
    for register in 0..K / 8 {
        let (bits, rows, columns) = (w.r(i.more[4 + register]), 8 * (register & 1), 16 * (register >> 1));
        for lane in 0..LANES {
            for (at, byte) in bits[lane].to_le_bytes().into_iter().enumerate() {
                a[rows + lane / 4][columns + 4 * (lane % 4) + at] = byte as i8 as i32;
            }
        }
    }
    for register in 0..K / 16 {
        let bits = w.r(i.more[4 + K / 8 + register]);
        for lane in 0..LANES {
            for (at, byte) in bits[lane].to_le_bytes().into_iter().enumerate() {
                b[16 * register + 4 * (lane % 4) + at][lane / 4] = byte as i8 as i32;
            }
        }
    }
    for register in 0..4 {
        let bits = w.r(i.more[4 + K / 8 + K / 16 + register]);
        for lane in 0..LANES {
            sum[lane / 4 + 8 * (register >> 1)][2 * (lane % 4) + (register & 1)] = bits[lane] as i32;
        }
    }
    for row in 0..16 {
        for k in 0..K {
            let x = a[row][k];
            for column in 0..8 {
                sum[row][column] = sum[row][column].wrapping_add(x.wrapping_mul(b[k][column]));
            }
        }
    }
    for register in 0..4 {
        let mut out = [0; LANES];
        for lane in 0..LANES {
            out[lane] = sum[lane / 4 + 8 * (register >> 1)][2 * (lane % 4) + (register & 1)] as u32;
        }
        w.set_r(i.more[register], &out, mask);
    }
}
}
