//! Metrics of the process, under the common names (`process_…`), read from `/proc` at each scrape.
//! The prometheus crate's own collector would add a second version of rustix.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge, Registry};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Adds the process's metrics to a registry.
pub(super) fn register(registry: &Registry) {
    registry
        .register(Box::new(Process::new()))
        .expect("the names are constants, registered once per registry");
}

struct Process {
    cpu_seconds: Counter,
    resident_memory: Gauge,
    open_fds: Gauge,
    max_fds: Gauge,
    threads: Gauge,
    start_time: Gauge,
}

impl Process {
    fn new() -> Self {
        let gauge = |name, help| Gauge::new(name, help).expect("the names are constants");
        let start_time = gauge(
            "process_start_time_seconds",
            "When the process started, in seconds since 1970.",
        );
        // The registry is created once, when the process starts.
        start_time.set(seconds(clock_gettime(ClockId::Realtime)));
        Self {
            cpu_seconds: Counter::new(
                "process_cpu_seconds_total",
                "Seconds of CPU time used, user and system.",
            )
            .expect("the name is a constant"),
            resident_memory: gauge("process_resident_memory_bytes", "Resident memory in bytes."),
            open_fds: gauge("process_open_fds", "Open file descriptors."),
            max_fds: gauge(
                "process_max_fds",
                "The most file descriptors that may be open.",
            ),
            threads: gauge("process_threads", "Threads."),
            start_time,
        }
    }

    fn all(&self) -> [&dyn Collector; 6] {
        [
            &self.cpu_seconds,
            &self.resident_memory,
            &self.open_fds,
            &self.max_fds,
            &self.threads,
            &self.start_time,
        ]
    }

    /// Reads the values; one that cannot be read stays as it was.
    fn refresh(&self) {
        let cpu = seconds(clock_gettime(ClockId::ProcessCPUTime));
        self.cpu_seconds
            .inc_by((cpu - self.cpu_seconds.get()).max(0.0));
        if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
            if let Some(kilobytes) = status_field(&status, "VmRSS:") {
                self.resident_memory.set(kilobytes * 1024.0);
            }
            if let Some(threads) = status_field(&status, "Threads:") {
                self.threads.set(threads);
            }
        }
        if let Ok(fds) = std::fs::read_dir("/proc/self/fd") {
            // One of them reads this directory.
            let count = u32::try_from(fds.count().saturating_sub(1)).unwrap_or(u32::MAX);
            self.open_fds.set(f64::from(count));
        }
        #[expect(
            clippy::cast_precision_loss,
            reason = "a limit, far below 2^53 or as good as none"
        )]
        let max_fds = getrlimit(Resource::Nofile)
            .current
            .map_or(f64::INFINITY, |max| max as f64);
        self.max_fds.set(max_fds);
    }
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

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        self.all().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.refresh();
        self.all()
            .into_iter()
            .flat_map(Collector::collect)
            .collect()
    }
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
