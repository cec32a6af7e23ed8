//! What is free, and what this process holds, as the system says.

use std::{fs, path::Path};

/// Bytes that the system would give without swapping, within the process's control group. `None` where it does not
/// say.
pub fn free() -> Option<u64> {
    let system = field("/proc/meminfo", "MemAvailable:")?;
    Some(group(Path::new("/sys/fs/cgroup")).map_or(system, |group| system.min(group)))
}

/// Bytes that a control group has left; `None` where it has no limit. Cached files that nobody has used for a while,
/// as models that were read, are no loss: the system takes them back when memory is needed.
fn group(folder: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let limit = number(&read("memory.max")?)?;
    let used = number(&read("memory.current")?)?;
    let stat = read("memory.stat").unwrap_or_default();
    let cached = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
    let cached = cached.and_then(number).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cached)))
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

    #[test]
    fn a_group_has_left_what_it_does_not_use_but_for_a_cache() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(group(folder.path()), None);
        write("memory.max", "max\n");
        write("memory.current", "70\n");
        assert_eq!(group(folder.path()), None);
        write("memory.max", "100\n");
        assert_eq!(group(folder.path()), Some(30));
        write("memory.stat", "anon 20\ninactive_file 45\nactive_file 5\n");
        assert_eq!(group(folder.path()), Some(75));
        write("memory.current", "120\n");
        assert_eq!(group(folder.path()), Some(25));
    }
}
