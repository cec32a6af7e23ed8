//! What the simulated host keeps of parked sequences.

use crate::{
    engine::{DeviceIo, testing::FakeDevice},
    scheduler::{Copy, RequestId},
};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Kept(BTreeMap<RequestId, Vec<u8>>);

impl Kept {
    /// Makes a copy as the engine does.
    pub fn make(&mut self, device: &mut FakeDevice, copy: &Copy) {
        let bytes = device.model().block_bytes as usize;
        match copy {
            Copy::Out { id, blocks } => {
                let mut data = vec![0; blocks.len() * bytes];
                device
                    .copy_blocks_out(blocks, &mut data)
                    .expect("no failure was ordered");
                self.0.insert(*id, data);
            }
            Copy::In { id, blocks } => {
                let data = self
                    .0
                    .remove(id)
                    .unwrap_or_else(|| panic!("nothing was kept of {id:?}"));
                assert_eq!(data.len(), blocks.len() * bytes, "{id:?}");
                device
                    .copy_blocks_in(blocks, &data)
                    .expect("no failure was ordered");
            }
        }
    }
}
