//! The kernel table of `bench --kernels` and `run --profile`: each kernel's share of a step's time, compared with the
//! machine's limits.

use serde_json::{Value, json};

use engine::plan::profile::{Profile, ProfileEntry};
use workbench::bench::limits::MachineLimits;

/// A profile and the limits that it is compared with.
pub(super) struct KernelTable<'a> {
    pub(crate) profile: &'a Profile,
    pub(crate) limits: &'a MachineLimits,
    /// What the figures are of: their sums are divided by it.
    pub(crate) n_steps: usize,
}

impl KernelTable<'_> {
    /// Node, template and figures, the longest first, and their sum.
    pub(crate) fn header(&self) -> Vec<String> {
        let memory = format!("% of {}", self.limits.memory_name());
        let flop = format!("% of {}", self.limits.flop_name());
        let fixed = [
            "node",
            "template",
            "calls",
            "us/call",
            "ms",
            "% of step",
            "MB",
            "GB/s",
            &memory,
            self.limits.flop_unit().1,
            &flop,
        ];
        fixed.map(str::to_owned).into()
    }

    /// As [`Self::header`] names them.
    pub(crate) fn rows(&self) -> Vec<Vec<String>> {
        let rows = self.profile.rows();
        let all = rows.iter().map(|(node, template, entry)| (*node, *template, *entry));
        all.chain([("sum", "", self.profile.total())])
            .map(|(node, template, entry)| self.row(node, template, entry))
            .collect()
    }

    fn row(&self, node: &str, template: &str, entry: ProfileEntry) -> Vec<String> {
        let rates = self.rates(entry);
        let n = self.n_steps as f64;
        vec![
            node.to_owned(),
            template.to_owned(),
            format!("{}", entry.calls / self.n_steps),
            format!("{:.2}", 1e6 * rates.seconds / entry.calls as f64),
            format!("{:.3}", 1e3 * rates.seconds / n),
            format!("{:.1}", 100.0 * rates.share),
            format!("{:.2}", entry.bytes / n / 1e6),
            format!("{:.1}", rates.bytes_per_s / 1e9),
            percent(rates.bytes_per_s, self.limits.memory_bytes_per_s()),
            format!("{:.2}", rates.flop_per_s / self.limits.flop_unit().0),
            percent(rates.flop_per_s, self.limits.flop_per_s()),
        ]
    }

    fn rates(&self, entry: ProfileEntry) -> Rates {
        let seconds = entry.time.as_secs_f64().max(1e-12);
        Rates {
            seconds,
            share: seconds / self.profile.step_time.as_secs_f64().max(1e-12),
            bytes_per_s: entry.bytes / seconds,
            flop_per_s: entry.flop / seconds,
        }
    }

    /// What the kernels come to beside the step as a whole, and what of it launches cost.
    pub(crate) fn summary(&self) -> String {
        let per_step_ms = |seconds: f64| 1e3 * seconds / self.n_steps as f64;
        let total = self.profile.total();
        let (sum_s, step_s) = (total.time.as_secs_f64(), self.profile.step_time.as_secs_f64());
        let launches = total.calls / self.n_steps;
        let mut text = format!(
            "{launches} launches: kernels one by one {:.3} ms, all of them as the step has them {:.3} ms",
            per_step_ms(sum_s),
            per_step_ms(step_s)
        );
        if let Some(launch) = self.limits.launch {
            let launch_ms = launches as f64 * 1e3 * launch.as_secs_f64();
            text += &format!("; that many empty launches take {launch_ms:.3} ms");
        }
        text
    }

    /// The same for programs.
    pub(crate) fn json(&self) -> Value {
        let row = |(node, template, entry): (&str, &str, ProfileEntry)| {
            let rates = self.rates(entry);
            json!({
                "node": node, "template": template, "calls": entry.calls,
                "us_per_call": 1e6 * rates.seconds / entry.calls as f64, "ms": 1e3 * rates.seconds,
                "step_fraction": rates.share, "bytes": entry.bytes, "flop": entry.flop,
                "gbps": rates.bytes_per_s / 1e9, "tflops": rates.flop_per_s / 1e12,
                "memory_fraction": rates.bytes_per_s / self.limits.memory_bytes_per_s(),
                "flop_fraction": rates.flop_per_s / self.limits.flop_per_s(),
            })
        };
        let total = self.profile.total();
        json!({
            "steps": self.profile.steps, "launches": total.calls,
            "kernels_ms": 1e3 * total.time.as_secs_f64(), "step_ms": 1e3 * self.profile.step_time.as_secs_f64(),
            "nodes": self.profile.rows().into_iter().map(row).collect::<Vec<_>>(),
        })
    }
}

struct Rates {
    seconds: f64,
    /// Of the step, when no kernel's time is taken.
    share: f64,
    bytes_per_s: f64,
    flop_per_s: f64,
}
/// The percentage, where the limit is known.
fn percent(part: f64, limit: f64) -> String {
    if limit.is_nan() { "-".into() } else { format!("{:.1}", 100.0 * part / limit) }
}
