//! Prints the numbers, and checks their limits.

use serde_json::json;

use crate::output::Output;
use kernel::template::Precision;
use workbench::eval::tally::{Comparison, Estimate, Summary};
use workbench::eval::windows::Windows;

/// How far from the base is too far.
#[derive(clap::Args, Debug)]
pub(super) struct LimitArgs {
    /// Exit 1 if the mean divergence is larger, in nats
    #[arg(long, value_name = "NATS", value_parser = not_negative)]
    max_kld: Option<f64>,

    /// Exit 1 if the most probable token is the base's before fewer of the tokens, in percent
    #[arg(long, value_name = "PERCENT", value_parser = not_negative)]
    min_agreement: Option<f64>,

    /// Exit 1 if the perplexity is further above the base's, in percent of that
    #[arg(long, value_name = "PERCENT", value_parser = not_negative)]
    max_perplexity_gain: Option<f64>,
}

fn not_negative(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "expected a number that is not negative".into())
}

/// A model that is further from its base than it may be.
#[derive(Debug, thiserror::Error)]
#[error("the model is too far from the base: {}", .0.join("; "))]
struct BeyondLimits(Vec<String>);

impl LimitArgs {
    /// Whether there are any.
    pub(super) fn are_given(&self) -> bool {
        self.max_kld.is_some() || self.min_agreement.is_some() || self.max_perplexity_gain.is_some()
    }

    /// An error that names every limit that is not kept.
    pub(super) fn check(&self, summary: &Summary) -> anyhow::Result<()> {
        let Some(found) = &summary.comparison else { return Ok(()) };
        let beyond = self.beyond(found);
        if beyond.is_empty() { Ok(()) } else { Err(BeyondLimits(beyond).into()) }
    }

    fn beyond(&self, found: &Comparison) -> Vec<String> {
        let (kld, agreement) = (found.mean_kld.value, 100.0 * found.same_best.value);
        let gain = 100.0 * found.perplexity_gain.value;
        let sentences = [
            self.max_kld
                .filter(|most| kld > *most)
                .map(|most| format!("the mean divergence is {kld:.6} nats, expected at most {most} (`--max-kld`)")),
            self.min_agreement.filter(|least| agreement < *least).map(|least| {
                format!(
                    "the most probable token is the same before {agreement:.3} % of the tokens, expected at least \
                     {least} % (`--min-agreement`)"
                )
            }),
            self.max_perplexity_gain.filter(|most| gain > *most).map(|most| {
                format!(
                    "the perplexity is {gain:.3} % above the base's, expected at most {most} % \
                     (`--max-perplexity-gain`)"
                )
            }),
        ];
        sentences.into_iter().flatten().collect()
    }
}

/// What was measured, and of what.
pub(super) struct Report<'a> {
    pub(super) model: String,
    pub(super) base: Option<String>,
    pub(super) device: String,
    pub(super) precision: Precision,
    pub(super) windows: &'a Windows,
    pub(super) summary: Summary,
}

/// What is scored, in words: `4 windows of 512 tokens`.
pub(super) fn scope(windows: &Windows) -> String {
    let (n, context) = (windows.n_windows(), windows.context());
    format!("{n} window{} of {context} tokens", if n == 1 { "" } else { "s" })
}

impl Report<'_> {
    pub(super) fn print(&self, limits: &LimitArgs, output: &Output) -> anyhow::Result<()> {
        if output.is_json() {
            return Ok(output.json(&self.json(limits))?);
        }
        Ok(output.table(&["", "value", "error", "limit"], &self.rows(limits), &["value", "error", "limit"])?)
    }

    fn rows(&self, limits: &LimitArgs) -> Vec<Vec<String>> {
        let row = |name: &str, Estimate { value, error }: Estimate, digits: usize, limit: Option<String>| {
            let error = error.map_or_else(String::new, |error| written(error, digits));
            vec![name.to_owned(), written(value, digits), error, limit.unwrap_or_default()]
        };
        let percent = |Estimate { value, error }: Estimate| Estimate {
            value: 100.0 * value,
            error: error.map(|error| 100.0 * error),
        };
        let alone = |value: f64| Estimate { value, error: None };
        let mut rows = vec![row("perplexity", self.summary.perplexity, 4, None)];
        if let Some(found) = &self.summary.comparison {
            let (most, least) = (|limit: f64| format!("<= {limit}"), |limit: f64| format!(">= {limit}"));
            rows.extend([
                row("base's perplexity", found.base_perplexity, 4, None),
                row("above the base's, %", percent(found.perplexity_gain), 4, limits.max_perplexity_gain.map(most)),
                row("mean KLD, nats", found.mean_kld, 6, limits.max_kld.map(most)),
                row("median KLD, nats", alone(found.median_kld), 6, None),
                row("99 % KLD, nats", alone(found.kld_99), 6, None),
                row("99.9 % KLD, nats", alone(found.kld_99_9), 6, None),
                row("maximum KLD, nats", alone(found.max_kld), 6, None),
                row("same best token, %", percent(found.same_best), 3, limits.min_agreement.map(least)),
            ]);
        }
        rows
    }

    fn json(&self, limits: &LimitArgs) -> serde_json::Value {
        let limit_values = json!({
            "max_kld": limits.max_kld, "min_agreement": limits.min_agreement,
            "max_perplexity_gain": limits.max_perplexity_gain,
        });
        let beyond = self.summary.comparison.as_ref().map(|found| limits.beyond(found).is_empty());
        json!({
            "schema": 1, "model": self.model, "base": self.base, "device": self.device,
            "precision": self.precision.to_string(), "context": self.windows.context(),
            "windows": self.windows.n_windows(), "tokens": self.summary.tokens,
            "perplexity": self.summary.perplexity, "against": self.summary.comparison,
            "limits": limit_values, "within_limits": beyond,
        })
    }
}

/// A number in a column: this many digits after the point, and no sign before nothing but zeros. Perplexities of models
/// that know nothing have hundreds of digits.
fn written(value: f64, digits: usize) -> String {
    match value {
        _ if value.abs() >= 1e7 => format!("{value:.digits$e}"),
        _ if value.abs() < 0.5 * 0.1_f64.powi(digits as i32) => format!("{:.digits$}", 0.0),
        _ => format!("{value:.digits$}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison() -> Comparison {
        let estimate = |value| Estimate { value, error: Some(0.0) };
        Comparison {
            base_perplexity: estimate(10.0),
            perplexity_gain: estimate(0.002),
            mean_kld: estimate(0.004),
            median_kld: 0.001,
            kld_99: 0.1,
            kld_99_9: 0.2,
            max_kld: 0.3,
            same_best: estimate(0.96),
        }
    }

    fn limits(max_kld: f64, min_agreement: f64, max_perplexity_gain: f64) -> LimitArgs {
        LimitArgs {
            max_kld: Some(max_kld),
            min_agreement: Some(min_agreement),
            max_perplexity_gain: Some(max_perplexity_gain),
        }
    }

    #[test]
    fn every_limit_that_is_not_kept_is_named() {
        let beyond = |limits: LimitArgs| limits.beyond(&comparison());
        assert!(beyond(limits(0.004, 96.0, 0.2)).is_empty(), "limits are kept by what equals them");
        let all = beyond(limits(0.003, 97.0, 0.1));
        assert_eq!(all.len(), 3);
        assert_eq!(all[0], "the mean divergence is 0.004000 nats, expected at most 0.003 (`--max-kld`)");
        assert!(all[1].contains("before 96.000 % of the tokens, expected at least 97 %"), "{}", all[1]);
        assert!(all[2].contains("0.200 % above the base's, expected at most 0.1 %"), "{}", all[2]);
        assert_eq!(beyond(limits(0.005, 97.0, 1.0)).len(), 1);
    }

    #[test]
    fn numbers_fit_their_column() {
        let numbers = [-0.00004, -0.00006, 17.73651, 2.0573e209].map(|value| written(value, 4));
        assert_eq!(numbers, ["0.0000", "-0.0001", "17.7365", "2.0573e209"]);
    }

    #[test]
    fn limits_are_numbers_that_are_not_negative() {
        assert_eq!(not_negative("0.003"), Ok(0.003));
        assert!(["-1", "nan", "inf", ""].iter().all(|text| not_negative(text).is_err()));
    }
}
