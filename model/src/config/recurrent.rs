//! Layers with a recurrent state.

use super::MAX_WIDTH;
use crate::{Error, Result};
use met_kernels::{DeltaShape, ScanShape};

/// The most inputs that a convolution sees.
const MAX_TAPS: usize = 64;
/// The most values of a sequence's state: 4 TiB.
const MAX_STATE: usize = 1 << 40;

/// Layers with a recurrent state instead of attention: a convolution, and what `mixer` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recurrent {
    /// What keeps the state.
    pub mixer: Mixer,
    /// Inputs that the convolution sees.
    pub taps: usize,
    /// Which layers.
    pub layers: Vec<bool>,
}

/// A recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// The selective scan of Mamba-2.
    Mamba2(ScanShape),
    /// The gated delta rule.
    Delta(DeltaShape),
}

impl Recurrent {
    /// Columns that the convolution goes over.
    pub fn channels(&self) -> usize {
        match &self.mixer {
            Mixer::Mamba2(shape) => shape.channels(),
            Mixer::Delta(shape) => shape.channels(),
        }
    }

    /// Columns of what the recurrence gives.
    pub fn width(&self) -> usize {
        match &self.mixer {
            Mixer::Mamba2(shape) => shape.heads * shape.head_dim,
            Mixer::Delta(shape) => shape.value_heads * shape.value_dim,
        }
    }

    /// Heads that have a rate of their own.
    pub fn heads(&self) -> usize {
        match &self.mixer {
            Mixer::Mamba2(shape) => shape.heads,
            Mixer::Delta(shape) => shape.value_heads,
        }
    }

    /// Values of the convolution's state, which a layer's part of a slot begins with.
    pub fn conv_values(&self) -> usize {
        (self.taps - 1) * self.channels()
    }

    /// Values of a layer's part of a slot.
    pub fn layer_values(&self) -> usize {
        let state = match &self.mixer {
            Mixer::Mamba2(shape) => shape.state(),
            Mixer::Delta(shape) => shape.state(),
        };
        self.conv_values() + state
    }

    /// Where a layer's part of a slot begins, in values.
    pub fn offset(&self, layer: usize) -> usize {
        let before = self.layers.iter().take(layer).filter(|&&recurrent| recurrent);
        before.count() * self.layer_values()
    }

    /// Checks that sizes fit together, whose factors are at most [`MAX_WIDTH`] each.
    pub(super) fn check(&self) -> Result<()> {
        let product = |factors: &[usize]| factors.iter().try_fold(1usize, |n, &x| n.checked_mul(x));
        let (parts, state) = match self.mixer {
            Mixer::Mamba2(ScanShape {
                heads,
                head_dim,
                groups,
                state_dim,
            }) => {
                if groups != 1 {
                    return Err(Error::invalid(format!(
                        "Mamba-2 layers with {groups} groups are not supported: only one group is"
                    )));
                }
                (
                    [product(&[heads, head_dim]), product(&[groups, state_dim])],
                    product(&[heads, head_dim, state_dim]),
                )
            }
            Mixer::Delta(DeltaShape {
                key_heads,
                value_heads,
                key_dim,
                value_dim,
            }) => {
                if !value_heads.is_multiple_of(key_heads) {
                    return Err(Error::invalid(format!(
                        "the number of value heads of linear attention ({value_heads}) must be a multiple of that of key heads ({key_heads})"
                    )));
                }
                (
                    [product(&[key_heads, key_dim]), product(&[value_heads, value_dim])],
                    product(&[value_heads, key_dim, value_dim]),
                )
            }
        };
        if !(2..=MAX_TAPS).contains(&self.taps) {
            return Err(Error::invalid(format!(
                "the convolution of recurrent layers sees {} inputs, but must see 2 to {MAX_TAPS}",
                self.taps
            )));
        }
        if parts.iter().any(|part| part.is_none_or(|n| n > MAX_WIDTH)) {
            return Err(Error::invalid(format!(
                "the heads of recurrent layers ({:?}) are wider together than {MAX_WIDTH}",
                self.mixer
            )));
        }
        if state
            .and_then(|n| n.checked_mul(self.layers.len()))
            .is_none_or(|n| n > MAX_STATE)
        {
            return Err(Error::invalid(format!(
                "the recurrent state ({:?}) of {} layers exceeds {MAX_STATE} values",
                self.mixer,
                self.layers.len()
            )));
        }
        if self.layers.iter().all(|&recurrent| recurrent) {
            return Err(Error::invalid(
                "a model of recurrent layers alone is not supported: at least one must have attention",
            ));
        }
        Ok(())
    }
}
