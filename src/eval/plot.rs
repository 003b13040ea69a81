//! The plot as SVG: how many tokens diverge by how much, and where in the text; without a base the perplexity along the
//! text.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};

use super::report::{Report, scope};
use crate::svg::{begin, label};
use workbench::eval::tally::{Scored, Summary};

/// Sizes of a panel, in pixels.
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 80.0;
const TOP: f64 = 50.0;
const PLOT_WIDTH: f64 = 740.0;
const PLOT_HEIGHT: f64 = 280.0;

const BLUE: &str = "#2563a8";
const RED: &str = "#a82f2f";

/// Points that a curve is drawn with at most.
const MOST_POINTS: usize = 500;

/// Divergences below this are drawn here: a logarithm has no place for zero.
const LEAST: f64 = 1e-9;

/// Writes the plot of a report.
///
/// - `tokens`: window by window, as many of each
pub(super) fn write(file: &mut File, report: &Report<'_>, tokens: &[Scored]) -> io::Result<()> {
    file.write_all(svg(&heading(report), tokens, report.windows.n_windows()).as_bytes())
}

fn heading(report: &Report<'_>) -> String {
    let against = report.base.as_ref().map_or_else(String::new, |base| format!(" against {base}"));
    format!("{}{against}: {}, perplexity {:.4}", report.model, scope(report.windows), report.summary.perplexity.value)
}

fn svg(heading: &str, tokens: &[Scored], n_windows: usize) -> String {
    let windows: Vec<&[Scored]> = tokens.chunks(tokens.len() / n_windows).collect();
    let klds: Vec<f64> = tokens.iter().filter_map(|token| Some(token.compared?.divergence.max(LEAST))).collect();
    let panels = if klds.is_empty() { vec![perplexities(&windows)] } else { vec![shares(klds), divergences(&windows)] };
    let mut text = begin(WIDTH, 40.0 + HEIGHT * panels.len() as f64) + &label(LEFT, 26.0, "start", 16, heading);
    for (i, panel) in panels.iter().enumerate() {
        let _ = writeln!(text, "<g transform=\"translate(0 {})\">\n{panel}</g>", 40.0 + HEIGHT * i as f64);
    }
    text + "</svg>\n"
}

/// The part of the tokens that diverge by more, for every divergence.
fn shares(mut klds: Vec<f64>) -> String {
    klds.sort_by(|a, b| b.total_cmp(a));
    let n = klds.len();
    let point = |i: usize| (klds[i], 100.0 * (i + 1) as f64 / n as f64);
    // Evenly on a logarithmic axis, so that the few large ones are all drawn.
    let mut at: Vec<usize> = (0..MOST_POINTS)
        .map(|i| ((n as f64).powf(i as f64 / (MOST_POINTS - 1) as f64).round() as usize).clamp(1, n) - 1)
        .collect();
    at.dedup();
    let points: Vec<(f64, f64)> = at.into_iter().map(point).collect();
    let axes = Axes { x: Axis::decades(&[klds[n - 1], klds[0]]), y: Axis::decades(&[100.0 / n as f64, 100.0]) };
    let mut text = label(LEFT, 34.0, "start", 14, "Tokens by their divergence");
    text += &axes.grid("a token's KLD in nats; up: % of the tokens that have this much or more");
    for (share, name) in [(50.0, "median"), (1.0, "99 %"), (0.1, "99.9 %")] {
        if axes.y.has(share) {
            let (y, right) = (axes.at(klds[0], share).1, LEFT + PLOT_WIDTH);
            let _ = writeln!(text, "<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#888\" stroke-dasharray=\"2 4\"/>");
            text += &label(right - 4.0, y - 4.0, "end", 11, name);
        }
    }
    text + &axes.line(&points, BLUE)
}

/// Mean and largest divergence of each window.
fn divergences(windows: &[&[Scored]]) -> String {
    let of = |window: &[Scored]| -> Vec<f64> {
        window.iter().filter_map(|token| Some(token.compared?.divergence)).collect()
    };
    let mean = |window: &[Scored]| of(window).iter().sum::<f64>() / window.len() as f64;
    let largest = |window: &[Scored]| of(window).iter().copied().fold(LEAST, f64::max);
    let along = |value: &dyn Fn(&[Scored]) -> f64| -> Vec<(f64, f64)> {
        windows.iter().enumerate().map(|(i, window)| ((i + 1) as f64, value(window).max(LEAST))).collect()
    };
    let (means, most) = (along(&mean), along(&largest));
    let values: Vec<f64> = means.iter().chain(&most).map(|point| point.1).collect();
    let axes = Axes { x: Axis::counts(windows.len()), y: Axis::decades(&values) };
    let mut text = label(LEFT, 34.0, "start", 14, "Divergence along the text");
    text += &axes.grid("window; up: KLD in nats, mean (blue) and largest (red) of its tokens");
    text += &axes.line(&means, BLUE);
    text + &axes.dots(&means, BLUE) + &axes.dots(&most, RED)
}

/// The perplexity of each window, and of all up to it.
fn perplexities(windows: &[&[Scored]]) -> String {
    let of = |tokens: &[Scored]| Summary::of(tokens).perplexity.value;
    let (mut sum, mut n) = (0.0, 0.0);
    let (mut alone, mut so_far) = (Vec::new(), Vec::new());
    for (i, window) in windows.iter().enumerate() {
        sum += window.iter().map(|token| token.nll).sum::<f64>();
        n += window.len() as f64;
        alone.push(((i + 1) as f64, of(window)));
        so_far.push(((i + 1) as f64, (sum / n).exp()));
    }
    let values: Vec<f64> = alone.iter().map(|point| point.1).collect();
    let axes = Axes { x: Axis::counts(windows.len()), y: Axis::decades(&values) };
    let mut text = label(LEFT, 34.0, "start", 14, "Perplexity along the text");
    text += &axes.grid("window; up: perplexity, of a window (dots) and of all up to it (line)");
    text + &axes.line(&so_far, BLUE) + &axes.dots(&alone, RED)
}

/// Where numbers are, from 0 to 1, and which of them are written.
struct Axis {
    from: f64,
    to: f64,
    is_logarithmic: bool,
    marks: Vec<f64>,
}

impl Axis {
    /// Whole decades around positive numbers.
    fn decades(values: &[f64]) -> Self {
        let (least, most) = values.iter().fold((f64::MAX, f64::MIN_POSITIVE), |(a, b), &v| (a.min(v), b.max(v)));
        let first = least.log10().floor() as i32;
        let last = (most.log10().ceil() as i32).max(first + 1);
        let (from, to) = (10f64.powi(first), 10f64.powi(last));
        Self { from, to, is_logarithmic: true, marks: (first..=last).map(|exponent| 10f64.powi(exponent)).collect() }
    }

    /// 1 to n.
    fn counts(n: usize) -> Self {
        let step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].into_iter().find(|step| n / step <= 12).unwrap_or(n / 8);
        let marks = (1..=n).filter(|i| i % step == 0 || *i == 1).map(|i| i as f64).collect();
        Self { from: 0.5, to: n as f64 + 0.5, is_logarithmic: false, marks }
    }

    fn has(&self, value: f64) -> bool {
        (self.from..=self.to).contains(&value)
    }

    fn part(&self, value: f64) -> f64 {
        let scale = |value: f64| if self.is_logarithmic { value.log10() } else { value };
        (scale(value) - scale(self.from)) / (scale(self.to) - scale(self.from))
    }

    fn written(&self, value: f64) -> String {
        match self.is_logarithmic && !(1e-3..1e5).contains(&value) {
            true => format!("1e{}", value.log10().round()),
            false => format!("{value}"),
        }
    }
}

struct Axes {
    x: Axis,
    y: Axis,
}

impl Axes {
    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        (LEFT + PLOT_WIDTH * self.x.part(x), TOP + PLOT_HEIGHT * (1.0 - self.y.part(y)))
    }

    fn grid(&self, words: &str) -> String {
        let (right, bottom) = (LEFT + PLOT_WIDTH, TOP + PLOT_HEIGHT);
        let mut text = String::new();
        for &mark in &self.x.marks {
            let x = self.at(mark, self.y.from).0;
            let _ = writeln!(text, "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"#ddd\"/>");
            text += &label(x, bottom + 16.0, "middle", 11, &self.x.written(mark));
        }
        for &mark in &self.y.marks {
            let y = self.at(self.x.from, mark).1;
            let _ = writeln!(text, "<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#ddd\"/>");
            text += &label(LEFT - 6.0, y + 4.0, "end", 11, &self.y.written(mark));
        }
        text + &label(LEFT + PLOT_WIDTH / 2.0, bottom + 36.0, "middle", 12, words)
    }

    fn line(&self, points: &[(f64, f64)], colour: &str) -> String {
        let points: Vec<String> =
            points.iter().map(|&(x, y)| self.at(x, y)).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        format!("<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\n", points.join(" "))
    }

    fn dots(&self, points: &[(f64, f64)], colour: &str) -> String {
        let mut text = String::new();
        for (x, y) in points.iter().map(|&(x, y)| self.at(x, y)) {
            let _ = writeln!(text, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use workbench::eval::distribution::Compared;

    fn tokens(divergences: &[f64]) -> Vec<Scored> {
        let compared = |divergence| Some(Compared { base_nll: 1.0, divergence, is_same_best: true });
        divergences.iter().map(|&divergence| Scored { nll: 1.0, compared: compared(divergence) }).collect()
    }

    #[test]
    fn the_largest_divergence_is_of_one_token_and_the_smallest_of_all() {
        let axes = Axes { x: Axis::decades(&[1e-4, 1e-1]), y: Axis::decades(&[25.0, 100.0]) };
        let text = shares(vec![1e-4, 1e-3, 1e-2, 1e-1]);
        let place = |(x, y): (f64, f64)| format!("{x:.1},{y:.1}");
        assert!(text.contains(&format!("points=\"{} ", place(axes.at(1e-1, 25.0)))), "{text}");
        assert!(text.contains(&format!(" {}\"", place(axes.at(1e-4, 100.0)))), "{text}");
        assert_eq!(axes.at(1e-4, 100.0), (LEFT, TOP));
    }

    #[test]
    fn what_does_not_diverge_is_drawn_at_the_left_and_words_are_escaped() {
        let text = svg("a & b", &tokens(&[0.0, -1e-12, 0.0, 0.0]), 2);
        assert!(text.contains("a &amp; b") && !text.contains("NaN") && !text.contains("inf"), "{text}");
        assert_eq!(text.matches("<circle").count(), 4, "two windows, mean and largest");
        let alone: Vec<Scored> = (1..=4).map(|i| Scored { nll: f64::from(i), compared: None }).collect();
        let text = svg("alone", &alone, 4);
        assert_eq!((text.matches("<g ").count(), text.matches("<circle").count()), (1, 4));
        assert!(text.contains("Perplexity along the text") && !text.contains("NaN"));
    }

    #[test]
    fn many_windows_have_few_marks() {
        assert_eq!(Axis::counts(3).marks, [1.0, 2.0, 3.0]);
        assert_eq!(Axis::counts(60).marks[..3], [1.0, 5.0, 10.0]);
        assert!(Axis::counts(100_000).marks.len() < 20);
    }
}
