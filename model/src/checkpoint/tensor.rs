//! The tensors of a checkpoint: where each lies, and how it is found.

use crate::{Error, Result};
use met_kernels::TensorType;
use std::{collections::HashMap, ops::Range};

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name in the file.
    pub name: String,
    /// How elements are stored.
    pub ty: TensorType,
    /// Its 1 to 4 dimensions, none zero, the contiguous one first.
    pub shape: Vec<usize>,
    /// The file that it lies in, counted from 0.
    pub file: usize,
    /// Its bytes in that file.
    pub range: Range<usize>,
}

impl Tensor {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The most dimensions of a tensor.
pub(super) const MAX_DIMS: usize = 4;

/// The tensors of all files, by name and in their order.
#[derive(Debug, Default)]
pub(super) struct Directory {
    tensors: Vec<Tensor>,
    by_name: HashMap<String, usize>,
}

impl Directory {
    pub(super) fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    pub(super) fn get(&self, name: &str) -> Option<&Tensor> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    /// Adds a file's tensors, none of which may share bytes with another of it, or a name with any.
    pub(super) fn add(&mut self, tensors: Vec<Tensor>) -> Result<()> {
        check_overlap(&tensors)?;
        for tensor in tensors {
            if self
                .by_name
                .insert(tensor.name.clone(), self.tensors.len())
                .is_some()
            {
                return Err(Error::invalid(format!("tensor `{}` occurs twice", tensor.name)));
            }
            self.tensors.push(tensor);
        }
        Ok(())
    }
}

/// The product of dimensions that are in a file, contiguous one first; their number has been checked.
pub(super) fn checked_shape(name: &str, dims: impl Iterator<Item = u64>) -> Result<(Vec<usize>, usize)> {
    let (mut shape, mut elements) = (Vec::new(), 1usize);
    for (d, n) in dims.enumerate() {
        let size = usize::try_from(n).ok().filter(|&n| n > 0);
        let (Some(size), Some(product)) = (size, size.and_then(|n| elements.checked_mul(n))) else {
            return Err(Error::invalid(format!(
                "dimension {d} of tensor `{name}` is {n}: zero or too large"
            )));
        };
        shape.push(size);
        elements = product;
    }
    Ok((shape, elements))
}

fn check_overlap(tensors: &[Tensor]) -> Result<()> {
    let mut in_order: Vec<_> = tensors.iter().collect();
    in_order.sort_by_key(|t| t.range.start);
    for pair in in_order.windows(2) {
        if pair[0].range.end > pair[1].range.start {
            return Err(Error::invalid(format!(
                "tensors `{}` and `{}` overlap in the file",
                pair[0].name, pair[1].name
            )));
        }
    }
    Ok(())
}
