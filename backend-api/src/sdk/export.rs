//! The export macro.

/// Exports `$backend` (a [`Backend`](crate::sdk::Backend)) as this library's root module.
///
/// Refuses at compile time to build with `panic = "abort"`, under which a panic could not be turned into
/// an error.
#[macro_export]
macro_rules! export_backend {
    ($backend:ty) => {
        const _: () = {
            #[cfg(panic = "abort")]
            compile_error!("a backend must be built with panic = \"unwind\": a panic has to become an error");

            use $crate::abi::{
                BackendBox, BackendModule, BackendModule_Ref, Error, HostServicesArc, OpenSpec, ProbeReport,
            };
            use $crate::abi_stable::{
                self,
                prefix_type::WithMetadata,
                std_types::{RResult, RStr},
            };
            use $crate::sdk::Backend;

            extern "C" fn api_version() -> u32 {
                $crate::API_VERSION
            }
            extern "C" fn name() -> RStr<'static> {
                RStr::from_str(<$backend as Backend>::NAME)
            }
            extern "C" fn version() -> RStr<'static> {
                RStr::from_str(<$backend as Backend>::VERSION)
            }
            extern "C" fn probe(host: HostServicesArc) -> RResult<ProbeReport, Error> {
                $crate::sdk::probe::<$backend>(&host)
            }
            extern "C" fn open(host: HostServicesArc, spec: &OpenSpec) -> RResult<BackendBox, Error> {
                $crate::sdk::open::<$backend>(host, spec)
            }

            // A static: nothing is allocated for a load, so nothing is left after the unload.
            const MODULE: &WithMetadata<BackendModule> = &WithMetadata::new(BackendModule {
                api_version,
                name,
                version,
                probe,
                open,
            });

            /// This library's root module.
            #[abi_stable::export_root_module]
            pub fn root_module() -> BackendModule_Ref {
                BackendModule_Ref(MODULE.static_as_prefix())
            }
        };
    };
}
