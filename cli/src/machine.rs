//! What this machine is: its cores, its memory, its name.
//!
//! Where the machine does not say (not Linux, no `/proc`), the answer is `None`, never a guess.

use std::fs;

/// The cores that this process may use, by number.
pub(crate) fn allowed_cores() -> Vec<usize> {
    #[cfg(target_os = "linux")]
    if let Ok(set) = rustix::thread::sched_getaffinity(None) {
        return (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect();
    }
    Vec::new()
}

/// Keeps the calling thread on one core; says whether that worked.
pub(crate) fn pin_to_core(core: usize) -> bool {
    #[cfg(target_os = "linux")]
    if core < rustix::thread::CpuSet::MAX_CPU {
        let mut set = rustix::thread::CpuSet::new();
        set.set(core);
        return rustix::thread::sched_setaffinity(None, &set).is_ok();
    }
    let _ = core;
    false
}

/// Lets this process open as many files as the system grants: what a shell grants by default is less than a rank each.
pub(crate) fn allow_many_files() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        // If that is refused, the file that cannot be opened says so.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

/// Bytes that can still be had without swapping, within this process's control group and its addresses.
pub(crate) fn available_memory_bytes() -> Option<u64> {
    let free = fs::read_to_string("/proc/meminfo").ok().and_then(|text| kilobytes(&text, "MemAvailable:"));
    [free, control_group_bytes(), address_bytes_left()].into_iter().flatten().min()
}

/// Bytes of addresses that this process may still take, if they are limited (`ulimit -v`).
///
/// Small allocations that fail abort a Rust program, so what would come close to this limit has to be refused beforehand.
pub(crate) fn address_bytes_left() -> Option<u64> {
    #[cfg(target_os = "linux")]
    {
        let limit = rustix::process::getrlimit(rustix::process::Resource::As).current?;
        let status = fs::read_to_string("/proc/self/status").ok()?;
        Some(limit.saturating_sub(kilobytes(&status, "VmSize:")?))
    }
    #[cfg(not(target_os = "linux"))]
    {
        None
    }
}

/// A line `name number kB` of a file of the system's, in bytes.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What the control group leaves: version 2's files, or version 1's. Cached files that nobody uses count as free.
fn control_group_bytes() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let [version_2, version_1] = [
        ("/sys/fs/cgroup/memory", ["max", "current", "stat"], "inactive_file"),
        ("/sys/fs/cgroup/memory/memory", ["limit_in_bytes", "usage_in_bytes", "stat"], "total_inactive_file"),
    ]
    .map(|(stem, [limit, usage, statistics], cached)| {
        let limit = read(&format!("{stem}.{limit}"))?;
        let usage = read(&format!("{stem}.{usage}"))?;
        let statistics = fs::read_to_string(format!("{stem}.{statistics}")).unwrap_or_default();
        Some(limit.saturating_sub(usage.saturating_sub(statistic(&statistics, cached).unwrap_or(0))))
    });
    version_2.or(version_1)
}

/// A line `name value` of a control group's statistics.
fn statistic(statistics: &str, name: &str) -> Option<u64> {
    statistics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The host's name.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The processor's name.
pub(crate) fn processor_name() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.trim_start().strip_prefix(':'));
    name.map_or(std::env::consts::ARCH, str::trim).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_from_meminfo() {
        let text = "MemTotal:       24000000 kB\nMemFree: 1 kB\nMemAvailable:   23000000 kB\n";
        assert_eq!(kilobytes(text, "MemAvailable:"), Some(23_000_000 * 1024));
        assert_eq!(kilobytes("MemAvailable: many kB", "MemAvailable:"), None);
        assert_eq!(kilobytes("", "MemAvailable:"), None);
    }

    #[test]
    fn cached_files_are_read_from_the_statistics_of_a_control_group() {
        let text = "inactive_file_more 1\ninactive_anon 2\ninactive_file 4096\n";
        assert_eq!(statistic(text, "inactive_file"), Some(4096));
        assert_eq!(statistic(text, "total_inactive_file"), None);
    }
}
