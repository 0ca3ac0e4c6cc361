//! Metrics of the process, under the common names (`process_…`), read from `/proc` at each scrape.
//! The prometheus crate's own collector would add a second version of rustix.

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::families::Families;

/// Notes the start of the process: the registry is made once, then.
pub(super) fn started(families: &Families) {
    let now = seconds(clock_gettime(ClockId::Realtime));
    families.process_start_time.set(now);
}

/// Reads the values; one that cannot be read stays as it was.
pub(super) fn refresh(families: &Families) {
    let cpu = seconds(clock_gettime(ClockId::ProcessCPUTime));
    let counted = families.process_cpu.get();
    families.process_cpu.inc_by((cpu - counted).max(0.0));
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        if let Some(kilobytes) = status_field(&status, "VmRSS:") {
            families.process_memory.set(kilobytes * 1024.0);
        }
        if let Some(threads) = status_field(&status, "Threads:") {
            families.process_threads.set(threads);
        }
    }
    if let Ok(fds) = std::fs::read_dir("/proc/self/fd") {
        // One of them reads this directory.
        let count = u32::try_from(fds.count().saturating_sub(1)).unwrap_or(u32::MAX);
        families.process_open_fds.set(f64::from(count));
    }
    #[expect(
        clippy::cast_precision_loss,
        reason = "a limit, far below 2^53 or as good as none"
    )]
    let max_fds = getrlimit(Resource::Nofile)
        .current
        .map_or(f64::INFINITY, |max| max as f64);
    families.process_max_fds.set(max_fds);
}

#[expect(clippy::cast_precision_loss, reason = "seconds, far below 2^53")]
fn seconds(time: Timespec) -> f64 {
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The number behind a field's name in `/proc/self/status`.
fn status_field(status: &str, name: &str) -> Option<f64> {
    let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::status_field;

    #[test]
    fn fields_of_the_status_file() {
        let status = "Name:\tfencepost\nVmRSS:\t    1234 kB\nThreads:\t7\n";
        assert_eq!(status_field(status, "VmRSS:"), Some(1234.0));
        assert_eq!(status_field(status, "Threads:"), Some(7.0));
        assert_eq!(status_field(status, "VmSwap:"), None);
    }
}
