//! User templates that would win by priority, but lose to a tuning row. Authors of new templates do not expect this.

use std::fmt;
use std::sync::Arc;

use super::decisions::{Decision, Decisions};
use crate::graph::Graph;
use kernel::choice::{Chooser, NotFused};
use kernel::step::StepKind;
use kernel::target::Target;
use kernel::template::Template;
use kernel::tuning::TuningTables;
use kernel::tuning::table::APART;

/// A template of a folder that is not taken where it would be by its priority.
#[derive(Clone, Debug)]
pub struct Overruled {
    pub template: Arc<Template>,
    pub by: Overruling,
    /// Where: steps of a kind with this many rows, from the first number to the last.
    pub ranges: Vec<(StepKind, usize, usize)>,
}

/// What goes before a template of the highest priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Overruling {
    /// A row for its ops, which uses another template.
    Row {
        /// `file:line`.
        place: String,
        winner: String,
    },
    /// A row for a run of ops that its op is in.
    Run {
        /// `file:line`.
        place: String,
        winner: String,
    },
    /// Its ops are a run, and no row says that they are to be fused.
    NoRow,
}

impl fmt::Display for Overruling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Row { place, winner } => write!(f, "the tuning row {place} uses `{winner}`"),
            Self::Run { place, winner } => write!(f, "the tuning row {place} fuses its op into `{winner}`"),
            Self::NoRow => f.write_str("no tuning row says that its ops are to be fused"),
        }
    }
}

impl Overruled {
    /// All overruled templates. A template that any row for the target uses is left out: its author knows about rows.
    pub fn all(graph: &Graph, chooser: &Chooser, decisions: &Decisions) -> Vec<Self> {
        let is_told = |template: &Template| {
            template.file.is_own() && !chooser.tables().use_template(&template.label(), chooser.target())
        };
        Self::grouped(decisions.distinct().flat_map(|decision| {
            let range = (decision.step, decision.first_row_count, decision.last_row_count);
            let found = overruled(graph, chooser, decisions, decision).into_iter();
            found.filter(|(template, _)| is_told(template)).map(move |(template, by)| (template, by, range))
        }))
    }

    /// One for each template and what goes before it.
    fn grouped(found: impl Iterator<Item = (Arc<Template>, Overruling, (StepKind, usize, usize))>) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for (template, by, range) in found {
            match all.iter_mut().find(|known| known.by == by && known.template.file.name == template.file.name) {
                Some(known) => known.ranges.push(range),
                None => all.push(Self { template, by, ranges: vec![range] }),
            }
        }
        for one in &mut all {
            one.ranges = joined(std::mem::take(&mut one.ranges));
        }
        all
    }

    /// One warning for all of them, with what to do about the first.
    pub(crate) fn warning(all: &[Self], target: &Target) -> Option<String> {
        let first = all.first()?;
        let others = match all.len() - 1 {
            0 => String::new(),
            n => format!(" (and {n} more such)"),
        };
        Some(format!("{first}{others}; {}; `gptoss-jit kernels plan` shows all", first.advice(target)))
    }

    /// What to write, and into which file, so that the template wins on this target.
    pub fn advice(&self, target: &Target) -> String {
        let name = target.families().into_iter().next().expect("a target has a name");
        let folder = TuningTables::user_folder().map_or("FOLDER".into(), |folder| folder.display().to_string());
        let place = format!("in `{folder}/{name}.toml` or in a file of that name in `--tuning DIR`");
        match self.by {
            Overruling::Row { .. } | Overruling::NoRow => format!("a tuning row that uses it, {place}, makes it win"),
            Overruling::Run { .. } => {
                format!("a tuning row for these ops with `use = \"{APART}\"`, {place}, keeps them apart")
            }
        }
    }

    /// `decode 1-32, mixed 2-512`.
    pub(crate) fn row_counts(&self) -> String {
        let one = |&(step, first, last): &(StepKind, usize, usize)| {
            if first == last { format!("{step} {first}") } else { format!("{step} {first}-{last}") }
        };
        self.ranges.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Overruled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { template, by, .. } = self;
        let (origin, priority) = (&template.file.origin, template.priority);
        write!(
            f,
            "`{template}` of {origin}, priority {priority}, is not used at these token counts: {}, because {by}",
            self.row_counts()
        )
    }
}

/// Ranges in order, those that touch as one.
fn joined(mut ranges: Vec<(StepKind, usize, usize)>) -> Vec<(StepKind, usize, usize)> {
    ranges.sort_unstable();
    let mut joined: Vec<(StepKind, usize, usize)> = Vec::new();
    for (step, first, last) in ranges {
        match joined.last_mut() {
            Some(known) if known.0 == step && first <= known.2 + 1 => known.2 = known.2.max(last),
            _ => joined.push((step, first, last)),
        }
    }
    joined
}

/// The templates that lose in a launch although their priority is the highest.
fn overruled(
    graph: &Graph,
    chooser: &Chooser,
    decisions: &Decisions,
    decision: &Decision,
) -> Vec<(Arc<Template>, Overruling)> {
    let ranking = decisions.ranking(decision);
    let mut found = Vec::new();
    if let (Some(next), Some(row)) = (ranking.overruled(), ranking.row()) {
        let (place, winner) = (row.place.clone(), row.template.clone());
        found.push((Arc::clone(&next.template), Overruling::Row { place, winner }));
    }
    if let (Some(row), true) = (ranking.rows.first(), decision.nodes.len() > 1) {
        for node in &graph.nodes[decision.nodes.clone()] {
            let alone = chooser.ranking(&node.problem, decision.first_row_count, decision.step);
            let Ok(alone) = alone else { continue };
            let (place, winner) = (row.place.clone(), ranking.choices[0].template.label());
            found.push((Arc::clone(&alone.choices[0].template), Overruling::Run { place, winner }));
        }
    }
    for run in decision.unfused.iter().filter(|run| run.why == NotFused::NoRow) {
        let candidates = chooser.library().candidates(&run.problem, chooser.target()).unwrap_or_default();
        found.extend(candidates.into_iter().next().map(|template| (template, Overruling::NoRow)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::step::StepKind::{Decode, Mixed};
    use kernel::template::library::{Layer, Library};

    #[test]
    fn a_template_is_told_once_for_each_row_that_goes_before_it() {
        let library = Library::from_layers(vec![Layer::built_in()]);
        let templates: Vec<&Arc<Template>> = library.templates().take(2).collect();
        assert_ne!(templates[0].file.name, templates[1].file.name);
        let row = |line: u32| Overruling::Row { place: format!("a.toml:{line}"), winner: "linear/dot".into() };
        let found = [
            (0, row(1), (Mixed, 5, 9)),
            (1, row(1), (Decode, 1, 1)),
            (0, row(2), (Decode, 7, 8)),
            (0, row(1), (Mixed, 2, 4)),
            (0, row(1), (Decode, 1, 32)),
        ];
        let found = found.into_iter().map(|(i, by, range)| (Arc::clone(templates[i]), by, range));
        let all = Overruled::grouped(found);
        let told = all.iter().map(|one| (&one.template.file.name, &one.by, one.row_counts()));
        let [first, second] = [0, 1].map(|i: usize| &templates[i].file.name);
        assert!(told.eq([
            (first, &row(1), "decode 1-32, mixed 2-9".to_owned()),
            (second, &row(1), "decode 1".to_owned()),
            (first, &row(2), "decode 7-8".to_owned()),
        ]));
    }

    #[test]
    fn ranges_that_touch_are_one_and_those_of_another_kind_of_step_are_not() {
        let ranges =
            vec![(Mixed, 10, 12), (Decode, 1, 4), (Decode, 20, 20), (Mixed, 13, 20), (Decode, 5, 9), (Mixed, 30, 31)];
        assert_eq!(joined(ranges), [(Decode, 1, 9), (Decode, 20, 20), (Mixed, 10, 20), (Mixed, 30, 31)]);
    }
}
