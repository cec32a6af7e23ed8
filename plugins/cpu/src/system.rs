//! What the operating system says about the machine.

use met_backend_api::Error;
use std::fs;

/// Memory of the machine, or of the control group that this process is confined to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) free: u64,
    pub(crate) total: u64,
}

/// Memory now.
pub(crate) fn memory() -> Result<Memory, Error> {
    let text = fs::read_to_string("/proc/meminfo").map_err(|e| {
        Error::invalid(format!(
            "/proc/meminfo can't be read ({e}); the CPU backend needs Linux with /proc mounted"
        ))
    })?;
    let machine = from_meminfo(&text).ok_or_else(|| {
        Error::invalid(
            "/proc/meminfo lacks MemTotal or MemAvailable; the CPU backend needs Linux 3.14 or later",
        )
    })?;
    Ok(match group() {
        None => machine,
        Some(group) => Memory {
            free: machine.free.min(group.free),
            total: machine.total.min(group.total),
        },
    })
}

/// Threads that can run at a time.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

/// The processor's name.
pub(crate) fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name"));
    name.map_or_else(
        || std::env::consts::ARCH.to_owned(),
        |name| name.trim_start_matches([' ', '\t', ':']).to_owned(),
    )
}

fn from_meminfo(text: &str) -> Option<Memory> {
    let kilobytes = |key: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim_start_matches(':')
            .trim()
            .strip_suffix("kB")?
            .trim()
            .parse()
            .ok()
    };
    Some(Memory {
        free: kilobytes("MemAvailable")?.checked_mul(1024)?,
        total: kilobytes("MemTotal")?.checked_mul(1024)?,
    })
}

/// The limit of a version 2 control group at the root of the mounted hierarchy, as in a container.
fn group() -> Option<Memory> {
    let number = |name: &str| -> Option<u64> {
        let text = fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?;
        text.trim().parse().ok()
    };
    // "max" is no number: then there is no limit.
    let total = number("memory.max")?;
    let stat = fs::read_to_string("/sys/fs/cgroup/memory.stat").unwrap_or_default();
    let used = number("memory.current")?.saturating_sub(reclaimable(&stat));
    Some(Memory {
        free: total.saturating_sub(used),
        total,
    })
}

/// Bytes of cached files that nobody has used for a while: the system takes them back when memory is needed.
fn reclaimable(stat: &str) -> u64 {
    let value = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_bytes() {
        let text = "MemTotal:       16384 kB\nMemFree:  1 kB\nMemAvailable:    8192 kB\n";
        let memory = from_meminfo(text).unwrap();
        assert_eq!((memory.free, memory.total), (8 << 20, 16 << 20));
        assert_eq!(from_meminfo("MemTotal: 1 kB\n"), None);
        assert_eq!(from_meminfo("MemTotal: x kB\nMemAvailable: 1 kB\n"), None);
    }

    #[test]
    fn this_machine_has_memory_cores_and_a_name() {
        let memory = memory().unwrap();
        assert!(memory.free > 0 && memory.free <= memory.total);
        assert!(cores() > 0);
        assert!(!processor().is_empty());
    }
}
