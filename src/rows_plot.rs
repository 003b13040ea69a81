//! A plot of an op as SVG: time against rows, for all candidates, with the limit and what the tables choose.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::svg::{begin, colour, label};

/// Sizes of a panel, in pixels: the plot is left, the names are right.
const WIDTH: f64 = 1100.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 80.0;
const TOP: f64 = 50.0;
const PLOT_WIDTH: f64 = 640.0;
const PLOT_HEIGHT: f64 = 370.0;
const NAMES: f64 = LEFT + PLOT_WIDTH + 40.0;

pub(super) struct Panel {
    pub(crate) title: String,
    /// Rows, and the least time of any kernel in microseconds.
    pub(crate) limit: Vec<(u32, f64)>,
    pub(crate) dots: Vec<Dot>,
}

/// A candidate at a number of rows.
pub(super) struct Dot {
    pub(crate) rows: u32,
    pub(crate) us: f64,
    pub(crate) template: String,
    /// Its parameters, in words.
    pub(crate) params: String,
    /// Whether the time was measured; else it is predicted.
    pub(crate) is_measured: bool,
    /// Whether the tables choose it.
    pub(crate) is_choice: bool,
}

/// Logarithmic axes around what is drawn.
struct Axes {
    rows: [f64; 2],
    us: [f64; 2],
}

/// The panels below each other.
pub(super) fn svg(heading: &str, panels: &[Panel]) -> String {
    let mut text = begin(WIDTH, 40.0 + HEIGHT * panels.len() as f64);
    text += &label(LEFT, 26.0, "start", 16, heading);
    for (i, panel) in panels.iter().enumerate() {
        let _ = writeln!(text, "<g transform=\"translate(0 {})\">", 40.0 + HEIGHT * i as f64);
        text += &panel.drawn();
        text += "</g>\n";
    }
    text + "</svg>\n"
}

impl Panel {
    fn drawn(&self) -> String {
        let axes = Axes::around(self);
        let mut text = label(LEFT, 34.0, "start", 14, &self.title) + &axes.grid();
        let templates: BTreeSet<&str> = self.dots.iter().map(|dot| dot.template.as_str()).collect();
        let colours: BTreeMap<&str, String> =
            templates.iter().enumerate().map(|(i, name)| (*name, colour(i))).collect();
        text += &line(&axes, &self.limit, "black", "");
        for (name, colour) in &colours {
            text += &line(&axes, &self.best_of(name), colour, " stroke-opacity=\"0.5\"");
        }
        for dot in &self.dots {
            text += &dot.drawn(&axes, &colours[dot.template.as_str()]);
        }
        text += &line(&axes, &self.chosen(), "black", " stroke-dasharray=\"2 4\"");
        text + &names(&colours) + &self.marks(colours.len())
    }

    /// The fastest of a template at each number of rows, of times that were measured if there are any.
    fn best_of(&self, template: &str) -> Vec<(u32, f64)> {
        let mut best: BTreeMap<u32, f64> = BTreeMap::new();
        let of_template = || self.dots.iter().filter(|dot| dot.template == template);
        let is_measured = of_template().any(|dot| dot.is_measured);
        for dot in of_template().filter(|dot| dot.is_measured == is_measured) {
            best.entry(dot.rows).and_modify(|us| *us = us.min(dot.us)).or_insert(dot.us);
        }
        best.into_iter().collect()
    }

    /// What the marks mean, each beside its mark, below so many names: those that this panel has.
    fn marks(&self, n_names: usize) -> String {
        let stroke = |style: &str| format!("<path d=\"M0 -4h16\" stroke=\"black\"{style}/>");
        let circle = |fill: &str| format!("<circle cx=\"8\" cy=\"-4\" r=\"4\" fill=\"{fill}\" stroke=\"#555\"/>");
        let ring = "<circle cx=\"8\" cy=\"-4\" r=\"6\" fill=\"none\" stroke=\"black\"/>";
        let has = |is_measured| self.dots.iter().any(|dot| dot.is_measured == is_measured);
        let marks = [
            (!self.limit.is_empty(), stroke(""), "the limit: bytes or operations"),
            (has(true), circle("#555"), "measured"),
            (has(false), circle("white"), "predicted"),
            (!self.chosen().is_empty(), stroke(" stroke-dasharray=\"2 4\"") + ring, "what the tables choose"),
        ];
        let below = TOP + 34.0 + 18.0 * n_names as f64;
        let mut text = String::new();
        for (i, (_, mark, words)) in marks.iter().filter(|(is_there, ..)| *is_there).enumerate() {
            let y = below + 18.0 * i as f64;
            let _ = writeln!(text, "<g transform=\"translate({} {y})\">{mark}</g>", NAMES - 8.0);
            text += &label(NAMES + 16.0, y, "start", 12, words);
        }
        text
    }

    fn chosen(&self) -> Vec<(u32, f64)> {
        let chosen: BTreeMap<u32, f64> =
            self.dots.iter().filter(|dot| dot.is_choice).map(|dot| (dot.rows, dot.us)).collect();
        chosen.into_iter().collect()
    }
}

impl Dot {
    /// Filled where it was measured; with a ring around what the tables choose. Its words are seen below the pointer.
    fn drawn(&self, axes: &Axes, colour: &str) -> String {
        let (x, y) = (axes.x(self.rows), axes.y(self.us));
        let fill = if self.is_measured { colour } else { "white" };
        let how = if self.is_measured { "measured" } else { "predicted" };
        let words = format!("{} {}: {} rows, {:.2} us {how}", self.template, self.params, self.rows, self.us);
        let words = words.replace('&', "&amp;").replace('<', "&lt;");
        let mut text = String::new();
        if self.is_choice {
            let _ = writeln!(text, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"8\" fill=\"none\" stroke=\"black\"/>");
        }
        let _ = writeln!(
            text,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{fill}\" stroke=\"{colour}\" stroke-width=\"1.5\">\
             <title>{words}</title></circle>"
        );
        text
    }
}

fn line(axes: &Axes, points: &[(u32, f64)], colour: &str, style: &str) -> String {
    let points: Vec<String> =
        points.iter().map(|&(rows, us)| format!("{:.1},{:.1}", axes.x(rows), axes.y(us))).collect();
    format!("<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"{style}/>\n", points.join(" "))
}

/// The templates by colour.
fn names(colours: &BTreeMap<&str, String>) -> String {
    let mut text = String::new();
    for (i, (name, colour)) in colours.iter().enumerate() {
        let y = TOP + 14.0 + 18.0 * i as f64;
        let _ = writeln!(text, "<circle cx=\"{NAMES}\" cy=\"{y}\" r=\"4\" fill=\"{colour}\"/>");
        text += &label(NAMES + 12.0, y + 4.0, "start", 12, name);
    }
    text
}

impl Axes {
    fn around(panel: &Panel) -> Self {
        let all = || panel.dots.iter().map(|dot| (dot.rows, dot.us)).chain(panel.limit.iter().copied());
        let ends = |numbers: &mut dyn Iterator<Item = f64>| {
            let (least, most) = numbers.fold((f64::MAX, f64::MIN_POSITIVE), |(a, b), v| (a.min(v), b.max(v)));
            [least.min(most) / 1.25, most * 1.25]
        };
        Self { rows: ends(&mut all().map(|one| f64::from(one.0))), us: ends(&mut all().map(|one| one.1)) }
    }

    fn x(&self, rows: u32) -> f64 {
        LEFT + PLOT_WIDTH * part(self.rows, f64::from(rows))
    }

    fn y(&self, us: f64) -> f64 {
        TOP + PLOT_HEIGHT * (1.0 - part(self.us, us))
    }

    fn grid(&self) -> String {
        let (right, bottom) = (LEFT + PLOT_WIDTH, TOP + PLOT_HEIGHT);
        let mut text = String::new();
        for rows in (0..17).map(|i| 1_u32 << i).filter(|rows| within(self.rows, f64::from(*rows))) {
            let x = self.x(rows);
            let _ = writeln!(text, "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#ddd\"/>");
            text += &label(x, bottom + 16.0, "middle", 11, &rows.to_string());
        }
        let steps = (-2..7).flat_map(|decade| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(decade)));
        for us in steps.filter(|us| within(self.us, *us)) {
            let y = self.y(us);
            let _ = writeln!(text, "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>");
            text += &label(LEFT - 6.0, y + 4.0, "end", 11, &us.to_string());
        }
        text + &label(LEFT + PLOT_WIDTH / 2.0, bottom + 34.0, "middle", 12, "rows; up: microseconds of a launch")
    }
}

fn part([from, to]: [f64; 2], value: f64) -> f64 {
    (value / from).ln() / (to / from).ln()
}

fn within([from, to]: [f64; 2], value: f64) -> bool {
    (from..=to).contains(&value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel() -> Panel {
        let dot = |rows, us, template: &str, is_measured, is_choice| Dot {
            rows,
            us,
            template: template.into(),
            params: "tile=4".into(),
            is_measured,
            is_choice,
        };
        Panel {
            title: "linear <2880>".into(),
            limit: vec![(1, 5.0), (64, 6.0)],
            dots: vec![
                dot(1, 10.0, "linear/a", true, true),
                dot(1, 20.0, "linear/a", true, false),
                dot(1, 7.0, "linear/a", false, false),
                dot(64, 80.0, "linear/b", false, true),
            ],
        }
    }

    #[test]
    fn all_candidates_are_drawn_and_what_is_chosen_has_a_ring() {
        let text = svg("sm_90 & others", &[panel()]);
        assert_eq!(text.matches("<title>").count(), 4);
        assert_eq!(text.matches("r=\"8\"").count(), 2, "two are chosen");
        assert_eq!(text.matches("fill=\"white\" stroke=").count(), 3, "two are predicted, and the legend says so");
        for words in ["sm_90 &amp; others", "linear &lt;2880&gt;", "linear/b", ">64<"] {
            assert!(text.contains(words), "{words}");
        }
        assert_eq!(text.matches("<g ").count(), text.matches("</g>").count());
    }

    #[test]
    fn the_legend_has_a_mark_for_what_is_drawn_and_for_nothing_else() {
        let words = ["the limit: bytes or operations", "measured", "predicted", "what the tables choose"];
        let of = |panel: &Panel| words.map(|words| panel.drawn().contains(&format!(">{words}<")));
        let mut panel = panel();
        assert_eq!(of(&panel), [true; 4]);
        assert_eq!(panel.drawn().matches("<path ").count(), 2, "a line for the limit, one for the choice");
        panel.limit.clear();
        panel.dots.retain(|dot| dot.is_measured && !dot.is_choice);
        assert_eq!(of(&panel), [false, true, false, false]);
    }

    #[test]
    fn a_template_s_line_is_of_its_fastest_and_axes_hold_all() {
        let panel = panel();
        assert_eq!(panel.best_of("linear/a"), [(1, 10.0)]);
        assert_eq!(panel.chosen(), [(1, 10.0), (64, 80.0)]);
        let axes = Axes::around(&panel);
        assert!(axes.y(80.0) > TOP && axes.y(5.0) < TOP + PLOT_HEIGHT && axes.x(64) < LEFT + PLOT_WIDTH);
        assert!((axes.x(8) - (axes.x(1) + axes.x(64)) / 2.0).abs() < 1e-9, "the middle of 1 and 64 is 8");
    }
}
