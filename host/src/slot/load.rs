//! The load: from a specification to a generation that serves, or to an error that leaves nothing behind.

use super::{Generation, ModelText, Slot};
use crate::{
    engine::{DeviceIo, Engine, EngineOptions, StartFailure, TeardownReport},
    loader::{BackendSource, Device, Library, LoadError, Services, Unload},
};
use met_backend_api::{Error, ModelSpec, OpenSpec};
use std::{
    os::unix::fs::MetadataExt,
    path::Path,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

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
    /// How long the device may take to open and the model to load.
    pub deadline: Duration,
}

/// How long a load may take where nobody says otherwise.
pub const LOAD_DEADLINE: Duration = Duration::from_secs(600);

/// A load that came to nothing.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub struct LoadFailure {
    /// The number that the generation would have had.
    pub number: u64,
    /// Why.
    pub problem: LoadProblem,
    /// What was given back, where a device was opened.
    pub teardown: Option<Box<TeardownReport>>,
    /// What became of the library, where it was loaded.
    pub unload: Option<Unload>,
}

/// Why there is no generation.
#[derive(Debug, thiserror::Error)]
pub enum LoadProblem {
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
    /// It took too long.
    #[error("{backend}: the model was not loaded within {} s; give the load more time, or look at the disk", deadline.as_secs_f32())]
    Late {
        /// The backend's name.
        backend: String,
        /// How long it had.
        deadline: Duration,
    },
}

/// How long the threads of a backend that did not load may take to end.
const UNLOAD_WAIT: Duration = Duration::from_secs(1);
/// How long a load that was cancelled may take to see that.
const CANCEL_WAIT: Duration = Duration::from_millis(800);

/// Loads the backend, the model on a new engine thread, and meanwhile the text on this one. Blocks the calling
/// thread; `services` hears of the progress and can cancel it. The generation is not published: that is
/// [`Slot::switch`].
///
/// A load that does not heed its cancellation, or takes longer than it may, is left to itself: its library stays
/// mapped, and if it does come back, it gives back what it took.
pub fn load<T: ModelText>(
    slot: &Slot<T>,
    spec: &LoadSpec,
    services: &Services,
) -> Result<Arc<Generation<T>>, LoadFailure> {
    let number = slot.next_number();
    let library = Library::load(&spec.backend).map_err(|error| LoadFailure {
        number,
        problem: error.into(),
        teardown: None,
        unload: None,
    })?;
    match open(slot, &library, spec, services) {
        Ok((engine, text)) => {
            slot.set_text(&text);
            let spec = spec.clone();
            Ok(Generation::with_library(number, engine, text, spec, library))
        }
        Err((problem, teardown)) => Err(LoadFailure {
            number,
            problem,
            teardown,
            unload: Some(close_unused(library)),
        }),
    }
}

/// Whether a load can come to anything, as far as that is known without a device: the library is a backend of our
/// contract, and the text can be read. Keeps nothing.
///
/// # Errors
/// As [`load`] would.
pub fn look<T: ModelText>(slot: &Slot<T>, spec: &LoadSpec) -> Result<(), LoadProblem> {
    let library = Library::load(&spec.backend)?;
    let text = text(slot, Path::new(spec.model.path.as_str()));
    close_unused(library);
    text.map(drop).map_err(LoadProblem::Text)
}

fn close_unused(mut library: Library) -> Unload {
    let unload = library.close(UNLOAD_WAIT);
    if let Unload::Retained { reason } = &unload {
        tracing::warn!(backend = %library.source(), "the library stays mapped though it serves nothing: {reason}");
    }
    unload
}

fn text<T: ModelText>(slot: &Slot<T>, path: &Path) -> Result<Arc<T>, String> {
    match slot.text() {
        Some(earlier) => T::again(path, &earlier),
        None => T::open(path).map(Arc::new),
    }
}

/// Tells a model file from the next one under its name: the text and the weights must be of the same one.
#[derive(PartialEq, Eq)]
struct FileState(Option<(u64, u64, u64, Option<SystemTime>)>);

impl FileState {
    fn of(path: &Path) -> Self {
        let metadata = path.metadata().ok();
        Self(metadata.map(|m| (m.dev(), m.ino(), m.len(), m.modified().ok())))
    }

    /// Whether there is another file now. Where there is none any more, whoever opened the path opened this one.
    fn is_replaced(&self, path: &Path) -> bool {
        let now = Self::of(path);
        now.0.is_some() && now != *self
    }
}

/// Why nothing was opened, and what was given back.
type NotOpened = (LoadProblem, Option<Box<TeardownReport>>);

fn open<T: ModelText>(
    slot: &Slot<T>,
    library: &Library,
    spec: &LoadSpec,
    services: &Services,
) -> Result<(Engine, Arc<T>), NotOpened> {
    let (opener, device, model) = (library.opener(), spec.device.clone(), spec.model.clone());
    let for_engine = services.clone();
    let path = Path::new(spec.model.path.as_str());
    let file = FileState::of(path);
    let starting = Engine::begin(slot.name(), spec.engine, move || {
        let device = Device::load(opener, &device, &model, &for_engine)?;
        Ok(Box::new(device) as Box<dyn DeviceIo>)
    });
    let text = text(slot, path);
    if text.is_err() {
        services.cancel();
    }
    let began = Instant::now();
    let is_late = || began.elapsed() >= spec.deadline;
    let mut cancelled = None;
    let patient = || {
        if services.is_cancelled() {
            return cancelled.get_or_insert_with(Instant::now).elapsed() < CANCEL_WAIT;
        }
        if is_late() {
            services.cancel();
        }
        true
    };
    let engine = starting
        .map_err(StartFailure::from)
        .and_then(|starting| starting.wait_while(patient));
    let backend = || library.name().to_owned();
    match (engine, text) {
        (Ok(engine), Ok(text)) if !file.is_replaced(path) => Ok((engine, text)),
        (Ok(engine), text) => {
            let error = text.err().unwrap_or_else(|| {
                format!(
                    "{}: the file was replaced while the model was being loaded; load it again",
                    path.display()
                )
            });
            let teardown = engine.shutdown(Duration::ZERO);
            Err((LoadProblem::Text(error), Some(Box::new(teardown))))
        }
        (Err(failure), Err(error)) => Err((LoadProblem::Text(error), failure.teardown)),
        (Err(StartFailure { error, teardown }), Ok(_)) => {
            let problem = match is_late() {
                true => LoadProblem::Late {
                    backend: backend(),
                    deadline: spec.deadline,
                },
                false => LoadProblem::Backend {
                    backend: backend(),
                    error,
                },
            };
            Err((problem, teardown))
        }
    }
}
