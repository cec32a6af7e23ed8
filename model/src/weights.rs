//! A model's weights: which ones it takes from a checkpoint, and where they live once loaded.

use crate::{
    Checkpoint, Error, Result,
    pools::{ModelResource, Released},
};
use met_kernels::{Ops, ledger::owner};
use std::{collections::HashSet, ops::Index};

/// Names a matrix of [`Weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix(usize);

/// Names a vector of [`Weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vector(usize);

/// Collects, by name and shape, what a model takes from a checkpoint. Nothing is loaded.
pub struct Binder<'a> {
    checkpoint: &'a Checkpoint,
    bound: Bound,
    used: HashSet<String>,
}

/// Tensors to load, all present and of the right shape.
#[derive(Debug, Default)]
pub struct Bound {
    matrices: Vec<String>,
    vectors: Vec<BoundVector>,
}

#[derive(Debug)]
struct BoundVector {
    name: String,
    len: usize,
    /// Added to each value.
    plus: f32,
}

impl<'a> Binder<'a> {
    /// An empty one.
    pub fn new(checkpoint: &'a Checkpoint) -> Self {
        Self {
            checkpoint,
            bound: Bound::default(),
            used: HashSet::new(),
        }
    }

    /// A matrix of `rows` outputs and `cols` inputs; an error where there is none.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        if !self.find(name, &[cols, rows])? {
            return Err(missing(self.checkpoint, name));
        }
        self.bound.matrices.push(name.to_owned());
        Ok(Matrix(self.bound.matrices.len() - 1))
    }

    /// A vector of `len` values, to each of which `plus` is added; an error where there is none.
    pub fn vector(&mut self, name: &str, len: usize, plus: f32) -> Result<Vector> {
        let vector = self.optional_vector(name, len, plus)?;
        vector.ok_or_else(|| missing(self.checkpoint, name))
    }

    /// The same, where it may be absent.
    pub fn optional_vector(&mut self, name: &str, len: usize, plus: f32) -> Result<Option<Vector>> {
        if !self.find(name, &[len])? {
            return Ok(None);
        }
        let name = name.to_owned();
        self.bound.vectors.push(BoundVector { name, len, plus });
        Ok(Some(Vector(self.bound.vectors.len() - 1)))
    }

    /// Notes that a tensor is read in another way, or isn't needed.
    pub fn skip(&mut self, name: &str) {
        self.used.insert(self.checkpoint.stored_name(name));
    }

    /// What was collected. A tensor that nothing asked for means that the file holds another kind of model
    /// than its metadata says: an error, since leaving it out would give wrong results.
    pub fn finish(self) -> Result<Bound> {
        let unused = self
            .checkpoint
            .tensors()
            .iter()
            .find(|t| !self.used.contains(&t.name) && !self.checkpoint.is_derived(t));
        match unused {
            None => Ok(self.bound),
            Some(tensor) => Err(Error::invalid(format!(
                "tensor `{}` has no place in this architecture as we know it; the model is a variant that is not supported",
                tensor.name
            ))),
        }
    }

    fn find(&mut self, name: &str, shape: &[usize]) -> Result<bool> {
        let Some(tensor) = self.checkpoint.tensor(name) else {
            return Ok(false);
        };
        if tensor.shape != shape {
            return Err(Error::invalid(format!(
                "tensor `{}` has shape {:?}, but the metadata asks for {shape:?}",
                tensor.name, tensor.shape
            )));
        }
        self.used.insert(tensor.name.clone());
        Ok(true)
    }
}

fn missing(checkpoint: &Checkpoint, name: &str) -> Error {
    Error::invalid(format!("tensor `{}` is missing", checkpoint.stored_name(name)))
}

/// Loaded weights. They are in two pools, since one matrix may be kept as it was and in derived form.
pub struct Weights<O: Ops> {
    matrices: Vec<O::Weight>,
    vectors: Vec<(O::Vector, u64)>,
    derived: Held,
    store: Held,
}

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    bytes: u64,
    allocations: u64,
}

impl Held {
    fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.allocations += u64::from(bytes > 0);
    }
}

impl<O: Ops> Default for Weights<O> {
    fn default() -> Self {
        Self {
            matrices: Vec::new(),
            vectors: Vec::new(),
            derived: Held::default(),
            store: Held::default(),
        }
    }
}

impl<O: Ops> Weights<O> {
    /// Loads what was bound. `progress` is told the bytes done and in all, before each tensor and during long ones,
    /// and stops the load by an error. What was loaded before an error stays here, to be released with the pools.
    pub fn load(
        &mut self,
        bound: &Bound,
        checkpoint: &Checkpoint,
        ops: &mut O,
        mut progress: impl FnMut(u64, u64) -> Result<()>,
    ) -> Result<()> {
        let names = || {
            bound
                .matrices
                .iter()
                .chain(bound.vectors.iter().map(|vector| &vector.name))
        };
        let bytes_of = |name: &str| checkpoint.tensor(name).map_or(0, |t| t.range.len() as u64);
        let total = names().map(|name| bytes_of(name)).sum();
        let mut done = 0;
        for name in &bound.matrices {
            let source = checkpoint.weight(name).ok_or_else(|| missing(checkpoint, name))?;
            progress(done, total)?;
            let weight = ops.load_weight(&source, &mut |part| progress(done + part, total))?;
            let footprint = ops.footprint(&weight);
            self.matrices.push(weight);
            self.derived.add(footprint.derived);
            self.store.add(footprint.store);
            done += bytes_of(name);
        }
        for BoundVector { name, len, plus } in &bound.vectors {
            progress(done, total)?;
            let values = checkpoint.floats(name, *len)?;
            let mut values = values.ok_or_else(|| missing(checkpoint, name))?;
            values.iter_mut().for_each(|value| *value += plus);
            let vector = ops.load_vector(&values)?;
            let bytes = size_of_val(values.as_slice()) as u64;
            self.vectors.push((vector, bytes));
            self.store.add(bytes);
            done += bytes_of(name);
        }
        progress(total, total)
    }

    /// The pool of what was made from the weights at load.
    pub fn derived_pool(&mut self) -> DerivedWeights<'_, O> {
        DerivedWeights(self)
    }

    /// The pool of the weights themselves.
    pub fn store_pool(&mut self) -> WeightStore<'_, O> {
        WeightStore(self)
    }
}

impl<O: Ops> Index<Matrix> for Weights<O> {
    type Output = O::Weight;
    fn index(&self, matrix: Matrix) -> &O::Weight {
        &self.matrices[matrix.0]
    }
}

impl<O: Ops> Index<Vector> for Weights<O> {
    type Output = O::Vector;
    fn index(&self, vector: Vector) -> &O::Vector {
        &self.vectors[vector.0].0
    }
}

/// Repacked, fused or dequantised weights.
pub struct DerivedWeights<'a, O: Ops>(&'a mut Weights<O>);

impl<O: Ops> ModelResource<O> for DerivedWeights<'_, O> {
    fn label(&self) -> &'static str {
        owner::DERIVED
    }
    fn bytes(&self) -> u64 {
        self.0.derived.bytes
    }
    fn allocations(&self) -> u64 {
        self.0.derived.allocations
    }
    fn release(&mut self, ops: &mut O) -> Released {
        self.0.derived = Held::default();
        self.0
            .matrices
            .iter_mut()
            .map(|weight| ops.release_derived(weight))
            .collect()
    }
}

/// Weights in the checkpoint's own form, and vectors.
pub struct WeightStore<'a, O: Ops>(&'a mut Weights<O>);

impl<O: Ops> ModelResource<O> for WeightStore<'_, O> {
    fn label(&self) -> &'static str {
        owner::WEIGHTS
    }
    fn bytes(&self) -> u64 {
        self.0.store.bytes
    }
    fn allocations(&self) -> u64 {
        self.0.store.allocations
    }
    fn release(&mut self, ops: &mut O) -> Released {
        self.0.store = Held::default();
        let matrices: Vec<_> = self.0.matrices.drain(..).map(|w| ops.release_weight(w)).collect();
        let vectors = self.0.vectors.drain(..).map(|(v, _)| ops.release_vector(v));
        matrices.into_iter().chain(vectors).collect()
    }
}
