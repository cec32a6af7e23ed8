//! A loaded model as the engine's device.

use super::{Backend, Model, Opener, Services};
use crate::engine::{DeviceIo, OpenFailure};
use met_backend_api::{
    Batch, DeviceInfo, Error, LedgerEntry, MemoryInfo, ModelInfo, ModelSpec, OpenSpec, ReleaseReport,
    SweepReport, Ticket, sdk::Output,
};

/// An opened backend with its loaded model.
pub struct Device {
    device_info: DeviceInfo,
    model_info: ModelInfo,
    /// Dropped before the backend, whatever happens.
    model: Option<Model>,
    backend: Backend,
}

impl Device {
    /// Opens a device and loads a model, on the thread that will be its engine thread. A failure comes with what
    /// was opened before it.
    pub fn load(
        opener: Opener,
        device: &OpenSpec,
        model: &ModelSpec,
        services: &Services,
    ) -> Result<Self, OpenFailure> {
        let mut device = Self {
            backend: opener.open(device, services)?,
            device_info: no_device(),
            model_info: ModelInfo::default(),
            model: None,
        };
        match device.load_model(model) {
            Ok(()) => Ok(device),
            Err(error) => Err(OpenFailure {
                error,
                device: Some(Box::new(device)),
            }),
        }
    }

    fn load_model(&mut self, spec: &ModelSpec) -> Result<(), Error> {
        self.device_info = self.backend.info()?;
        let model = self.model.insert(self.backend.load_model(spec)?);
        self.model_info = model.info()?;
        Ok(())
    }

    fn loaded(&mut self) -> Result<&mut Model, Error> {
        self.model
            .as_mut()
            .ok_or_else(|| Error::invalid("the model was dropped"))
    }
}

impl DeviceIo for Device {
    fn device(&self) -> &DeviceInfo {
        &self.device_info
    }
    fn model(&self) -> &ModelInfo {
        &self.model_info
    }
    fn memory(&mut self) -> Result<MemoryInfo, Error> {
        self.backend.memory()
    }
    fn ledger(&mut self) -> Result<Vec<LedgerEntry>, Error> {
        self.backend.ledger()
    }
    fn submit(&mut self, batch: Batch<'_>) -> Result<Ticket, Error> {
        self.loaded()?.submit(batch)
    }
    fn collect(&mut self, ticket: Ticket, out: Output<'_>) -> Result<(), Error> {
        self.loaded()?.collect(ticket, out)
    }
    fn copy_blocks_out(&mut self, blocks: &[u32], data: &mut [u8]) -> Result<(), Error> {
        self.loaded()?.copy_blocks_out(blocks, data)
    }
    fn copy_blocks_in(&mut self, blocks: &[u32], data: &[u8]) -> Result<(), Error> {
        self.loaded()?.copy_blocks_in(blocks, data)
    }
    fn save_state(&mut self, slot: u32, data: &mut [u8]) -> Result<(), Error> {
        self.loaded()?.save_state(slot, data)
    }
    fn restore_state(&mut self, slot: u32, position: u32, data: &[u8]) -> Result<(), Error> {
        self.loaded()?.restore_state(slot, position, data)
    }
    fn free_state(&mut self, slot: u32) -> Result<(), Error> {
        self.loaded()?.free_state(slot)
    }
    fn take_snapshot(&mut self, slot: u32, snapshot: u32) -> Result<(), Error> {
        self.loaded()?.take_snapshot(slot, snapshot)
    }
    fn use_snapshot(&mut self, snapshot: u32, slot: u32) -> Result<(), Error> {
        self.loaded()?.use_snapshot(snapshot, slot)
    }
    fn synchronize(&mut self, stream: u32) -> Result<(), Error> {
        self.backend.synchronize(stream)
    }
    fn release_pools(&mut self) -> Result<ReleaseReport, Error> {
        match &mut self.model {
            Some(model) => model.release_pools(),
            None => Ok(ReleaseReport::default()),
        }
    }
    fn drop_model(&mut self) {
        self.model = None;
    }
    fn sweep_unreleased(&mut self) -> Result<SweepReport, Error> {
        self.backend.sweep_unreleased()
    }
}

/// Until the backend has said what it opened.
fn no_device() -> DeviceInfo {
    DeviceInfo {
        index: 0,
        kind: "".into(),
        name: "".into(),
        features: "".into(),
        total_memory: 0,
        compute_units: 0,
    }
}
