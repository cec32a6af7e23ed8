//! Which instruction set the kernels use.

use crate::{Error, Result};
use std::fmt;

/// Names the instruction set to use, in place of the best one that the processor has.
const VARIABLE: &str = "MET_CPU_ISA";

/// Instruction sets that kernels are compiled for, from the least to the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What every processor of this architecture has.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL, DQ and VNNI.
    Avx512,
}

/// An instruction set that this processor has: a value is proof of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Level);

impl Isa {
    /// The one without requirements.
    pub const PORTABLE: Self = Self(Level::Portable);

    /// The one named by the environment variable `MET_CPU_ISA` (`portable`, `avx2`, `avx512`), else the best.
    /// [`crate::ErrorKind::Invalid`] where the named one is unknown or missing here.
    pub fn detect() -> Result<Self> {
        match std::env::var(VARIABLE) {
            Ok(name) => Self::named(&name),
            Err(std::env::VarError::NotPresent) => Ok(Self::best()),
            Err(e) => Err(Error::invalid(format!("{VARIABLE}: {e}"))),
        }
    }

    /// The one of that name, where the processor has it.
    pub fn named(name: &str) -> Result<Self> {
        let level = Level::ALL
            .into_iter()
            .find(|level| level.name() == name)
            .ok_or_else(|| {
                Error::invalid(format!(
                    "{VARIABLE}: {name:?} isn't one of portable, avx2, avx512"
                ))
            })?;
        Self::available().find(|isa| isa.0 == level).ok_or_else(|| {
            Error::invalid(format!(
                "{VARIABLE}: this processor has no {name}; its best is {}",
                Self::best().name()
            ))
        })
    }

    /// Every one that the processor has, from the least to the best.
    pub fn available() -> impl Iterator<Item = Self> {
        Level::ALL
            .into_iter()
            .filter(|level| level.is_available())
            .map(Self)
    }

    /// The best that the processor has.
    pub fn best() -> Self {
        Self::available().last().unwrap_or(Self::PORTABLE)
    }

    /// Which it is.
    pub const fn level(self) -> Level {
        self.0
    }

    /// Its name in `MET_CPU_ISA`.
    pub fn name(self) -> &'static str {
        self.0.name()
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Level {
    const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512];

    fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn is_available(self) -> bool {
        let avx2 = || {
            is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
        };
        let avx512 = || {
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vnni")
        };
        match self {
            Self::Portable => true,
            Self::Avx2 => avx2(),
            Self::Avx512 => avx2() && avx512(),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_available(self) -> bool {
        self == Self::Portable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_or_missing_instruction_set_is_refused() {
        assert_eq!(Isa::named("portable").unwrap(), Isa::PORTABLE);
        assert_eq!(Isa::named(Isa::best().name()).unwrap(), Isa::best());
        let error = Isa::named("sse9").unwrap_err();
        assert!(
            error.message.contains("MET_CPU_ISA") && error.message.contains("sse9"),
            "{error}"
        );
    }
}
