//! Shapes and constants of the operations with a recurrent state, and of mixtures of experts.

use crate::{Error, Result};

/// Where an operation finds the state of each row: in the row's slot, from value `offset` on.
pub struct Place<'a, S> {
    /// The slots of all sequences.
    pub state: &'a mut S,
    /// Where in a slot this layer's part begins, in values.
    pub offset: usize,
}

/// Shape of a selective scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanShape {
    /// Heads.
    pub heads: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// Groups of heads that share B and C; divides `heads`.
    pub groups: usize,
    /// States of each value.
    pub state_dim: usize,
}

impl ScanShape {
    /// Columns of x, B and C together.
    pub fn channels(&self) -> usize {
        self.heads * self.head_dim + 2 * self.groups * self.state_dim
    }

    /// Values of the state.
    pub fn state(&self) -> usize {
        self.heads * self.head_dim * self.state_dim
    }

    /// Checks that no size is 0 and that the heads are whole groups.
    pub fn check(&self) -> Result<()> {
        let sizes = [self.heads, self.head_dim, self.groups, self.state_dim];
        match !sizes.contains(&0) && self.heads.is_multiple_of(self.groups) {
            true => Ok(()),
            false => Err(Error::invalid(format!("{self:?} is no shape of a scan"))),
        }
    }
}

/// A selective scan's constants, `[heads]` each.
pub struct ScanWeights<'a, V> {
    /// Sizes.
    pub shape: ScanShape,
    /// Decay rates: negative.
    pub a: &'a V,
    /// What of x goes straight to the output.
    pub d: &'a V,
    /// Added to dt.
    pub dt_bias: &'a V,
}

/// Shape of a gated delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Heads of q and k.
    pub key_heads: usize,
    /// Heads of v; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Values of a head of q and k.
    pub key_dim: usize,
    /// Values of a head of v.
    pub value_dim: usize,
}

impl DeltaShape {
    /// Columns of q, k and v together.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Values of the state.
    pub fn state(&self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }

    /// Checks that no size is 0 and that the value heads are as many for each key head.
    pub fn check(&self) -> Result<()> {
        let sizes = [self.key_heads, self.value_heads, self.key_dim, self.value_dim];
        match !sizes.contains(&0) && self.value_heads.is_multiple_of(self.key_heads) {
            true => Ok(()),
            false => Err(Error::invalid(format!("{self:?} is no shape of a delta rule"))),
        }
    }
}

/// A gated delta rule's constants, `[value_heads]` each.
pub struct DeltaWeights<'a, V> {
    /// Sizes.
    pub shape: DeltaShape,
    /// Decay rates: negative.
    pub a: &'a V,
    /// Added to alpha.
    pub dt_bias: &'a V,
}

/// How many experts a row of a routing with `cols` columns names: a number and a weight each.
pub fn chosen_experts(cols: usize) -> Result<usize> {
    match cols > 0 && cols.is_multiple_of(2) {
        true => Ok(cols / 2),
        false => Err(Error::invalid(format!("a routing of {cols} columns"))),
    }
}
