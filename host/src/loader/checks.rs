//! What is checked before a library's objects are trusted.

use super::{LoadError, error};
use abi_stable::{
    StableAbi,
    abi_stability::abi_checking::{
        AbiInstabilityErrors, CheckingGlobals, check_layout_compatibility_with_globals,
    },
    library::{AbiHeaderRef, LibHeader, ROOT_MODULE_LOADER_NAME_WITH_NUL},
    type_layout::TLFieldOrFunction,
};
use libloading::os::unix::Library;
use met_backend_api::{API_VERSION, BackendModule_Ref};

/// Most characters of a layout difference; the raw text can have 36,000.
const LONGEST_DIFFERENCE: usize = 300;

/// The header that a backend exports.
pub(super) fn header(library: &Library, file: &str) -> Result<&'static LibHeader, LoadError> {
    let no_backend = |reason: String| LoadError::NotABackend {
        file: file.to_owned(),
        reason: error::one_line(&reason, LONGEST_DIFFERENCE),
    };
    // SAFETY: whoever exports this name exports such a header, which begins with a magic text.
    let symbol = unsafe { library.get::<AbiHeaderRef>(ROOT_MODULE_LOADER_NAME_WITH_NUL) }
        .map_err(|_| no_backend("it exports no root module".to_owned()))?;
    (*symbol).upgrade().map_err(|e| no_backend(e.to_string()))
}

/// Checks the version of the contract, then every type's layout.
pub(super) fn root_module(header: &'static LibHeader, file: &str) -> Result<BackendModule_Ref, LoadError> {
    // SAFETY: the contract's promise for all versions is that the module's first field is its version.
    // Nothing else is touched before the layout is known.
    let module =
        unsafe { header.unchecked_layout::<BackendModule_Ref>() }.map_err(|e| LoadError::NotABackend {
            file: file.to_owned(),
            reason: error::one_line(&e.to_string(), LONGEST_DIFFERENCE),
        })?;
    let found = (module.api_version())();
    if found != API_VERSION {
        return Err(LoadError::ApiVersion {
            file: file.to_owned(),
            found,
        });
    }
    check_layout(header).map_err(|difference| LoadError::Layout {
        file: file.to_owned(),
        difference,
    })?;
    Ok(module)
}

/// Compares the library's types with this program's. Globals of its own for each check: shared ones keep
/// pointers into libraries that are gone.
fn check_layout(header: &LibHeader) -> Result<(), String> {
    let theirs = header.layout().ok_or("it carries no description of its types")?;
    let ours = <BackendModule_Ref as StableAbi>::LAYOUT;
    check_layout_compatibility_with_globals(ours, theirs, &CheckingGlobals::new())
        .map_err(|e| first_difference(&e))
}

/// Where the first difference is, and what it is. The errors point into the library, the text does not.
fn first_difference(errors: &AbiInstabilityErrors) -> String {
    let Some(first) = errors.errors.iter().find(|e| !e.errs.is_empty()) else {
        return "in a way that was not told".to_owned();
    };
    let path: Vec<&str> = first
        .stack_trace
        .iter()
        .filter_map(|step| name_of(&step.found))
        .collect();
    // After the path and both layouts in full comes what is wrong with each.
    let text = first.to_string();
    let what = text.split_once("\nError:").map_or("", |(_, what)| what);
    error::one_line(&format!("at {}: {what}", path.join(".")), LONGEST_DIFFERENCE)
}

/// The name of a field, where the contract and not `abi_stable` gave it.
fn name_of(step: &TLFieldOrFunction) -> Option<&'static str> {
    match step {
        TLFieldOrFunction::Field(field) => {
            let name = field.name();
            let is_given = !name.starts_with("__") && !["obj", "vtable", "field_0", "0"].contains(&name);
            is_given.then_some(name)
        }
        TLFieldOrFunction::Function(_) => None,
    }
}
