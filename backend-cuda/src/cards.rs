//! Which cards there are, found without making a context.

use crate::{
    context::attribute,
    error::{Checked, NEEDED_DRIVER},
};
use cudarc::driver::{
    result::{self, device},
    sys::{self, CUdevice, CUdevice_attribute::*},
};
use met_backend_api::DeviceInfo;
use met_kernels::{Error, Result};

/// The lowest compute capability that the kernels run on: tensor cores' m16n8k16, asynchronous copies.
const NEEDED_COMPUTE: (i32, i32) = (8, 0);
/// The CUDA version of the oldest driver.
const NEEDED_CUDA: i32 = 12_000;

/// Starts the driver, or says what is missing.
pub(crate) fn start_driver() -> Result<()> {
    // SAFETY: only tries to open the driver's library, whose constructors are the system's own.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::invalid(format!(
            "the driver's library libcuda.so.1 is not found; the CUDA backend needs {NEEDED_DRIVER}, and nothing else"
        )));
    }
    result::init().while_doing("starting the NVIDIA driver")?;
    let mut version = 0;
    // SAFETY: writes the number and nothing else.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }
        .result()
        .while_doing("asking for the driver's version")?;
    if version < NEEDED_CUDA {
        return Err(Error::invalid(format!(
            "the NVIDIA driver is for CUDA {}.{}; the CUDA backend needs {NEEDED_DRIVER}",
            version / 1000,
            version % 1000 / 10
        )));
    }
    Ok(())
}

/// The usable cards, and a line for each of the others.
pub(crate) fn list() -> Result<(Vec<DeviceInfo>, Vec<String>)> {
    let (mut usable, mut others) = (Vec::new(), Vec::new());
    for index in 0..device::get_count().while_doing("counting the cards")? {
        let card = device::get(index).while_doing("opening a card")?;
        let info = describe(index as u32, card)?;
        match compute(card)? >= NEEDED_COMPUTE {
            true => usable.push(info),
            false => others.push(format!(
                "{} has {}, but 8.0 (Ampere) is needed",
                info.name, info.features
            )),
        }
    }
    Ok((usable, others))
}

/// One card; an error where there is none of this number or it is too old.
pub(crate) fn find(index: u32) -> Result<DeviceInfo> {
    let (usable, others) = list()?;
    let count = usable.len();
    usable
        .into_iter()
        .find(|info| info.index == index)
        .ok_or_else(|| {
            Error::invalid(format!(
                "there is no usable CUDA device {index}; {count} are usable{}",
                others.iter().map(|line| format!("; {line}")).collect::<String>()
            ))
        })
}

fn describe(index: u32, card: CUdevice) -> Result<DeviceInfo> {
    let (major, minor) = compute(card)?;
    // SAFETY: `card` was given by the driver.
    let total = unsafe { device::total_mem(card) }.while_doing("asking for a card's memory")?;
    Ok(DeviceInfo {
        index,
        kind: "cuda".into(),
        name: device::get_name(card)
            .while_doing("asking for a card's name")?
            .into(),
        features: format!("compute {major}.{minor}").into(),
        total_memory: total as u64,
        compute_units: attribute(card, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.cast_unsigned(),
    })
}

fn compute(card: CUdevice) -> Result<(i32, i32)> {
    Ok((
        attribute(card, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(card, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    ))
}
