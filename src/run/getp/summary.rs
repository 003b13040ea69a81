//! The results of a run: a line for people, an object for programs, a file of metrics.

use std::fs;

use serde_json::{Value, json};

use super::Args;
use crate::args::KernelCounts;
use crate::output::Output;
use batch::replica::{BatchReplicaReady, Did};
use batch::work::Statistics;
use system::units::counted;

pub(super) struct Summary<'a> {
    pub(crate) args: &'a Args,
    /// Those that answered.
    pub(crate) replicas: &'a [BatchReplicaReady],
    /// Tokens a second that the device cannot pass, where that is known.
    pub(crate) limit: Option<f64>,
    /// What they did, all together.
    pub(crate) did: Did,
    pub(crate) statistics: &'a Statistics,
    pub(crate) n_prompts: usize,
    /// Answers of runs before.
    pub(crate) n_resumed: usize,
    /// From the first prompt's reading to the last token.
    pub(crate) seconds: f64,
    /// Of these, those in which all prompts were looked at.
    pub(crate) survey_s: f64,
}

impl Summary<'_> {
    /// As the seeds count: all generated tokens, stop tokens included, over the time from tokenizing to the last one.
    fn tok_per_s(&self) -> Option<f64> {
        let n_tokens = self.statistics.n_tokens;
        (self.seconds > 0.0 && n_tokens > 0).then(|| n_tokens as f64 / self.seconds)
    }

    /// The part of the limit that was reached.
    fn limit_fraction(&self) -> Option<f64> {
        self.tok_per_s().zip(self.limit).map(|(rate, limit)| rate / limit)
    }

    /// What the devices took for a token, where their drivers say.
    fn joules_per_token(&self) -> Option<f64> {
        let n_tokens = self.statistics.n_tokens;
        self.did.joules.filter(|joules| *joules > 0.0 && n_tokens > 0).map(|joules| joules / n_tokens as f64)
    }

    /// Where the kernels of all that answered came from.
    fn kernels(&self) -> KernelCounts {
        self.replicas.iter().map(|replica| KernelCounts::from(replica.kernels)).sum()
    }

    fn n_slots(&self) -> usize {
        self.replicas.iter().map(|replica| replica.n_slots).sum()
    }

    /// What computed, each kind once.
    fn devices(&self) -> String {
        let mut devices: Vec<&str> = Vec::new();
        for replica in self.replicas {
            if !devices.contains(&replica.device.as_str()) {
                devices.push(&replica.device);
            }
        }
        devices.join(", ")
    }

    pub(super) fn tell(&self, ids: Option<&[Vec<u32>]>, output: &Output) -> anyhow::Result<()> {
        let kernels = self.kernels();
        let n_tokens = self.statistics.n_tokens;
        if let Some(n) = self.statistics.reasons.get("error") {
            let n = counted(*n, "prompt");
            output.warning(&format!("{n} could not be run: the answers say why, with status 400 in `response`"));
        }
        if output.is_json() {
            output.json(&json!({
                "schema": 1,
                "mode": "getp",
                "device": self.devices(),
                "requests": self.n_prompts,
                "ids": ids.unwrap_or_default(),
                "tokens": n_tokens,
                "seconds": self.seconds,
                "tok_per_s": self.tok_per_s(),
                "kernels": kernels.json(),
            }))?;
            return Ok(());
        }
        let rate = self.tok_per_s().map_or_else(String::new, |rate| format!(": {rate:.1} tok/s"));
        let before = match self.n_resumed {
            0 => String::new(),
            n => format!(" ({n} of them answered before)"),
        };
        output.note(&format!(
            "{}{before}, {n_tokens} tokens in {:.2} s{rate}, on {}; kernels: {kernels}",
            counted(self.n_prompts, "prompt"),
            self.seconds,
            self.devices()
        ));
        let (first, all) =
            (Percentiles::of(&self.statistics.first_token_s), Percentiles::of(&self.statistics.latency_s));
        if let (Some(first), Some(all)) = (first, all) {
            let energy = self.joules_per_token().map_or_else(String::new, |joules| format!("; {joules:.3} J/token"));
            let limit =
                self.limit_fraction().map_or_else(String::new, |part| format!("; {:.1} % of the limit", 100.0 * part));
            output.note(&format!(
                "{} at a time; first token after {:.3} s (p50), {:.3} s (p99); answers after {:.3} s (p50), {:.3} s (p99){limit}{energy}",
                self.n_slots(), first.p50, first.p99, all.p50, all.p99
            ));
        }
        Ok(())
    }

    pub(super) fn metrics(&self) -> Value {
        let Statistics { n_tokens, n_prompt_tokens, n_cached_tokens, reasons, .. } = self.statistics;
        let devices: Vec<&str> = self.replicas.iter().map(|replica| replica.device.as_str()).collect();
        json!({
            "schema": 1,
            "mode": "getp",
            "model": self.args.model.name(),
            "device": devices.join(", "),
            "replicas": devices.len(),
            "slots": self.n_slots(),
            "capacity_tokens": self.replicas.first().map(|replica| replica.capacity_tokens),
            "prompts": self.n_prompts,
            "answered_before": self.n_resumed,
            "finish_reasons": reasons,
            "prompt_tokens": n_prompt_tokens,
            "cached_tokens": n_cached_tokens,
            "tokens": n_tokens,
            "seconds": self.seconds,
            "survey_s": self.survey_s,
            "tok_per_s": self.tok_per_s(),
            "limit_tok_per_s": self.limit,
            "limit_fraction": self.limit_fraction(),
            "steps": self.did.steps,
            "drafted_tokens": self.did.drafted_tokens,
            "accepted_tokens": self.did.accepted_tokens,
            "joules": self.did.joules,
            "joules_per_token": self.joules_per_token(),
            "first_token_s": Percentiles::of(&self.statistics.first_token_s).map(|found| found.json()),
            "latency_s": Percentiles::of(&self.statistics.latency_s).map(|found| found.json()),
            "peak_memory_bytes": peak_memory_bytes(),
            "kernels": self.kernels().json(),
        })
    }
}

/// The most memory that the process had at a time, where the system tells.
fn peak_memory_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

struct Percentiles {
    p50: f32,
    p90: f32,
    p99: f32,
    max: f32,
}

impl Percentiles {
    /// The least values that so many of a hundred are not above; none of none.
    fn of(seconds: &[f32]) -> Option<Self> {
        let mut sorted = seconds.to_vec();
        sorted.sort_unstable_by(f32::total_cmp);
        let max = *sorted.last()?;
        let of = |share: usize| sorted[(sorted.len() * share).div_ceil(100).max(1) - 1];
        Some(Self { p50: of(50), p90: of(90), p99: of(99), max })
    }

    fn json(&self) -> Value {
        let Self { p50, p90, p99, max } = self;
        json!({ "p50": p50, "p90": p90, "p99": p99, "max": max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let seconds: Vec<f32> = (1..=200).rev().map(|i| i as f32).collect();
        let Percentiles { p50, p90, p99, max } = Percentiles::of(&seconds).expect("some");
        assert_eq!((p50, p90, p99, max), (100.0, 180.0, 198.0, 200.0));
        let one = Percentiles::of(&[3.0]).expect("one");
        assert_eq!((one.p50, one.max), (3.0, 3.0));
        assert!(Percentiles::of(&[]).is_none());
    }
}
