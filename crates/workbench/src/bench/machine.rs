//! The load of other programs during a measurement.

/// CPU time so far, in clock ticks: of everything, and of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuTimes {
    all: u64,
    own: u64,
    available: u64,
}

impl CpuTimes {
    /// Reads the clocks; `None` where there is no `/proc`.
    pub(crate) fn now() -> Option<Self> {
        let (all, available) = busy_and_available(&std::fs::read_to_string("/proc/stat").ok()?)?;
        Some(Self { all, own: own_ticks(&std::fs::read_to_string("/proc/self/stat").ok()?)?, available })
    }

    /// The share of the cores that others took since `start`, 0 to 1. Time stolen by other guests counts.
    pub(crate) fn others_since(self, start: Self) -> f64 {
        let available = self.available.saturating_sub(start.available).max(1);
        let others = (self.all.saturating_sub(start.all)).saturating_sub(self.own.saturating_sub(start.own));
        others as f64 / available as f64
    }
}

/// The first line of `/proc/stat`: user nice system idle iowait irq softirq steal …
fn busy_and_available(stat: &str) -> Option<(u64, u64)> {
    let fields: Vec<u64> = stat.lines().next()?.split_whitespace().skip(1).map_while(|w| w.parse().ok()).collect();
    let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = fields[..] else { return None };
    let busy = user + nice + system + irq + softirq + steal;
    Some((busy, busy + idle + iowait))
}

/// utime and stime, fields 14 and 15 of `/proc/self/stat`; the name in field 2 may contain blanks.
fn own_ticks(stat: &str) -> Option<u64> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    let mut fields = after_name.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_others_is_what_is_busy_and_not_ours() {
        let at = |all, own, available| CpuTimes { all, own, available };
        assert_eq!(at(300, 250, 400).others_since(at(100, 100, 200)), 0.25);
        assert_eq!(at(100, 101, 200).others_since(at(0, 0, 0)), 0.0);
    }

    #[test]
    fn the_clocks_are_read_from_proc() {
        assert_eq!(busy_and_available("cpu  10 1 5 100 7 2 3 4 0 0\ncpu0 1"), Some((25, 132)));
        let stat = "42 (a (b) c) R 1 2 3 4 5 6 7 8 9 10 70 30 0 0";
        assert_eq!(own_ticks(stat), Some(100));
    }
}
