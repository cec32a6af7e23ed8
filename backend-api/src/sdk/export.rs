//! What a backend library exports.

use super::{Backend, open, probe};
use crate::{
    API_VERSION,
    abi::{BackendBox, BackendModule, BackendModule_Ref, Error, HostServicesArc, OpenSpec, ProbeReport},
};
use abi_stable::{
    library::{CheckTypeLayout, LibHeader, RootModuleResult},
    prefix_type::WithMetadata,
    std_types::{RResult, RStr},
};
use std::marker::PhantomData;

/// Exports `$backend` (a [`Backend`](crate::sdk::Backend)) as this library's root module, and defines
/// `root_module()`, through which a host that links the crate in registers it as a built-in.
///
/// Use it once, in the crate's root. It refuses at compile time to build with `panic = "abort"`, under
/// which a panic could not be turned into an error.
#[macro_export]
macro_rules! export_backend {
    ($backend:ty) => {
        #[cfg(panic = "abort")]
        compile_error!("a backend must be built with panic = \"unwind\": a panic has to become an error");

        /// This library's root module.
        pub fn root_module() -> $crate::BackendModule_Ref {
            $crate::sdk::root_module::<$backend>()
        }

        const _: () = {
            extern "C" fn constructor() -> $crate::abi_stable::library::RootModuleResult {
                $crate::sdk::construct(root_module)
            }

            // SAFETY: the one symbol of this name in the library; the loader looks for it.
            #[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
            static HEADER: $crate::abi_stable::library::LibHeader =
                // SAFETY: `constructor` gives a module of the type that the header is made for.
                unsafe { $crate::sdk::header(constructor) };
        };
    };
}

/// The root module of `B`. Used by [`crate::export_backend!`].
pub fn root_module<B: Backend>() -> BackendModule_Ref {
    BackendModule_Ref(Exported::<B>::MODULE.static_as_prefix())
}

/// Runs a root module's constructor for the loader. Used by [`crate::export_backend!`].
pub fn construct(root_module: fn() -> BackendModule_Ref) -> RootModuleResult {
    abi_stable::library::__call_root_module_loader(root_module)
}

/// The header that the loader looks for. Used by [`crate::export_backend!`].
///
/// # Safety
/// `constructor` must return a [`BackendModule_Ref`].
pub const unsafe fn header(constructor: extern "C" fn() -> RootModuleResult) -> LibHeader {
    // SAFETY: the caller's promise.
    unsafe { LibHeader::from_constructor::<BackendModule_Ref>(constructor, CheckTypeLayout::Yes) }
}

struct Exported<B>(PhantomData<B>);

impl<B: Backend> Exported<B> {
    // A static: nothing is allocated for a load, so nothing is left after the unload.
    const MODULE: &'static WithMetadata<BackendModule> = &WithMetadata::new(BackendModule {
        api_version: Self::api_version,
        name: Self::name,
        version: Self::version,
        probe: Self::probe,
        open: Self::open,
    });

    extern "C" fn api_version() -> u32 {
        API_VERSION
    }
    extern "C" fn name() -> RStr<'static> {
        RStr::from_str(B::NAME)
    }
    extern "C" fn version() -> RStr<'static> {
        RStr::from_str(B::VERSION)
    }
    extern "C" fn probe(host: HostServicesArc) -> RResult<ProbeReport, Error> {
        probe::<B>(&host)
    }
    extern "C" fn open(host: HostServicesArc, spec: &OpenSpec) -> RResult<BackendBox, Error> {
        open::<B>(host, spec)
    }
}
