//! A roofline plot as SVG: for each work a panel with the measured limits as lines and a numbered point for each
//! kernel.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};

use super::report::{Report, title};
use crate::svg::{begin, colour, label};
use engine::plan::profile::{Profile, ProfileEntry};

/// Sizes of a panel, in pixels: the plot is left, the names of its points are right.
const WIDTH: f64 = 1180.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 80.0;
const TOP: f64 = 60.0;
const PLOT_WIDTH: f64 = 560.0;
const PLOT_HEIGHT: f64 = 400.0;
const NAMES: f64 = LEFT + PLOT_WIDTH + 40.0;

/// Names that there is room for.
const MOST_POINTS: usize = 24;

/// The measured limits of a panel.
#[derive(Clone, Debug)]
struct Roof {
    bytes_per_s: f64,
    flop_per_s: f64,
    memory: String,
    flop: String,
}

struct Point {
    name: String,
    /// Share of the step's time.
    share: f64,
    /// Operations per byte.
    intensity: f64,
    flop_per_s: f64,
}

/// Logarithmic axes, in whole decades.
struct Axes {
    x: [i32; 2],
    y: [i32; 2],
}

/// Writes the plot of a report whose works have profiles.
pub(super) fn write(file: &mut File, report: &Report<'_>) -> io::Result<()> {
    let limits = report.limits;
    let roof = Roof {
        bytes_per_s: limits.memory_bytes_per_s(),
        flop_per_s: limits.flop_per_s(),
        memory: format!("{} {:.0} GB/s", limits.memory_name(), limits.memory_bytes_per_s() / 1e9),
        flop: format!("{} {:.2} TFLOP/s", limits.flop_name(), limits.flop_per_s() / 1e12),
    };
    let heading = format!("{}, {} layers, {}, {}", report.model, report.n_layers, report.weights, report.device);
    let works = report.measured.iter().filter_map(|measured| Some((title(measured), measured.profile.as_ref()?)));
    file.write_all(svg(&heading, &roof, &works.collect::<Vec<_>>()).as_bytes())
}

fn svg(heading: &str, roof: &Roof, works: &[(String, &Profile)]) -> String {
    let height = 40.0 + HEIGHT * works.len() as f64;
    let mut text = begin(WIDTH, height);
    text += &label(LEFT, 26.0, "start", 16, heading);
    for (i, (title, profile)) in works.iter().enumerate() {
        let _ = writeln!(text, "<g transform=\"translate(0 {})\">", 40.0 + HEIGHT * i as f64);
        text += &panel(title, roof, profile);
        text += "</g>\n";
    }
    text + "</svg>\n"
}

fn panel(title: &str, roof: &Roof, profile: &Profile) -> String {
    let step_s = profile.step_time.as_secs_f64().max(1e-12);
    let points: Vec<Point> =
        profile.rows().into_iter().map(|(node, template, entry)| Point::new(node, template, entry, step_s)).collect();
    let axes = Axes::around(roof, &points);
    let mut text = label(LEFT, 40.0, "start", 14, title);
    text += &axes.grid();
    text += &roof.lines(&axes);
    let mut labels: Vec<(f64, f64)> = Vec::new();
    for (i, point) in points.iter().take(MOST_POINTS).enumerate() {
        let colour = colour(i);
        let y = TOP + 14.0 + 16.0 * i as f64;
        text += &label(NAMES + 22.0, y + 4.0, "start", 12, &point.describe(roof));
        text += &label(NAMES + 14.0, y + 4.0, "end", 12, &(i + 1).to_string());
        let _ = writeln!(text, "<circle cx=\"{}\" cy=\"{y}\" r=\"4\" fill=\"{colour}\"/>", NAMES - 10.0);
        if point.flop_per_s > 0.0 {
            text += &point.drawn(i + 1, &axes, &colour, &mut labels);
        }
    }
    if points.len() > MOST_POINTS {
        let rest = format!("and {} shorter ones", points.len() - MOST_POINTS);
        text += &label(NAMES + 22.0, TOP + 18.0 + 16.0 * MOST_POINTS as f64, "start", 12, &rest);
    }
    text
}

impl Point {
    fn new(node: &str, template: &str, entry: ProfileEntry, step_s: f64) -> Self {
        let seconds = entry.time.as_secs_f64().max(1e-12);
        Self {
            name: format!("{node} ({template})"),
            share: seconds / step_s,
            intensity: entry.flop / entry.bytes.max(1.0),
            flop_per_s: entry.flop / seconds,
        }
    }

    /// Name, share of the step, and how close to the roof it is.
    fn describe(&self, roof: &Roof) -> String {
        let share = 100.0 * self.share;
        if self.flop_per_s == 0.0 {
            return format!("{}: {share:.1} % of the step, no operations counted", self.name);
        }
        let most = roof.flop_per_s.min(roof.bytes_per_s * self.intensity);
        format!("{}: {share:.1} % of the step, {:.0} % of the roof", self.name, 100.0 * self.flop_per_s / most)
    }

    /// A circle, larger for a larger share, and its number where no other number is.
    fn drawn(&self, number: usize, axes: &Axes, colour: &str, labels: &mut Vec<(f64, f64)>) -> String {
        let (x, y) = (axes.x(self.intensity), axes.y(self.flop_per_s));
        let radius = 3.0 + 14.0 * self.share.min(1.0).sqrt();
        let mut at = (x + radius + 3.0, y + 4.0);
        while labels.iter().any(|taken| (taken.0 - at.0).abs() < 16.0 && (taken.1 - at.1).abs() < 11.0) {
            at.1 -= 11.0;
        }
        labels.push(at);
        let mut text = format!(
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\" fill=\"{colour}\" fill-opacity=\"0.55\" stroke=\"{colour}\"/>\n"
        );
        let _ = writeln!(
            text,
            "<line x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"0.5\"/>",
            at.0,
            at.1 - 4.0
        );
        text + &label(at.0, at.1, "start", 11, &number.to_string())
    }
}

impl Roof {
    /// From the left edge up to where operations become the limit, and on.
    fn lines(&self, axes: &Axes) -> String {
        let ridge = self.flop_per_s / self.bytes_per_s;
        let left = 10f64.powi(axes.x[0]);
        let points =
            [(left, left * self.bytes_per_s), (ridge, self.flop_per_s), (10f64.powi(axes.x[1]), self.flop_per_s)];
        let points: Vec<String> = points.iter().map(|&(x, y)| format!("{:.1},{:.1}", axes.x(x), axes.y(y))).collect();
        let mut text = format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"black\" stroke-width=\"1.5\"/>\n",
            points.join(" ")
        );
        text += &label(LEFT + PLOT_WIDTH - 4.0, axes.y(self.flop_per_s) - 6.0, "end", 11, &self.flop);
        let (x, y) = (axes.x(left) + 10.0, axes.y(left * self.bytes_per_s) - 18.0);
        text + &label(x, y.max(TOP + 12.0), "start", 11, &self.memory)
    }
}

impl Axes {
    /// Decades that hold the ridge of the roof and every point.
    fn around(roof: &Roof, points: &[Point]) -> Self {
        let drawn = || points.iter().filter(|point| point.flop_per_s > 0.0);
        let ridge = roof.flop_per_s / roof.bytes_per_s;
        let x: Vec<f64> = drawn().map(|point| point.intensity).chain([ridge / 30.0, 3.0 * ridge]).collect();
        let y: Vec<f64> =
            drawn().map(|point| point.flop_per_s).chain([roof.flop_per_s / 30.0, 1.5 * roof.flop_per_s]).collect();
        let decades = |values: &[f64]| {
            let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(a, b), &v| (a.min(v), b.max(v)));
            [least.log10().floor() as i32, most.log10().ceil() as i32]
        };
        Self { x: decades(&x), y: decades(&y) }
    }

    fn x(&self, intensity: f64) -> f64 {
        let [from, to] = self.x.map(f64::from);
        LEFT + PLOT_WIDTH * (intensity.log10() - from) / (to - from)
    }

    fn y(&self, flop_per_s: f64) -> f64 {
        let [from, to] = self.y.map(f64::from);
        TOP + PLOT_HEIGHT * (1.0 - (flop_per_s.log10() - from) / (to - from))
    }

    fn grid(&self) -> String {
        let (right, bottom) = (LEFT + PLOT_WIDTH, TOP + PLOT_HEIGHT);
        let mut text = String::new();
        for exponent in self.x[0]..=self.x[1] {
            let x = self.x(10f64.powi(exponent));
            let _ = writeln!(text, "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#ddd\"/>");
            text += &label(x, bottom + 16.0, "middle", 11, &plain(exponent));
        }
        for exponent in self.y[0]..=self.y[1] {
            let y = self.y(10f64.powi(exponent));
            let _ = writeln!(text, "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>");
            text += &label(LEFT - 6.0, y + 4.0, "end", 11, &with_unit(exponent));
        }
        text + &label(
            LEFT + PLOT_WIDTH / 2.0,
            bottom + 36.0,
            "middle",
            12,
            "operations per byte; up: operations per second",
        )
    }
}

/// 0.01, 1, 1000
fn plain(exponent: i32) -> String {
    format!("{:.*}", (-exponent).max(0) as usize, 10f64.powi(exponent))
}

/// Operations per second: `100 GFLOP/s`.
fn with_unit(exponent: i32) -> String {
    let units = ["", "k", "M", "G", "T", "P"];
    let unit = (exponent / 3).clamp(0, units.len() as i32 - 1);
    format!("{} {}FLOP/s", plain(exponent - 3 * unit), units[unit as usize])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn roof() -> Roof {
        Roof { bytes_per_s: 4e12, flop_per_s: 8e14, memory: "copy 4000 GB/s".into(), flop: "matrix".into() }
    }

    fn profile() -> Profile {
        let mut profile = Profile::default();
        (profile.steps, profile.step_time) = (1, Duration::from_millis(10));
        let entry = |ms, bytes, flop| ProfileEntry { calls: 24, time: Duration::from_millis(ms), bytes, flop };
        profile.add("block.*.mlp.mlp1", "moe_mlp1/<gemv>", entry(5, 1e10, 1e10));
        profile.add("block.*.mlp.moe_sort", "moe_sort/block", entry(2, 1e3, 0.0));
        profile
    }

    #[test]
    fn a_kernel_at_half_the_bandwidth_lies_half_way_below_the_roof() {
        let points: Vec<Point> = profile()
            .rows()
            .into_iter()
            .map(|(node, template, entry)| Point::new(node, template, entry, 1e-2))
            .collect();
        // 10 GB in 5 ms are 2 TB/s; an operation per byte.
        assert_eq!((points[0].intensity, points[0].flop_per_s), (1.0, 2e12));
        assert!(
            points[0].describe(&roof()).ends_with("50.0 % of the step, 50 % of the roof"),
            "{}",
            points[0].describe(&roof())
        );
        assert!(points[1].describe(&roof()).ends_with("20.0 % of the step, no operations counted"));
        let axes = Axes::around(&roof(), &points);
        assert_eq!((axes.x, axes.y), ([0, 3], [12, 16]));
        let above = axes.y(2e12) - axes.y(4e12);
        assert!((above - PLOT_HEIGHT / 4.0 * 2f64.log10()).abs() < 1e-9, "{above}");
    }

    #[test]
    fn every_kernel_is_named_and_those_with_operations_are_drawn() {
        let profile = profile();
        let text = svg("a & b", &roof(), &[("decode, 1 position".into(), &profile)]);
        for words in ["a &amp; b", "decode, 1 position", "(moe_mlp1/&lt;gemv&gt;)", "moe_sort/block", "copy 4000 GB/s"]
        {
            assert!(text.contains(words), "{words}");
        }
        assert_eq!(text.matches("fill-opacity").count(), 1, "one point");
        for tag in ["svg", "g", "text"] {
            assert_eq!(text.matches(&format!("<{tag} ")).count(), text.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }

    #[test]
    fn decades_are_written_as_people_do() {
        assert_eq!([-2, 0, 3].map(plain), ["0.01", "1", "1000"]);
        assert_eq!([9, 11, 12, 15].map(with_unit), ["1 GFLOP/s", "100 GFLOP/s", "1 TFLOP/s", "1 PFLOP/s"]);
    }
}
