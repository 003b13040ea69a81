//! Whole steps with the one or the other, by prediction.

use serde_json::{Value, json};

use crate::output::Output;
use workbench::predict::step::{StepLaunch, StepTime};

/// What a launch takes by itself in a captured step, in seconds.
const LAUNCH_S: f64 = 1e-6;

/// A predicted step with either.
pub(super) struct Step {
    pub(crate) n_tokens: u32,
    pub(crate) both: [StepTime; 2],
}

impl Step {
    fn seconds(&self) -> [f64; 2] {
        self.both.each_ref().map(|time| time.seconds(LAUNCH_S))
    }

    /// Which of the two is the shorter one. None where the one lacks a launch that the other one has: those without a
    /// prediction count as nothing.
    fn verdict(&self, noise: f64) -> Option<String> {
        let unknown = self.both.each_ref().map(|time| {
            let unknown = time.launches.iter().filter(|(_, time)| time.prediction.is_err());
            unknown.map(|(launch, _)| (&launch.label, name(launch))).collect::<Vec<_>>()
        });
        let [a, b] = self.seconds();
        (unknown[0] == unknown[1]).then(|| verdict(a, b, noise))
    }

    /// Nodes that the two do by other kernels.
    pub(crate) fn differences(&self) -> Vec<Vec<String>> {
        let [a, b] = &self.both;
        let us = |seconds: Option<f64>, n: usize| {
            seconds.map_or("-".to_owned(), |seconds| format!("{:.1}", 1e6 * n as f64 * seconds))
        };
        let label = |time: &StepTime| time.launches.iter().map(|(launch, _)| launch.label.clone()).collect::<Vec<_>>();
        let mut labels = label(a);
        labels.extend(label(b).into_iter().filter(|one| !labels.contains(one)).collect::<Vec<_>>());
        let row = |label: &String| {
            let of = |time: &StepTime| {
                let found = time.launches.iter().find(|(launch, _)| launch.label == *label);
                found.map_or(("-".into(), "-".into()), |(launch, time)| {
                    (name(launch), us(time.kernel_s(), launch.n_launches))
                })
            };
            let ((a, a_us), (b, b_us)) = (of(a), of(b));
            (a != b).then(|| vec![label.clone(), a, a_us, b, b_us])
        };
        labels.iter().filter_map(row).collect()
    }

    pub(crate) fn json(&self, noise: f64) -> Value {
        let [a, b] = self.seconds();
        let verdict = self.verdict(noise);
        let n_unknown = self.both.each_ref().map(StepTime::n_unknown);
        json!({
            "rows": self.n_tokens, "a_ms": 1e3 * a, "b_ms": 1e3 * b, "verdict": verdict,
            "unknown_launches": n_unknown,
        })
    }
}

/// The kernel of a launch.
fn name(launch: &StepLaunch) -> String {
    let params = launch.candidate.params.iter().map(|(name, value)| format!(" {name}={value}"));
    format!("{}{}", launch.candidate.template.label(), params.collect::<String>())
}

pub(super) fn table(steps: &[Step], noise: f64, output: &Output) -> anyhow::Result<()> {
    if steps.is_empty() {
        return Ok(());
    }
    const RIGHT: [&str; 5] = ["rows", "A, ms/step", "B, ms/step", "A, tok/s", "B, tok/s"];
    let row = |step: &Step| {
        let [a, b] = step.seconds();
        let n = f64::from(step.n_tokens);
        let ms = |seconds: f64| format!("{:.3}", 1e3 * seconds);
        let rate = |seconds: f64| format!("{:.0}", n / seconds);
        vec![
            step.n_tokens.to_string(),
            ms(a),
            ms(b),
            rate(a),
            rate(b),
            step.verdict(noise).unwrap_or_else(|| "not known".into()),
        ]
    };
    output.line("")?;
    let rows: Vec<Vec<String>> = steps.iter().map(row).collect();
    output.table(&[RIGHT[0], RIGHT[1], RIGHT[2], RIGHT[3], RIGHT[4], "whole steps"], &rows, &RIGHT)?;
    for step in steps {
        for (letter, time) in ["A", "B"].iter().zip(&step.both) {
            let unknown =
                time.launches.iter().filter_map(|(launch, time)| Some((launch, time.prediction.as_ref().err()?)));
            for (launch, why) in unknown {
                let why = hint::chain(why);
                let why = why.lines().next().unwrap_or_default();
                output.warning(&format!(
                    "{letter} at {} rows: {} by {} is not counted: {why}",
                    step.n_tokens,
                    launch.label,
                    name(launch)
                ));
            }
        }
    }
    Ok(())
}

/// Which of two times is the shorter one, if it is by more than the noise.
pub(super) fn verdict(a: f64, b: f64, noise: f64) -> String {
    let (faster, times) = if a <= b { ("A", b / a) } else { ("B", a / b) };
    match times > 1.0 + noise {
        true => format!("{faster} is faster by {:.0} %", 100.0 * (times - 1.0)),
        false => "no difference".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::verdict;

    #[test]
    fn what_is_within_the_noise_is_no_difference() {
        assert_eq!(verdict(1.0, 1.09, 0.10), "no difference");
        assert_eq!(verdict(1.09, 1.0, 0.10), "no difference");
        assert_eq!(verdict(1.0, 1.25, 0.10), "A is faster by 25 %");
        assert_eq!(verdict(3.0, 2.0, 0.02), "B is faster by 50 %");
    }
}
