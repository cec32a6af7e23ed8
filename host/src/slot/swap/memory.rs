//! What is free, and what this process holds, as the system says.

use std::fs;

/// Bytes that the system would give without swapping, within the process's control group. `None` where it does not
/// say.
pub fn free() -> Option<u64> {
    let system = field("/proc/meminfo", "MemAvailable:")?;
    let limit = number("/sys/fs/cgroup/memory.max");
    let used = number("/sys/fs/cgroup/memory.current");
    Some(match limit.zip(used) {
        Some((limit, used)) => system.min(limit.saturating_sub(used)),
        None => system,
    })
}

/// Anonymous bytes of this process, those swapped out included: what a leak would show in.
pub fn anonymous() -> Option<u64> {
    let status = "/proc/self/status";
    Some(field(status, "RssAnon:")? + field(status, "VmSwap:")?)
}

/// A line `NAME 123 kB`, in bytes.
fn field(file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

fn number(file: &str) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_says_what_is_free_and_what_we_hold() {
        assert!(free().is_some_and(|bytes| bytes > 1 << 20));
        let held = std::hint::black_box(vec![1_u8; 64 << 20]);
        let told = anonymous().expect("Linux says so");
        assert!(told >= held.len() as u64, "{told}");
    }
}
