//! An owned library: loaded, checked, and closed when its owner says so.

use super::{
    BackendSource, LoadError, Opener,
    image::Image,
    source::Place,
    stage::Staged,
    threads::{self, Owner},
};
use met_backend_api::BackendModule_Ref;
use std::{
    io,
    path::Path,
    sync::{Arc, mpsc},
    time::Duration,
};

/// What a library's initialisers, or its finalisers, may take.
const LONGEST_LINKING: Duration = Duration::from_secs(60);
/// How long the threads of a library that was refused may take to end.
const REFUSED_WAIT: Duration = Duration::from_secs(1);

/// A loaded library; or a built-in, which has the same life but is never unmapped.
///
/// [`close`](Self::close) it after its engine thread was joined. One that is dropped without stays mapped
/// until the program ends, which is safe, and is logged.
#[derive(Debug)]
pub struct Library {
    name: String,
    version: String,
    source: BackendSource,
    shared: Arc<Shared>,
    state: State,
}

/// What every handle on a library holds.
pub(super) struct Shared {
    pub(super) module: BackendModule_Ref,
    /// Whom its threads belong to.
    pub(super) owner: Owner,
}

#[derive(Debug)]
enum State {
    BuiltIn,
    Mapped(Image),
    Closed(Unload),
}

/// What became of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unload {
    /// It has left the process's memory map.
    Unmapped,
    /// It is a part of this program; nothing of it runs any more.
    BuiltIn,
    /// It is still mapped, or still runs.
    Retained {
        /// Why.
        reason: String,
    },
}

impl Library {
    /// Loads a backend and checks that it fits this program. Blocks while the file is copied.
    pub fn load(source: &BackendSource) -> Result<Self, LoadError> {
        if !super::watches_threads() {
            tracing::warn!(
                "this executable does not export pthread_create: what threads a backend leaves is unknown"
            );
        }
        let owner = threads::new_owner();
        let (module, state) = match &source.0 {
            Place::BuiltIn(built_in) => (Module::of((built_in.root_module)()), State::BuiltIn),
            Place::File(file) => load_file(file, owner)?,
        };
        let library = Self {
            name: module.name,
            version: module.version,
            source: source.clone(),
            shared: Arc::new(Shared {
                module: module.root,
                owner,
            }),
            state,
        };
        tracing::debug!(%source, name = library.name, version = library.version, "loaded a backend");
        Ok(library)
    }

    /// The backend's name ("cpu").
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The backend's own version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Where it came from.
    pub fn source(&self) -> &BackendSource {
        &self.source
    }

    /// What the engine thread needs to open a device.
    pub fn opener(&self) -> Opener {
        Opener::new(self.shared.clone())
    }

    /// Unloads the library. Waits at most `wait` for its threads and the engine thread to end.
    ///
    /// [`Unload::Retained`] because of a handle or a thread changes nothing, and may be tried again when
    /// that is gone.
    pub fn close(&mut self, wait: Duration) -> Unload {
        if let State::Closed(unload) = &self.state {
            return unload.clone();
        }
        if let Some(reason) = self.in_use(wait) {
            return Unload::Retained { reason };
        }
        let unload = match std::mem::replace(&mut self.state, State::Closed(Unload::BuiltIn)) {
            State::Mapped(image) => unmap(image, self.shared.owner),
            State::BuiltIn | State::Closed(_) => Unload::BuiltIn,
        };
        self.state = State::Closed(unload.clone());
        unload
    }

    fn in_use(&mut self, wait: Duration) -> Option<String> {
        // Nobody can make another handle meanwhile: that takes one of them, or `self`.
        if Arc::get_mut(&mut self.shared).is_none() {
            let handles = Arc::strong_count(&self.shared) - 1;
            return Some(format!(
                "{handles} of its objects are alive, for a call of it has not come back; report it to its author"
            ));
        }
        still_runs_on(self.shared.owner, wait)
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if let State::Mapped(_) = self.state {
            tracing::warn!(source = %self.source, "a backend library was not closed and stays mapped");
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("owner", &self.owner).finish()
    }
}

/// A root module, and what it says of itself in host memory.
struct Module {
    root: BackendModule_Ref,
    name: String,
    version: String,
}

impl Module {
    /// Runs code of the library.
    fn of(root: BackendModule_Ref) -> Self {
        Self {
            root,
            name: (root.name())().as_str().to_owned(),
            version: (root.version())().as_str().to_owned(),
        }
    }
}

fn load_file(file: &Path, owner: Owner) -> Result<(Module, State), LoadError> {
    let staged = Staged::copy_of(file)?;
    let path = file.to_owned();
    let opened = on_own_thread(owner, move || {
        let mut image = Image::open(staged, &path)?;
        let module = image.root_module(&path).map(Module::of);
        Ok((image, module))
    });
    match opened {
        Ok(Ok((image, Ok(module)))) => Ok((module, State::Mapped(image))),
        Ok(Ok((image, Err(e)))) => {
            let unload = match still_runs_on(owner, REFUSED_WAIT) {
                Some(reason) => Unload::Retained { reason },
                None => unmap(image, owner),
            };
            if let Unload::Retained { reason } = unload {
                tracing::warn!("{} was refused, but stays mapped: {reason}", file.display());
            }
            Err(e)
        }
        Ok(Err(e)) => Err(e),
        Err(NotRun::NoThread(e)) => Err(LoadError::NoThread {
            file: file.display().to_string(),
            reason: e.to_string(),
        }),
        Err(NotRun::Hung) => Err(LoadError::Hung {
            file: file.display().to_string(),
            waited: LONGEST_LINKING,
        }),
    }
}

/// The threads that have not ended after `wait`, as a reason to keep the code that they run.
fn still_runs_on(owner: Owner, wait: Duration) -> Option<String> {
    let alive = threads::wait_for_the_end_of(owner, wait);
    (!alive.is_empty()).then(|| format!("its code still runs on {}", alive.join(", ")))
}

/// Unmaps an image that no thread and no handle uses.
fn unmap(image: Image, owner: Owner) -> Unload {
    // SAFETY: the callers have seen the end of every thread and handle.
    let closed = on_own_thread(owner, move || unsafe { image.close() });
    match closed {
        Ok(Ok(())) => Unload::Unmapped,
        Ok(Err(reason)) => Unload::Retained { reason },
        Err(NotRun::NoThread(e)) => Unload::Retained {
            reason: format!("the system gives no thread for its finalisers: {e}"),
        },
        Err(NotRun::Hung) => Unload::Retained {
            reason: format!("its finalisers did not return within {LONGEST_LINKING:?}"),
        },
    }
}

/// Why a library's code gave no result.
enum NotRun {
    /// The system gives no thread for it.
    NoThread(io::Error),
    /// It takes too long; its thread is left behind.
    Hung,
}

/// Runs code of a library on a thread that ends with it, so that no thread-local of the library stays on
/// a thread of the host's.
fn on_own_thread<T: Send + 'static>(
    owner: Owner,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NotRun> {
    let (send, receive) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new()
        .name("met-loader".to_owned())
        .spawn(move || {
            threads::adopt_current(owner);
            let _scope = threads::act_for(owner);
            // Nobody receives once it took too long.
            let _ = send.send(run());
        });
    let thread = thread.map_err(NotRun::NoThread)?;
    match receive.recv_timeout(LONGEST_LINKING) {
        Ok(result) => {
            let _ = thread.join();
            Ok(result)
        }
        Err(mpsc::RecvTimeoutError::Timeout) => Err(NotRun::Hung),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => Err(NotRun::Hung),
        },
    }
}
