//! Tests of a model, from the bytes of its file to the release of its pools.

mod checkpoint;
mod config;
mod corruption;
mod files;
mod fixtures;
mod forward;
mod steps;
mod support;
mod teardown;
