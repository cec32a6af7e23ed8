//! The packed form of each quantised type.
//!
//! A **panel** is [`LANES`] rows of a weight, cut into **records** of a few **groups** of 32 columns, so that
//! it is read in one stream. A record holds the codes of its groups and then their scales. A group's codes
//! are 32-bit words, a lane a row, plane after plane. A code of `n` bits is the sum of planes: 4 = `[4]`,
//! 5 = `[4, 1]`, 6 = `[4, 2]`, 3 = `[2, 1]`. A word is read in pairs of i16, the form that the multiply-add
//! instructions take, so pair `p` of a word has its first code in the low half of the word and its second one
//! 16 bits higher: in a plane of 4 bits at bits `4p` and `16 + 4p`.
//!
//! Value of a code: `scale * (code - zero)`, or `scale * code + min`.

use crate::TensorType;

/// Rows of a panel.
pub(super) const LANES: usize = 16;

/// Columns of a group.
pub(super) const GROUP: usize = 32;
/// Pairs of columns in a group.
pub(super) const PAIRS: usize = GROUP / 2;
/// How a panel's scales are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scales {
    /// An f16 a group.
    F16,
    /// An f16 a 256 columns, times a byte a group.
    Bytes,
    /// An f16 a 256 columns, times a signed byte a half group.
    SignedBytes,
    /// An f16 a 256 columns, times the low nibble of a byte a half group; its high nibble is the minimum.
    Nibbles,
}

/// What a type's codes mean.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Bits of a code.
    pub(super) bits: usize,
    /// The code that stands for zero is `1 << zero`; `None`: zero does.
    pub(super) zero: Option<u32>,
    /// Whether there are minimums, kept like the scales.
    pub(super) min: bool,
    /// Where the scales are.
    pub(super) scales: Scales,
}

/// The record of a type: byte offsets in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// Groups in it: a super-block's, or as many as keep it a whole number of cache lines.
    pub(super) groups: usize,
    /// Scales: f16, or the bytes that multiply the super-scale.
    pub(super) scales: usize,
    /// Minimums, in the same form.
    pub(super) mins: usize,
    /// Super-scales of the scales.
    pub(super) super_scales: usize,
    /// Super-scales of the minimums.
    pub(super) super_mins: usize,
    /// Its size.
    pub(super) bytes: usize,
}

/// Bytes of an f16 a lane.
const HALVES: usize = LANES * 2;

impl Shape {
    /// The shape of a type, `None` for the float types, which are used as they are.
    pub(super) const fn of(ty: TensorType) -> Option<Self> {
        Some(match ty {
            TensorType::F32 | TensorType::F16 | TensorType::BF16 => return None,
            TensorType::Q4_0 => Q4_0::SHAPE,
            TensorType::Q4_1 => Q4_1::SHAPE,
            TensorType::Q5_0 => Q5_0::SHAPE,
            TensorType::Q5_1 => Q5_1::SHAPE,
            TensorType::Q8_0 => Q8_0::SHAPE,
            TensorType::Q2_K => Q2_K::SHAPE,
            TensorType::Q3_K => Q3_K::SHAPE,
            TensorType::Q4_K => Q4_K::SHAPE,
            TensorType::Q5_K => Q5_K::SHAPE,
            TensorType::Q6_K => Q6_K::SHAPE,
        })
    }

    /// Bytes of one group's codes.
    pub(super) const fn group_bytes(self) -> usize {
        self.bits * GROUP / 8 * LANES
    }

    /// Whether each half of a group has a scale of its own.
    pub(super) const fn halves(self) -> bool {
        matches!(self.scales, Scales::SignedBytes | Scales::Nibbles)
    }

    /// The bits of its planes, the low one first; 0 is none.
    pub(super) const fn planes(self) -> [usize; 2] {
        match self.bits {
            3 => [2, 1],
            5 => [4, 1],
            6 => [4, 2],
            bits => [bits, 0],
        }
    }

    /// The record.
    pub(super) const fn record(self) -> Record {
        let (groups, scale_bytes, min_bytes, super_bytes) = match self.scales {
            Scales::F16 => (2, 2 * HALVES, 2 * HALVES, 0),
            Scales::Bytes => (8, 8 * LANES, 8 * LANES, HALVES),
            Scales::SignedBytes => (8, 16 * LANES, 0, HALVES),
            Scales::Nibbles => (8, 16 * LANES, 0, HALVES),
        };
        let scales = groups * self.group_bytes();
        let mins = scales + scale_bytes;
        let super_scales = mins + if self.min { min_bytes } else { 0 };
        let super_mins = super_scales + super_bytes;
        let end = super_mins + if self.min { super_bytes } else { 0 };
        Record {
            groups,
            scales,
            mins,
            super_scales,
            super_mins,
            bytes: end.next_multiple_of(64),
        }
    }

    /// Bytes of a panel of `groups` groups.
    pub(super) const fn panel_bytes(self, groups: usize) -> usize {
        let record = self.record();
        groups.div_ceil(record.groups) * record.bytes
    }
}

/// A quantised type as a type, so that kernels are compiled for each.
pub(super) trait Format {
    /// What its codes mean.
    const SHAPE: Shape;
    /// Its record.
    const RECORD: Record = Self::SHAPE.record();
}

macro_rules! formats {
    ($($name:ident: $bits:literal $zero:expr, $min:literal, $scales:ident;)*) => {$(
        #[doc = concat!("[`TensorType::", stringify!($name), "`].")]
        #[allow(non_camel_case_types)]
        pub(super) struct $name;
        impl Format for $name {
            const SHAPE: Shape = Shape { bits: $bits, zero: $zero, min: $min, scales: Scales::$scales };
        }
    )*};
}

formats! {
    Q4_0: 4 Some(3), false, F16;
    Q4_1: 4 None, true, F16;
    Q5_0: 5 Some(4), false, F16;
    Q5_1: 5 None, true, F16;
    Q8_0: 8 None, false, F16;
    Q2_K: 2 None, true, Nibbles;
    Q3_K: 3 Some(2), false, SignedBytes;
    Q4_K: 4 None, true, Bytes;
    Q5_K: 5 None, true, Bytes;
    Q6_K: 6 Some(5), false, SignedBytes;
}
