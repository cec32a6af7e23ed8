//! Weight matrices as the checkpoint stores them, and the kernels that take them.

use crate::{
    memory::DeviceBuffer,
    modules::{Kernel, Modules},
};
use met_kernels::{Error, Result, TensorType, WeightSource};

/// A matrix on the card.
#[derive(Debug)]
pub struct Weight {
    pub(crate) name: String,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) data: DeviceBuffer,
    pub(crate) kernels: Kernels,
}

/// The kernels for a weight.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kernels {
    /// Products on tensor cores.
    Tiled {
        embed: Kernel,
        /// For at most 8, 16 and 32 tokens.
        few: [Kernel; 3],
        many: Kernel,
        /// For few and for many pairs of a token and an expert.
        experts: [Kernel; 2],
    },
    /// Products in f32, for shapes that tiles don't fit and for f32.
    Plain {
        embed: Kernel,
        linear: Kernel,
        experts: Kernel,
    },
}

impl Kernels {
    /// What a matrix of `cols` columns takes.
    pub(crate) fn of(ty: TensorType, cols: usize, modules: &mut Modules) -> Result<Self> {
        let name = ty.name().to_lowercase();
        if ty == TensorType::F32 || !cols.is_multiple_of(32) {
            let file = format!("plain_{name}");
            return Ok(Self::Plain {
                embed: modules.kernel(&file, "plain_embed")?,
                linear: modules.kernel(&file, "plain_linear")?,
                experts: modules.kernel(&file, "plain_expert_linear")?,
            });
        }
        let file = format!("linear_{name}");
        let mut kernel = |name| modules.kernel(&file, name);
        Ok(Self::Tiled {
            embed: kernel("embed")?,
            few: [kernel("linear_8")?, kernel("linear_16")?, kernel("linear_32")?],
            many: kernel("linear_many")?,
            experts: [kernel("expert_linear")?, kernel("expert_linear_many")?],
        })
    }
}

/// Columns that a tiled product sums by themselves: a function of the columns alone, as linear.cu asks.
pub(crate) fn segment(cols: usize) -> usize {
    (cols / 32).div_ceil(8) * 32
}

/// Checks that a source's shape and data agree, and returns its bytes.
pub(crate) fn check(source: &WeightSource) -> Result<usize> {
    source.row_bytes()?;
    // Kernels count rows and columns in 31 bits, tiles included.
    if [source.rows, source.cols].iter().any(|&n| n > 1 << 30) {
        return Err(Error::invalid(format!(
            "{}: [{}, {}] is too large for the CUDA kernels",
            source.name, source.rows, source.cols
        )));
    }
    Ok(source.data.len())
}
