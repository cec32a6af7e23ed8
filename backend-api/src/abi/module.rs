//! The root module: what a backend library exports.

use super::{BackendBox, Error, HostServicesArc, OpenSpec, ProbeReport};
use abi_stable::{
    StableAbi, declare_root_module_statics,
    library::RootModule,
    package_version_strings,
    sabi_types::VersionStrings,
    std_types::{RResult, RStr},
};

/// What a backend library exports. Made by [`crate::export_backend!`].
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = BackendModule_Ref)))]
#[sabi(missing_field(panic))]
pub struct BackendModule {
    /// [`crate::API_VERSION`] that the library was built with.
    pub api_version: extern "C" fn() -> u32,
    /// The backend's name ("cpu").
    pub name: extern "C" fn() -> RStr<'static>,
    /// The backend's own version.
    pub version: extern "C" fn() -> RStr<'static>,
    /// Which devices are usable; makes no context and leaves nothing behind.
    pub probe: extern "C" fn(HostServicesArc) -> RResult<ProbeReport, Error>,
    /// Opens a device. The engine thread calls it, and every later call on what it returns.
    #[sabi(last_prefix_field)]
    pub open: extern "C" fn(HostServicesArc, &OpenSpec) -> RResult<BackendBox, Error>,
}

impl RootModule for BackendModule_Ref {
    declare_root_module_statics! {BackendModule_Ref}
    const BASE_NAME: &'static str = "met_backend";
    const NAME: &'static str = "met_backend";
    const VERSION_STRINGS: VersionStrings = package_version_strings!();
}
