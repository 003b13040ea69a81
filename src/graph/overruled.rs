//! Templates of one's own that would be taken by their priority, and are not: rows of tuning tables go before priorities,
//! which surprises who has just written one.

use std::fmt;
use std::sync::Arc;

use super::Graph;
use super::decisions::{Decision, Decisions};
use crate::kernel::choice::{Chooser, NotFused};
use crate::kernel::source_file::Origin;
use crate::kernel::template::Template;
use crate::target::Target;
use crate::tuning::TuningTables;
use crate::tuning::table::StepKind;

/// A template of a folder that is not taken where it would be by its priority.
#[derive(Clone, Debug)]
pub struct Overruled {
    /// The template.
    pub template: Arc<Template>,
    /// In steps of this kind.
    pub step: StepKind,
    /// From so many rows on.
    pub first_row_count: usize,
    /// Up to so many.
    pub last_row_count: usize,
    /// What goes before it.
    pub by: Overruling,
}

/// What goes before a template of the highest priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Overruling {
    /// A row for its ops, which uses another template.
    Row {
        /// `file:line`.
        place: String,
        /// The row's template.
        winner: String,
    },
    /// A row for a run of ops that its op is in.
    Run {
        /// `file:line`.
        place: String,
        /// The row's template.
        winner: String,
    },
    /// Its ops are a run, and no row says that they are to be fused.
    NoRow,
}

impl fmt::Display for Overruling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Row { place, winner } => write!(f, "the row {place} uses `{winner}`"),
            Self::Run { place, winner } => write!(f, "the row {place} has the op fused, by `{winner}`"),
            Self::NoRow => f.write_str("no tuning row says that its ops are to be fused"),
        }
    }
}

impl Overruled {
    /// All of them. A template that any row for the target uses is none: whoever wrote that row knows of rows.
    pub fn all(graph: &Graph, chooser: &Chooser, decisions: &Decisions) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for decision in decisions.distinct() {
            for (template, by) in overruled(graph, chooser, decisions, decision) {
                let Decision { step, first_row_count, last_row_count, .. } = *decision;
                let is_own = template.file.origin != Origin::BuiltIn;
                let is_known = all.iter().any(|known| {
                    (known.template.label(), known.step, known.first_row_count, &known.by)
                        == (template.label(), step, first_row_count, &by)
                });
                if is_own && !is_known && !chooser.tables().use_template(&template.label(), chooser.target()) {
                    all.push(Self { template, step, first_row_count, last_row_count, by });
                }
            }
        }
        all
    }

    /// One warning for all of them, with what to do.
    pub fn warning(all: &[Self], target: &Target) -> Option<String> {
        let Self { template, by, .. } = all.first()?;
        let of_first = all.iter().filter(|one| one.template.label() == template.label());
        let mut others: Vec<String> = all.iter().map(|one| format!("`{}`", one.template)).collect();
        others.dedup();
        others.retain(|other| *other != format!("`{template}`"));
        let others = if others.is_empty() { String::new() } else { format!("; nor {} everywhere", others.join(", ")) };
        let priority = template.priority;
        let rows: Vec<String> = of_first.map(|one| format!("{} of a {} step", one.row_counts(), one.step)).collect();
        let rows = match rows.as_slice() {
            [one] => one.clone(),
            [first, rest @ ..] => format!("{first} and {} more ranges", rest.len()),
            [] => String::new(),
        };
        Some(format!(
            "`{template}`, priority {priority}, is not used for {rows}: {by}{others}; tuning rows go before priorities: {}",
            Self::advice(target)
        ))
    }

    /// How a template of one's own wins.
    pub fn advice(target: &Target) -> String {
        let name = target.families().into_iter().next().expect("a target has a name");
        let folder = TuningTables::user_folder().map_or("FOLDER".into(), |folder| folder.display().to_string());
        format!(
            "a row of yours that uses it, in `{folder}/{name}.toml` or below `--tuning DIR`, makes it win; `gptoss-jit kernels plan` \
             shows who wins now"
        )
    }

    /// `1-8 rows`.
    pub fn row_counts(&self) -> String {
        match (self.first_row_count, self.last_row_count) {
            (1, 1) => "1 row".into(),
            (first, last) if first == last => format!("{first} rows"),
            (first, last) => format!("{first}-{last} rows"),
        }
    }
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
