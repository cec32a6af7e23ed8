//! The load: from a specification to a generation that serves, or to an error that leaves nothing behind.

use super::{Generation, Slot};
use crate::{
    engine::{DeviceIo, Engine, EngineOptions},
    loader::{BackendSource, Device, Library, LoadError, Services, Unload},
};
use met_backend_api::{Error, ModelSpec, OpenSpec};
use std::{sync::Arc, time::Duration};

/// What to load, and how.
#[derive(Clone, Debug)]
pub struct LoadSpec {
    /// The backend.
    pub backend: BackendSource,
    /// Its device.
    pub device: OpenSpec,
    /// The model.
    pub model: ModelSpec,
    /// The engine's bounds.
    pub engine: EngineOptions,
}

/// Why there is no generation.
#[derive(Debug, thiserror::Error)]
pub enum LoadFailure {
    /// The library.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// The tokenizer or the template.
    #[error("{0}")]
    Text(String),
    /// The device or the model.
    #[error("{backend}: {error}")]
    Backend {
        /// The backend's name.
        backend: String,
        /// What it said.
        error: Error,
    },
}

/// How long the threads of a backend that did not load may take to end.
const UNLOAD_WAIT: Duration = Duration::from_secs(5);

/// Loads the backend, the model on a new engine thread, and meanwhile the text on this one. Blocks the calling
/// thread; `services` hears of the progress and can cancel it. The generation is not published: that is
/// [`Slot::switch`].
pub fn load<T, E: std::fmt::Display>(
    slot: &Slot<T>,
    spec: &LoadSpec,
    services: &Services,
    open_text: impl FnOnce() -> Result<T, E>,
) -> Result<Arc<Generation<T>>, LoadFailure> {
    let mut library = Library::load(&spec.backend)?;
    let opened = open(slot.name(), &library, spec, services, open_text);
    match opened {
        Ok((engine, text)) => Ok(Generation::with_library(
            slot.next_number(),
            engine,
            Arc::new(text),
            library,
        )),
        Err(failure) => {
            if let Unload::Retained { reason } = library.close(UNLOAD_WAIT) {
                tracing::warn!(backend = %spec.backend, "the library stays mapped after a failed load: {reason}");
            }
            Err(failure)
        }
    }
}

fn open<T, E: std::fmt::Display>(
    name: &str,
    library: &Library,
    spec: &LoadSpec,
    services: &Services,
    open_text: impl FnOnce() -> Result<T, E>,
) -> Result<(Engine, T), LoadFailure> {
    let (opener, device, model) = (library.opener(), spec.device.clone(), spec.model.clone());
    let for_engine = services.clone();
    let starting = Engine::begin(name, spec.engine, move || {
        let device = Device::load(opener, &device, &model, &for_engine)?;
        Ok(Box::new(device) as Box<dyn DeviceIo>)
    });
    let text = open_text();
    if text.is_err() {
        services.cancel();
    }
    let engine = starting.and_then(|starting| starting.wait());
    match (engine, text) {
        (engine, Err(error)) => {
            if let Ok(engine) = engine {
                engine.shutdown(Duration::ZERO);
            }
            Err(LoadFailure::Text(error.to_string()))
        }
        (Err(error), Ok(_)) => Err(LoadFailure::Backend {
            backend: library.name().into(),
            error,
        }),
        (Ok(engine), Ok(text)) => Ok((engine, text)),
    }
}
