//! The product of one weight panel with one tile of activations.
//!
//! An output is one chain over the groups in ascending order: `sum = fma(dot * 1.0, scale_w * scale_x, sum)`,
//! then the minimum's term. `dot` is an integer and so exact. No step depends on how many rows the tile has,
//! which is why a token's values don't depend on what else is in the batch.

use super::{
    dispatch::Call,
    format::{Format, GROUP, LANES, PAIRS, Scales},
    quantize::{Field, GROUP_WORDS},
    simd::Simd,
};

/// Parts of a group that are unpacked together.
const QUARTERS: usize = 4;

macro_rules! each {
    ($i:ident in [$($n:literal)*] $body:block) => { $({ const $i: usize = $n; $body })* };
}

/// Multiplies one panel with a tile of `M` rows.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(super) unsafe fn multiply<S: Simd, F: Format, const M: usize>(call: Call<'_>) {
    let Call {
        panel,
        tile,
        groups,
        out,
    } = call;
    assert!(panel.len() == F::SHAPE.panel_bytes(groups) && tile.len() == groups * GROUP_WORDS * M);
    let (panel, mut tile) = (panel.as_ptr(), tile.as_ptr());
    // SAFETY: the caller's promise; offsets stay inside the panel by `Shape::record`, and inside the tile by its
    // definition, since both have the lengths that were checked above.
    unsafe {
        let mut sums = [S::splat_float(0.0); M];
        for group in 0..groups {
            let record = panel.add(group / F::RECORD.groups * F::RECORD.bytes);
            let group = group % F::RECORD.groups;
            prefetch::<S, F>(record, group);
            let words = record.add(group * F::SHAPE.group_bytes());
            let parts = if F::SHAPE.halves() { 2 } else { 1 };
            for part in 0..parts {
                let mut dots = start::<S, F, M>(tile, part);
                if M == 1 && F::SHAPE.bits == 4 {
                    dots[0] = dot_4_bits::<S>(dots[0], words, tile);
                } else {
                    for quarter in part * QUARTERS / parts..(part + 1) * QUARTERS / parts {
                        dot_quarter::<S, F, M>(&mut dots, words, tile, quarter);
                    }
                }
                add_scaled::<S, F, M>(&mut sums, dots, record, tile, group * parts + part);
            }
            tile = tile.add(GROUP_WORDS * M);
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            S::store(sum, out.as_mut_ptr());
        }
    }
}

/// The field of row `row` in a group of a tile of `M` rows.
#[inline(always)]
unsafe fn field<const M: usize>(tile: *const u32, field: Field, row: usize) -> u32 {
    // SAFETY: the fields follow the pairs.
    unsafe { tile.add((PAIRS + field as usize) * M + row).read() }
}

/// The field with minus the sum of what one scale covers.
#[inline(always)]
fn negative_sum<F: Format>(half: usize) -> Field {
    match (F::SHAPE.halves(), half) {
        (false, _) => Field::NegativeSum,
        (true, 0) => Field::NegativeSumFirst,
        (true, _) => Field::NegativeSumSecond,
    }
}

/// What the dot products of a group, or of one of its halves, start from: `-zero * sum of the activations`.
#[inline(always)]
unsafe fn start<S: Simd, F: Format, const M: usize>(tile: *const u32, half: usize) -> [S::I; M] {
    // SAFETY: as in `multiply`.
    unsafe {
        let mut dots = [S::splat(0); M];
        if let Some(zero) = F::SHAPE.zero {
            for (row, dot) in dots.iter_mut().enumerate() {
                let sum = field::<M>(tile, negative_sum::<F>(half), row);
                *dot = S::shl(S::splat(sum.cast_signed()), zero);
            }
        }
        dots
    }
}

/// Adds the products of a quarter of the group's pairs.
#[inline(always)]
unsafe fn dot_quarter<S: Simd, F: Format, const M: usize>(
    dots: &mut [S::I; M],
    words: *const u8,
    tile: *const u32,
    quarter: usize,
) {
    // SAFETY: as in `multiply`.
    unsafe {
        let [low, high] = F::SHAPE.planes();
        let mut tile = tile.add(quarter * PAIRS / QUARTERS * M);
        let low_words = quarter_words::<S>(words, low, quarter);
        let high_words = quarter_words::<S>(words.add(low * GROUP / 8 * LANES), high, quarter);
        for pair in 0..PAIRS / QUARTERS {
            let mut codes = pair_of::<S>(low_words, low, pair);
            if high > 0 {
                let above = pair_of::<S>(high_words, high, pair);
                codes = S::or(codes, S::shl(above, low as u32));
            }
            each!(ROW in [0 1 2 3 4 5 6 7] {
                if ROW < M {
                    dots[ROW] = S::dot_splat::<ROW>(dots[ROW], codes, tile);
                }
            });
            tile = tile.add(M);
        }
    }
}

/// The words of a plane of `bits` bits that hold a quarter of its pairs, in their low bits: one word, and of a
/// plane of 8 bits two.
#[inline(always)]
unsafe fn quarter_words<S: Simd>(plane: *const u8, bits: usize, quarter: usize) -> [S::I; 2] {
    // SAFETY: as in `multiply`.
    unsafe {
        let word = |index: usize| S::load(plane.add(index * 4 * LANES));
        match bits {
            0 => [S::splat(0); 2],
            8 => [word(2 * quarter), word(2 * quarter + 1)],
            4 => [word(quarter); 2],
            _ => [S::shr(word(quarter * bits / 4), (quarter * bits % 4 * 4) as u32); 2],
        }
    }
}

/// Pair `pair` of a quarter's words, as i16 pairs.
#[inline(always)]
unsafe fn pair_of<S: Simd>(words: [S::I; 2], bits: usize, pair: usize) -> S::I {
    // SAFETY: as in `multiply`.
    unsafe {
        match (bits, pair) {
            (8, 0) => S::low_bytes(words[0]),
            (8, 1) => S::high_bytes(words[0]),
            (8, 2) => S::low_bytes(words[1]),
            (8, _) => S::high_bytes(words[1]),
            (4, 3) => S::high_nibbles(words[0]),
            _ => {
                let mask = (1 << bits) - 1;
                S::and(
                    S::shr(words[0], (pair * bits) as u32),
                    S::splat(mask << 16 | mask),
                )
            }
        }
    }
}

/// The dot product of one group with a single row: the codes stay where they are in the word, and the sums
/// are shifted instead, which saves most of the unpacking that a single row doesn't share with others.
///
/// 8 products of a code below 16 << 8 with an i16 are below 2^31, so the sums are exact.
#[inline(always)]
unsafe fn dot_4_bits<S: Simd>(start: S::I, words: *const u8, tile: *const u32) -> S::I {
    // SAFETY: as in `multiply`.
    unsafe {
        let zero = S::splat(0);
        let mut sums = [start, zero, zero, zero];
        for word in 0..GROUP / 8 {
            let codes = S::load(words.add(word * 4 * LANES));
            let tile = tile.add(word * 4);
            sums[0] = S::dot_splat::<0>(sums[0], S::and(codes, S::splat(0x000F_000F)), tile);
            sums[1] = S::dot_splat::<1>(sums[1], S::and(codes, S::splat(0x00F0_00F0)), tile);
            sums[2] = S::dot_splat::<2>(sums[2], S::and(codes, S::splat(0x0F00_0F00)), tile);
            sums[3] = S::dot_splat::<3>(sums[3], S::high_nibbles(codes), tile);
        }
        S::add(
            S::add(sums[0], sums[3]),
            S::add(S::sar(sums[1], 4), S::sar(sums[2], 8)),
        )
    }
}

/// `sums += dots * scale_w * scale_x`, and the minimum's term; `index` counts groups, or half groups.
#[inline(always)]
unsafe fn add_scaled<S: Simd, F: Format, const M: usize>(
    sums: &mut [S::F; M],
    dots: [S::I; M],
    record: *const u8,
    tile: *const u32,
    index: usize,
) {
    // SAFETY: as in `multiply`.
    unsafe {
        let (scale, min) = scale_and_min::<S, F>(record, index);
        for row in 0..M {
            let scale_x = S::splat_float(f32::from_bits(field::<M>(tile, Field::Scale, row)));
            sums[row] = S::mul_add(S::to_float(dots[row]), S::mul(scale, scale_x), sums[row]);
            if F::SHAPE.min {
                let sum_x = match F::SHAPE.halves() {
                    false => S::splat_float(f32::from_bits(field::<M>(tile, Field::ScaledSum, row))),
                    true => {
                        let half = negative_sum::<F>(index % 2);
                        let sum = S::splat(field::<M>(tile, half, row).cast_signed());
                        S::mul(S::to_float(sum), scale_x)
                    }
                };
                sums[row] = S::mul_add(min, sum_x, sums[row]);
            }
        }
    }
}

/// The scales and minimums of a record's group or half group. What minimums multiply is the sum of a group,
/// the negative sum of a half group; K types subtract theirs, so the former are negated here.
#[inline(always)]
unsafe fn scale_and_min<S: Simd, F: Format>(record: *const u8, index: usize) -> (S::F, S::F) {
    // SAFETY: as in `multiply`.
    unsafe {
        let scales = record.add(F::RECORD.scales);
        let mins = record.add(F::RECORD.mins);
        if F::SHAPE.scales == Scales::F16 {
            let at = index * LANES * 2;
            let scale = S::load_f16(scales.add(at));
            return (
                scale,
                if F::SHAPE.min {
                    S::load_f16(mins.add(at))
                } else {
                    scale
                },
            );
        }
        let at = index * LANES;
        let scale = match F::SHAPE.scales {
            Scales::SignedBytes => S::load_i8(scales.add(at)),
            Scales::Nibbles => S::and(S::load_u8(scales.add(at)), S::splat(15)),
            _ => S::load_u8(scales.add(at)),
        };
        let scale = S::mul(
            S::load_f16(record.add(F::RECORD.super_scales)),
            S::to_float(scale),
        );
        if !F::SHAPE.min {
            return (scale, scale);
        }
        let super_min = S::load_f16(record.add(F::RECORD.super_mins));
        if F::SHAPE.scales == Scales::Nibbles {
            let min = S::shr(S::load_u8(scales.add(at)), 4);
            return (scale, S::mul(super_min, S::to_float(min)));
        }
        let super_min = S::mul(super_min, S::splat_float(-1.0));
        (scale, S::mul(super_min, S::to_float(S::load_u8(mins.add(at)))))
    }
}

/// Asks for the lines that come a group later. Lines are then first touched in the order of memory, which a
/// processor's own prefetching relies on; within a group the codes would come before the scales.
#[inline(always)]
unsafe fn prefetch<S: Simd, F: Format>(record: *const u8, group: usize) {
    let step = F::RECORD.bytes / F::RECORD.groups;
    let next = record.wrapping_add((group + 1) * step);
    for line in 0..step.div_ceil(64) {
        // SAFETY: the set is present; the address may be anything.
        unsafe { S::prefetch(next.wrapping_add(line * 64)) };
    }
}
