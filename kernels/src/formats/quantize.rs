//! Quantisation of f32 to the formats that a load can make.

use crate::{Error, Result, TensorType};
use half::f16;

/// The largest code of a byte with sign.
const MAX_BYTE: f32 = 127.0;
/// The largest 4-bit code.
const MAX_NIBBLE: f32 = 15.0;
/// The largest 6-bit scale.
const MAX_SCALE: f32 = 63.0;
/// 1.5 · 2²³: what is added to it is rounded to a whole number.
const ROUNDING: f32 = 12_582_912.0;
/// Elements that share a scale in Q4_K.
const GROUP: usize = 32;

/// Quantises `values` to `out`, which is what they take: [`TensorType::Q8_0`] or [`TensorType::Q4_K`].
///
/// [`crate::ErrorKind::Invalid`] for other types, and where `out` isn't as long.
pub fn quantize(ty: TensorType, values: &[f32], out: &mut [u8]) -> Result<()> {
    if ty.bytes_of(values.len()) != Some(out.len()) {
        return Err(Error::invalid(format!(
            "{} values of {} don't take {} bytes",
            values.len(),
            ty.name(),
            out.len()
        )));
    }
    match ty {
        TensorType::Q8_0 => blocks(values, out, q8_0),
        TensorType::Q4_K => blocks(values, out, q4_k),
        other => {
            return Err(Error::invalid(format!(
                "nothing is quantised to {} here",
                other.name()
            )));
        }
    }
    Ok(())
}

fn blocks<const LEN: usize, const BYTES: usize>(
    values: &[f32],
    out: &mut [u8],
    one: impl Fn(&[f32; LEN], &mut [u8; BYTES]),
) {
    let (values, out) = (values.as_chunks().0, out.as_chunks_mut().0);
    for (values, block) in values.iter().zip(out) {
        one(values, block);
    }
}

/// The scale is the largest magnitude's over 127; codes are rounded half away from 0.
fn q8_0(values: &[f32; 32], block: &mut [u8; 34]) {
    let most = values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let scale = most / MAX_BYTE;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let (head, codes) = block.split_at_mut(2);
    head.copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    for (code, x) in codes.iter_mut().zip(values) {
        *code = ((x * inverse).round() as i8).cast_unsigned();
    }
}

/// Each group's scale and minimum are those of the least square error among a few that nearly span its range; then
/// they are rounded to 6 bits, and the codes are chosen for what is left of them.
fn q4_k(values: &[f32; 256], block: &mut [u8; 144]) {
    let (groups, _) = values.as_chunks::<GROUP>();
    let mut fits = [Fit::default(); 8];
    for (fit, group) in fits.iter_mut().zip(groups) {
        *fit = Fit::best(group);
    }
    // Rounded to f16 before the 6-bit scales are chosen, since that is what they will be multiplied by.
    let unit = |of: fn(&Fit) -> f32| f16::from_f32(fits.iter().map(of).fold(0.0, f32::max) / MAX_SCALE);
    let (scale, min) = (unit(|fit| fit.scale), unit(|fit| fit.min));
    let steps = |x: f32, unit: f16| match unit.to_f32() {
        0.0 => 0,
        unit => (x / unit).round().min(MAX_SCALE) as u8,
    };
    let (head, codes) = block.split_at_mut(16);
    head[..2].copy_from_slice(&scale.to_le_bytes());
    head[2..4].copy_from_slice(&min.to_le_bytes());
    let packed = &mut head[4..];
    packed.fill(0);
    codes.fill(0);
    for (index, (fit, group)) in fits.iter().zip(groups).enumerate() {
        let (s, m) = (steps(fit.scale, scale), steps(fit.min, min));
        pack_scale_and_min(packed, index, s, m);
        let rounded = Fit {
            scale: scale.to_f32() * f32::from(s),
            min: min.to_f32() * f32::from(m),
        };
        let bytes = &mut codes[index / 2 * GROUP..][..GROUP];
        for (byte, code) in bytes.iter_mut().zip(rounded.codes(group)) {
            *byte |= (code as u8) << (index % 2 * 4);
        }
    }
}

/// The inverse of reading them: the first four groups have theirs in the low bits of bytes 0–3 and 4–7, the others'
/// low nibbles are bytes 8–11, and their top two bits those that were left.
fn pack_scale_and_min(packed: &mut [u8], group: usize, scale: u8, min: u8) {
    if group < 4 {
        packed[group] |= scale;
        packed[group + 4] |= min;
    } else {
        packed[group + 4] |= scale & 15 | min << 4;
        packed[group - 4] |= scale >> 4 << 6;
        packed[group] |= min >> 4 << 6;
    }
}

/// `x ≈ scale · code - min`, both at least 0.
#[derive(Clone, Copy, Default)]
struct Fit {
    scale: f32,
    min: f32,
}

impl Fit {
    fn best(group: &[f32; GROUP]) -> Self {
        let low = group.iter().copied().fold(0.0, f32::min);
        let high = group.iter().copied().fold(0.0, f32::max);
        let span = high - low;
        if span <= 0.0 {
            return Self::default();
        }
        let sum = dot(group, &[1.0; GROUP]);
        let mut best = (f32::INFINITY, Self::default());
        for step in -4..=4 {
            let start = Self {
                scale: span / (MAX_NIBBLE + 0.25 * step as f32),
                min: -low,
            };
            let fit = start.refined(group, sum);
            let error = fit.error(group);
            if error < best.0 {
                best = (error, fit);
            }
        }
        best.1
    }

    /// The codes of values.
    fn codes(self, group: &[f32; GROUP]) -> [f32; GROUP] {
        if self.scale == 0.0 {
            return [0.0; GROUP];
        }
        let inverse = 1.0 / self.scale;
        // Rounds what is small: the sum has no room for a fraction.
        let round = |x: f32| (x + ROUNDING) - ROUNDING;
        group.map(|x| round(((x + self.min) * inverse).clamp(0.0, MAX_NIBBLE)))
    }

    fn error(self, group: &[f32; GROUP]) -> f32 {
        let codes = self.codes(group);
        let off = std::array::from_fn(|i| self.scale * codes[i] - self.min - group[i]);
        dot(&off, &off)
    }

    /// Scale and minimum of the least square error for the codes that this one gives; `sum` is that of the values.
    fn refined(self, group: &[f32; GROUP], sum: f32) -> Self {
        let (n, codes) = (GROUP as f32, self.codes(group));
        let (q, qq, xq) = (
            dot(&codes, &[1.0; GROUP]),
            dot(&codes, &codes),
            dot(group, &codes),
        );
        let determinant = n * qq - q * q;
        if determinant <= 0.0 {
            return self;
        }
        let fit = Self {
            scale: (n * xq - sum * q) / determinant,
            min: (q * xq - qq * sum) / determinant,
        };
        match fit {
            Self { scale, .. } if scale <= 0.0 => self,
            Self { min, .. } if min < 0.0 => Self {
                scale: (xq / qq).max(0.0),
                min: 0.0,
            },
            fit => fit,
        }
    }
}

/// Sums in lanes that a vector unit has.
fn dot(a: &[f32; GROUP], b: &[f32; GROUP]) -> f32 {
    let mut lanes = [0.0; 8];
    for (a, b) in a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0) {
        for (sum, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::quantize;
    use crate::{TensorType, formats::dequantize};

    /// SplitMix64, as numbers around 0 with a few large ones.
    fn values(count: usize) -> Vec<f32> {
        let mut state = 5u64;
        let mut next = || {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next() * next() * 0.2).collect()
    }

    fn back(ty: TensorType, values: &[f32]) -> Vec<f32> {
        let mut bytes = vec![0xAA; ty.bytes_of(values.len()).unwrap()];
        quantize(ty, values, &mut bytes).unwrap();
        let mut out = vec![0.0; values.len()];
        dequantize(ty, &bytes, &mut out).unwrap();
        out
    }

    /// Root of the mean square error, relative to the values'.
    fn error(values: &[f32], got: &[f32]) -> f32 {
        let square = |x: f32| x * x;
        let off: f32 = values.iter().zip(got).map(|(a, b)| square(a - b)).sum();
        (off / values.iter().copied().map(square).sum::<f32>()).sqrt()
    }

    /// Made by `fixture.py` with the `gguf` package: values, then blocks.
    const FIXTURE: &[u8] = include_bytes!("quantize.bin");

    #[test]
    fn q8_0_equals_the_gguf_package_byte_for_byte() {
        let blocks = FIXTURE.len() / (32 * 4 + 34);
        let (values, expected) = FIXTURE.split_at(blocks * 32 * 4);
        let values: Vec<f32> = values
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect();
        let mut got = vec![0xAA; expected.len()];
        quantize(TensorType::Q8_0, &values, &mut got).unwrap();
        for (i, (got, expected)) in got.chunks(34).zip(expected.chunks(34)).enumerate() {
            assert_eq!(got, expected, "block {i}");
        }
        assert!(blocks > 50);
    }

    #[test]
    fn what_is_read_back_is_near() {
        let values = values(1 << 14);
        let bytes = back(TensorType::Q8_0, &values);
        for (values, got) in values.chunks(32).zip(bytes.chunks(32)) {
            let most = values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            // Half a step, and what f16 rounds of the scale.
            let bound = most / 127.0 * 0.5 + most / 2048.0;
            for (x, y) in values.iter().zip(got) {
                assert!((x - y).abs() <= bound, "{x} became {y}");
            }
        }
        assert!(error(&values, &bytes) < 0.01);
        let nibbles = error(&values, &back(TensorType::Q4_K, &values));
        assert!(nibbles < 0.09, "{nibbles}");
    }

    #[test]
    fn what_a_block_can_hold_exactly_is_kept() {
        let zeros = [0.0; 256];
        let ramp: Vec<f32> = (0..256).map(|i| (i % 16) as f32 * 0.5 - 1.5).collect();
        let positive: Vec<f32> = (0..256).map(|i| 1.0 + (i % 7) as f32).collect();
        assert_eq!(back(TensorType::Q4_K, &zeros), zeros);
        assert_eq!(back(TensorType::Q8_0, &zeros[..32]), zeros[..32]);
        assert!(error(&ramp, &back(TensorType::Q4_K, &ramp)) < 2e-3);
        assert!(error(&positive, &back(TensorType::Q4_K, &positive)) < 0.06);
    }

    #[test]
    fn other_types_and_lengths_are_refused() {
        assert!(quantize(TensorType::Q8_0, &[0.0; 33], &mut [0; 34]).is_err());
        assert!(quantize(TensorType::Q8_0, &[0.0; 32], &mut [0; 33]).is_err());
        let error = quantize(TensorType::Q6_K, &[0.0; 256], &mut [0; 210]).unwrap_err();
        assert!(error.message.contains("Q6_K"));
    }
}
