//! The process metrics that Prometheus' clients usually have, from `/proc`.

use std::fs;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Parts of a second in which Linux tells times of processes.
const TICKS_PER_SECOND: f64 = 100.0;

type Number = Gauge<f64, std::sync::atomic::AtomicU64>;

/// Adds what can be read.
pub(super) fn add(registry: &mut Registry) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let number = |registry: &mut Registry, name: &str, help: &str, value: Option<f64>| {
        if let Some(value) = value {
            let gauge = Number::default();
            gauge.set(value);
            registry.register(name, help, gauge);
        }
    };
    if let Some(seconds) = cpu_seconds(&stat) {
        let counter = Counter::<f64, std::sync::atomic::AtomicU64>::default();
        counter.inc_by(seconds);
        registry.register("process_cpu_seconds", "Processor time", counter);
    }
    number(registry, "process_resident_memory_bytes", "Resident memory", bytes(&status, "VmRSS:"));
    number(registry, "process_virtual_memory_bytes", "Virtual memory", bytes(&status, "VmSize:"));
    let open = fs::read_dir("/proc/self/fd").ok().map(|open| open.count() as f64);
    number(registry, "process_open_fds", "Open file descriptors", open);
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    number(registry, "process_max_fds", "File descriptors that may be open", max_files(&limits));
    let boot = fs::read_to_string("/proc/stat").unwrap_or_default();
    number(registry, "process_start_time_seconds", "Start time in seconds since 1970", started(&stat, &boot));
}

/// The fields of `/proc/self/stat` after the name, which may have blanks: the first is the third of all.
fn field(stat: &str, number: usize) -> Option<f64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(number - 3)?.parse().ok()
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    Some((field(stat, 14)? + field(stat, 15)?) / TICKS_PER_SECOND)
}

fn bytes(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.parse::<f64>().ok().map(|kib| kib * 1024.0)
}

fn max_files(limits: &str) -> Option<f64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

fn started(stat: &str, boot: &str) -> Option<f64> {
    let booted: f64 = boot.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(booted + field(stat, 22)? / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_where_linux_has_them() {
        let stat = "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 13 14 15 16 17 18 700 20";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(started(stat, "cpu 1\nbtime 1000\n"), Some(1007.0));
        assert_eq!(bytes("VmSize:\t 8 kB\nVmRSS:\t  2 kB\n", "VmRSS:"), Some(2048.0));
        assert_eq!(max_files("Limit\nMax open files            1024      4096     files\n"), Some(1024.0));
        assert_eq!(cpu_seconds(""), None);
    }
}
