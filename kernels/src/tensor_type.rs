//! Element types of checkpoint tensors, with the block shapes that GGUF gives them.

/// How a tensor's elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)]
pub enum TensorType {
    /// 32-bit float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// 16-bit brain float.
    BF16,
    /// 32 elements: f16 scale, 4-bit codes around 8.
    Q4_0,
    /// 32 elements: f16 scale and minimum, 4-bit codes.
    Q4_1,
    /// 32 elements: f16 scale, 5-bit codes around 16.
    Q5_0,
    /// 32 elements: f16 scale and minimum, 5-bit codes.
    Q5_1,
    /// 32 elements: f16 scale, signed bytes.
    Q8_0,
    /// 256 elements: 2-bit codes, 4-bit scales and minimums a 16.
    Q2_K,
    /// 256 elements: 3-bit codes, 6-bit scales a 16.
    Q3_K,
    /// 256 elements: 4-bit codes, 6-bit scales and minimums a 32.
    Q4_K,
    /// 256 elements: 5-bit codes, 6-bit scales and minimums a 32.
    Q5_K,
    /// 256 elements: 6-bit codes, 8-bit scales a 16.
    Q6_K,
}

impl TensorType {
    /// Every type.
    pub const ALL: [Self; 13] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
    ];

    /// Elements of a block. A row holds a whole number of blocks.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K => 256,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
        }
    }

    /// Bytes of `elements` elements; `None` where they are no whole number of blocks or overflow.
    pub fn bytes_of(self, elements: usize) -> Option<usize> {
        if !elements.is_multiple_of(self.block_len()) {
            return None;
        }
        (elements / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The name that GGUF tools print.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2_K => "Q2_K",
            Self::Q3_K => "Q3_K",
            Self::Q4_K => "Q4_K",
            Self::Q5_K => "Q5_K",
            Self::Q6_K => "Q6_K",
        }
    }
}
