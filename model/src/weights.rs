//! A model's weights: which ones it takes from a checkpoint, and where they live once loaded.

use crate::{
    Checkpoint, Error, Result,
    pools::{ModelResource, Released},
    quantize::quantized,
};
use met_kernels::{Ops, TensorType, WeightSource, formats::dequantize, ledger::owner};
use std::{
    collections::{HashMap, HashSet},
    ops::Index,
};

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
    matrices: Vec<BoundMatrix>,
    vectors: Vec<BoundVector>,
}

#[derive(Debug)]
struct BoundMatrix {
    source: WeightSource,
    /// Whether it stays as it is where others are quantised.
    exact: bool,
}

#[derive(Debug)]
struct BoundVector {
    source: WeightSource,
    made: Made,
}

/// What becomes of a vector's values at load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Made {
    /// Nothing.
    AsIs,
    /// This is added.
    Plus(f32),
    /// Decay rates: `transformers` stores the logarithm of what is subtracted from 0.
    Decay,
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

    /// The checkpoint.
    pub fn checkpoint(&self) -> &'a Checkpoint {
        self.checkpoint
    }

    /// A matrix of `rows` outputs and `cols` inputs; an error where there is none.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let source = self.source(name, &[cols, rows])?;
        Ok(self.push(source))
    }

    /// The same, which stays as it is where others are quantised: one that chooses.
    pub fn exact_matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let source = self.source(name, &[cols, rows])?;
        Ok(self.add(source, true))
    }

    /// A matrix that was put together from what [`source`](Self::source) gave.
    pub fn push(&mut self, source: WeightSource) -> Matrix {
        self.add(source, false)
    }

    fn add(&mut self, source: WeightSource, exact: bool) -> Matrix {
        self.bound.matrices.push(BoundMatrix { source, exact });
        Matrix(self.bound.matrices.len() - 1)
    }

    /// A tensor of `shape`, the contiguous dimension first; an error where there is none.
    pub fn source(&mut self, name: &str, shape: &[usize]) -> Result<WeightSource> {
        let source = self.optional_source(name, shape)?;
        source.ok_or_else(|| missing(self.checkpoint, name))
    }

    /// The same, where it may be absent. Dimensions of 1 make no difference.
    pub fn optional_source(&mut self, name: &str, shape: &[usize]) -> Result<Option<WeightSource>> {
        let Some(tensor) = self.checkpoint.tensor(name) else {
            return Ok(None);
        };
        let wide = |shape: &[usize]| -> Vec<_> { shape.iter().copied().filter(|&n| n > 1).collect() };
        if wide(&tensor.shape) != wide(shape) {
            return Err(Error::invalid(format!(
                "tensor `{}` has shape {:?}, but the metadata asks for {shape:?}",
                tensor.name, tensor.shape
            )));
        }
        self.used.insert(tensor.name.clone());
        let source = self.checkpoint.weight(name);
        Ok(source.map(|source| WeightSource {
            cols: shape[0],
            rows: shape[1..].iter().product(),
            ..source
        }))
    }

    /// A vector of `len` values, to each of which `plus` is added; an error where there is none.
    pub fn vector(&mut self, name: &str, len: usize, plus: f32) -> Result<Vector> {
        self.flat(name, &[len], Made::Plus(plus))
    }

    /// A tensor of `shape` as a vector; an error where there is none.
    pub fn flat(&mut self, name: &str, shape: &[usize], made: Made) -> Result<Vector> {
        let source = self.source(name, shape)?;
        // The converter to GGUF has done it already.
        let made = match made {
            Made::Decay if !self.checkpoint.is_folder() => Made::AsIs,
            made => made,
        };
        self.bound.vectors.push(BoundVector { source, made });
        Ok(Vector(self.bound.vectors.len() - 1))
    }

    /// A vector of `len` values, where it may be absent.
    pub fn optional_vector(&mut self, name: &str, len: usize) -> Result<Option<Vector>> {
        match self.checkpoint.tensor(name) {
            Some(_) => Ok(Some(self.vector(name, len, 0.0)?)),
            None => Ok(None),
        }
    }

    /// Notes that a tensor is read in another way, or isn't needed.
    pub fn skip(&mut self, name: &str) {
        self.used.insert(self.checkpoint.stored_name(name));
    }

    /// Notes that no tensor of a layer is needed.
    pub fn skip_layer(&mut self, layer: usize) {
        let prefix = self.checkpoint.stored_name(&format!("blk.{layer}."));
        let names = self.checkpoint.tensors().iter().map(|tensor| &tensor.name);
        self.used
            .extend(names.filter(|name| name.starts_with(&prefix)).cloned());
    }

    /// What was collected. A tensor that nothing asked for means that the file holds another kind of model
    /// than its metadata says: an error, since leaving it out would give wrong results.
    pub fn finish(self) -> Result<Bound> {
        let unused = self
            .checkpoint
            .tensors()
            .iter()
            .find(|t| !self.used.contains(&t.name) && !self.checkpoint.is_beside(t));
        match unused {
            None => Ok(self.bound),
            Some(tensor) => Err(Error::invalid(format!(
                "tensor `{}` has no place in this architecture as we know it; the model is a variant that is not supported",
                tensor.name
            ))),
        }
    }
}

impl Bound {
    /// Makes matrices of floats be quantised when they are read, where their rows are whole blocks of `ty`.
    pub fn quantize(&mut self, ty: TensorType) {
        let matrices = self.matrices.iter_mut().filter(|matrix| !matrix.exact);
        for BoundMatrix { source, .. } in matrices {
            quantized(source, ty);
        }
    }

    /// Name of the type that most weights of matrices have once they are loaded.
    pub fn quantization(&self) -> &'static str {
        let mut counts: HashMap<TensorType, usize> = HashMap::new();
        for BoundMatrix { source, .. } in &self.matrices {
            *counts.entry(source.ty).or_default() += source.rows * source.cols;
        }
        let most = counts.into_iter().max_by_key(|&(ty, n)| (n, ty.name()));
        most.map_or("none", |(ty, _)| ty.name())
    }
}

impl BoundVector {
    fn values(&self) -> Result<Vec<f32>> {
        let Self { source, made } = self;
        let (mut bytes, mut values) = (vec![0; source.data.len()], vec![0.0; source.rows * source.cols]);
        source.read(0, &mut bytes)?;
        dequantize(source.ty, &bytes, &mut values)?;
        values.iter_mut().for_each(|value| match made {
            Made::AsIs => {}
            Made::Plus(plus) => *value += plus,
            Made::Decay => *value = -value.exp(),
        });
        Ok(values)
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
        ops: &mut O,
        mut progress: impl FnMut(u64, u64) -> Result<()>,
    ) -> Result<()> {
        let matrices = bound.matrices.iter().map(|matrix| &matrix.source);
        let sources = matrices.clone().chain(bound.vectors.iter().map(|v| &v.source));
        let total = sources.map(|source| source.data.len() as u64).sum();
        let mut done = 0;
        for source in matrices {
            progress(done, total)?;
            let weight = ops.load_weight(source, &mut |part| progress(done + part, total))?;
            let footprint = ops.footprint(&weight);
            self.matrices.push(weight);
            self.derived.add(footprint.derived);
            self.store.add(footprint.store);
            done += source.data.len() as u64;
        }
        for bound in &bound.vectors {
            progress(done, total)?;
            let values = bound.values()?;
            let vector = ops.load_vector(&values)?;
            let bytes = size_of_val(values.as_slice()) as u64;
            self.vectors.push((vector, bytes));
            self.store.add(bytes);
            done += bound.source.data.len() as u64;
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

#[cfg(test)]
mod tests {
    use crate::{Checkpoint, Decoder, ModelConfig};
    use met_kernels::TensorType;

    #[test]
    fn what_chooses_stays_as_it_is_where_others_are_quantised() {
        let path = "../tests/fixtures/architectures/qwen3_next";
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let checkpoint = Checkpoint::open(path).unwrap();
        let config = ModelConfig::from_checkpoint(&checkpoint).unwrap();
        let (_, mut bound) = Decoder::bind(config, &checkpoint).unwrap();
        bound.quantize(TensorType::Q8_0);
        let mut kept = Vec::new();
        for matrix in &bound.matrices {
            let source = &matrix.source;
            match source.ty {
                TensorType::Q8_0 => assert!(source.cols.is_multiple_of(32)),
                ty => {
                    assert_eq!(ty, TensorType::BF16);
                    kept.extend(source.cols.is_multiple_of(32).then_some(source.name.as_str()));
                }
            }
        }
        let gates = ["mlp.gate.weight", "mlp.shared_expert_gate.weight"];
        assert!(
            kept.iter()
                .all(|name| gates.iter().any(|gate| name.ends_with(gate)))
        );
        assert_eq!(kept.len(), 2 * 4);
    }
}
