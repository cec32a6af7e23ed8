//! Tests of a model, from the bytes of its file to the release of its pools.

mod architectures;
mod checkpoint;
mod config;
mod corruption;
mod files;
mod fixtures;
mod folder;
mod forward;
mod hybrid;
mod quantize;
mod split;
mod states;
mod steps;
mod support;
mod teardown;
