//! A loaded model as the engine's device.

use super::{Backend, Model, Opener, Services};
use crate::engine::DeviceIo;
use met_backend_api::{
    Batch, DeviceInfo, Error, LedgerEntry, MemoryInfo, ModelInfo, ModelSpec, OpenSpec, ReleaseReport,
    ResourceReport, SweepReport, Ticket, sdk::Output,
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
    /// Opens a device and loads a model, on the thread that will be its engine thread.
    pub fn load(
        opener: Opener,
        device: &OpenSpec,
        model: &ModelSpec,
        services: &Services,
    ) -> Result<Self, Error> {
        let mut backend = opener.open(device, services)?;
        let device_info = backend.info()?;
        let model = backend.load_model(model)?;
        Ok(Self {
            device_info,
            model_info: model.info().clone(),
            model: Some(model),
            backend,
        })
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
    fn resources(&mut self) -> Result<Vec<ResourceReport>, Error> {
        self.loaded()?.resources()
    }
    fn submit(&mut self, batch: Batch<'_>) -> Result<Ticket, Error> {
        self.loaded()?.submit(batch)
    }
    fn collect(&mut self, ticket: Ticket, out: Output<'_>) -> Result<(), Error> {
        self.loaded()?.collect(ticket, out)
    }
    fn synchronize(&mut self, stream: u32) -> Result<(), Error> {
        self.backend.synchronize(stream)
    }
    fn release_pools(&mut self) -> Result<ReleaseReport, Error> {
        self.loaded()?.release_pools()
    }
    fn drop_model(&mut self) {
        self.model = None;
    }
    fn sweep_unreleased(&mut self) -> Result<SweepReport, Error> {
        self.backend.sweep_unreleased()
    }
}
