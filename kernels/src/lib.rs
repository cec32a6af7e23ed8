//! What is computed: the operations that a forward pass is written over ([`Ops`]), their CPU
//! implementation ([`cpu`]) and a plain reference that sums in f64 ([`mod@reference`]).

pub mod cpu;
pub mod error;
pub mod formats;
pub mod ledger;
pub mod ops;
#[cfg(any(test, feature = "testing"))]
pub mod optest;
pub mod recurrent;
pub mod reference;
pub mod sample;
pub mod source;
pub mod step;
pub mod tensor_type;

pub use error::{Error, ErrorKind, Result};
pub use ledger::{Entry, Kind, Ledger, Serial, Swept};
pub use ops::{
    Activation, AttentionShape, Linear, NO_STATE, Ops, Progress, RopeTable, StepRow, StepRows, Taken,
    WeightFootprint,
};
pub use recurrent::{DeltaShape, DeltaWeights, Place, ScanShape, ScanWeights, chosen_experts};
pub use source::{ReadAt, WeightData, WeightSource};
pub use step::HostStep;
pub use tensor_type::TensorType;
