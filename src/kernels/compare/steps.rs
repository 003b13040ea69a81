//! Predicted whole steps with each of the two kernels.

use serde_json::{Value, json};

use crate::output::Output;
use system::units::counted;
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

    /// Which of the two is the shorter one. None if the one lacks a launch that the other one has: those without a
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
                    "{letter} at {}: {} by {} is not counted: {why}",
                    counted(step.n_tokens as usize, "row"),
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
    use std::sync::Arc;

    use super::{Step, verdict};
    use kernel::step::StepKind;
    use kernel::target::Language;
    use kernel::template::library::{Layer, Library};
    use kernel::template::work::Work;
    use kernel::template::{Precision, Problem};
    use workbench::predict::step::{LaunchTime, StepLaunch, StepTime};
    use workbench::predict::{Code, PredictError, Prediction};
    use workbench::timing::{Candidate, Setup};

    /// A step of this many launches of each label, by `rmsnorm/rows` with a parameter, each of this many microseconds.
    fn step_time(launches: &[(&str, usize, u32, Option<f64>)]) -> StepTime {
        let library = Library::from_layers(vec![Layer::built_in()]);
        let template = library.template("rmsnorm/rows", Language::C).expect("it is there");
        let problem = Problem::plain("rmsnorm", Precision::F32);
        let launch = |&(label, n_launches, value, us): &(&str, usize, u32, Option<f64>)| {
            let candidate = Candidate { template: Arc::clone(template), params: [("p".to_owned(), value)].into() };
            let setup = Setup::for_problem(&problem, 1, StepKind::Decode, 64, 0);
            let launch = StepLaunch { label: label.to_owned(), n_launches, problem: problem.clone(), candidate, setup };
            let prediction = us.map(|us| Prediction {
                memory_s: us * 1e-6,
                cache_s: 0.0,
                compute_s: 0.0,
                waves_s: 0.0,
                launch_s: 1.0,
                blocks_per_unit: 1,
                generations: 1.0,
            });
            let prediction = prediction.map(|prediction| (Code::default(), prediction));
            let prediction = prediction.ok_or(PredictError::LongLoop { code_bytes: 2, cache_bytes: 1 });
            (launch, LaunchTime { work: Work::default(), prediction })
        };
        StepTime { launches: launches.iter().map(launch).collect() }
    }

    #[test]
    fn steps_of_two_tables_differ_by_the_nodes_that_they_do_otherwise() {
        let a = step_time(&[("norm", 24, 1, Some(5.0)), ("out", 24, 1, Some(10.0)), ("sample", 1, 1, Some(36.0))]);
        let b = step_time(&[("norm + out", 24, 2, Some(10.0)), ("sample", 1, 1, Some(36.0))]);
        let step = Step { n_tokens: 8, both: [a, b] };
        let cells = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            step.differences(),
            [
                cells(&["norm", "rmsnorm/rows p=1", "120.0", "-", "-"]),
                cells(&["out", "rmsnorm/rows p=1", "240.0", "-", "-"]),
                cells(&["norm + out", "-", "-", "rmsnorm/rows p=2", "240.0"]),
            ]
        );
        // 24 launches of 5 and 10 us and one of 36, and a microsecond for each of 49 or of 25.
        let json = step.json(0.10);
        let ms = |name: &str| (json[name].as_f64().expect("a number") * 1e6).round() as u64;
        assert_eq!((ms("a_ms"), ms("b_ms")), (445_000, 301_000));
        assert_eq!((&json["rows"], &json["verdict"]), (&8.into(), &"B is faster by 48 %".into()));
    }

    #[test]
    fn a_step_that_lacks_a_launch_is_not_called_the_faster_one() {
        let both = || [("norm", 24, 1, Some(5.0)), ("out", 24, 1, Some(10.0))];
        let mut without = both();
        without[1].3 = None;
        let of = |a: &[(&str, usize, u32, Option<f64>)], b: &[(&str, usize, u32, Option<f64>)]| Step {
            n_tokens: 1,
            both: [step_time(a), step_time(b)],
        };
        assert_eq!(of(&both(), &without).verdict(0.10), None);
        assert_eq!(of(&without, &without).verdict(0.10).as_deref(), Some("no difference"));
        assert!(of(&both(), &both()).differences().is_empty());
    }

    #[test]
    fn what_is_within_the_noise_is_no_difference() {
        assert_eq!(verdict(1.0, 1.09, 0.10), "no difference");
        assert_eq!(verdict(1.09, 1.0, 0.10), "no difference");
        assert_eq!(verdict(1.0, 1.25, 0.10), "A is faster by 25 %");
        assert_eq!(verdict(3.0, 2.0, 0.02), "B is faster by 50 %");
    }
}
