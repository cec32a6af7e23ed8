//! The kernels that every model uses.

use crate::modules::{Kernel, Modules};
use met_kernels::Result;

/// The kernels that every model uses.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) rms_norm: Kernel,
    pub(super) add_rms_norm: Kernel,
    pub(super) gated_silu: Kernel,
    pub(super) gated_gelu: Kernel,
    pub(super) gated_sigmoid: Kernel,
    pub(super) gate_rows: Kernel,
    pub(super) scale: Kernel,
    pub(super) softcap: Kernel,
    pub(super) add: Kernel,
    pub(super) gather: Kernel,
    pub(super) rope_angles: Kernel,
    pub(super) rope_kv_write: Kernel,
    pub(super) sample: Kernel,
    pub(super) take: Kernel,
}

impl Common {
    pub(super) const FILES: [&str; 4] = ["norm", "elementwise", "rope", "sample"];

    pub(super) fn new(modules: &mut Modules) -> Result<Self> {
        Ok(Self {
            rms_norm: modules.kernel("norm", "rms_norm")?,
            add_rms_norm: modules.kernel("norm", "add_rms_norm")?,
            gated_silu: modules.kernel("elementwise", "gated_silu")?,
            gated_gelu: modules.kernel("elementwise", "gated_gelu")?,
            gated_sigmoid: modules.kernel("elementwise", "gated_sigmoid")?,
            gate_rows: modules.kernel("elementwise", "gate_rows")?,
            scale: modules.kernel("elementwise", "scale")?,
            softcap: modules.kernel("elementwise", "softcap")?,
            add: modules.kernel("elementwise", "add")?,
            gather: modules.kernel("elementwise", "gather")?,
            rope_angles: modules.kernel("rope", "rope_angles")?,
            rope_kv_write: modules.kernel("rope", "rope_kv_write")?,
            sample: modules.kernel("sample", "sample")?,
            take: modules.kernel("sample", "take")?,
        })
    }
}
