//! `met-host bench`: how fast a backend prefills and decodes a model, in the manner of llama-bench.

mod bandwidth;
mod measure;
mod stats;
mod table;

pub use bandwidth::read_bandwidth;
pub use measure::{Plan, Row, run};
pub use table::table;
