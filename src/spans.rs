//! Merges equal decisions: layers with the same launches, and neighbouring ranges of row counts.

use std::collections::{BTreeMap, BTreeSet};

use engine::graph::Rows;
use engine::plan::decisions::{Decision, Decisions};
use kernel::choice::{Ranking, are_same};
use kernel::step::StepKind;
use kernel::template::Problem;

/// One line: a launch of some layers, for a range of row counts.
pub(crate) struct SpanLine<'a> {
    /// The nodes, with a place for the layers: `block.*.attn.norm + block.*.attn.qkv`. The layer after is `block.next`.
    generic: String,
    /// The layers; empty outside of them.
    pub(crate) layers: BTreeSet<usize>,
    pub(crate) problem: &'a Problem,
    /// In steps of this kind; `None` is of either.
    pub(crate) step: Option<StepKind>,
    pub(crate) first_row_count: usize,
    pub(crate) last_row_count: usize,
    /// What was decided for the first range and the first of the layers; the others are alike.
    pub(crate) decision: &'a Decision,
    pub(crate) ranking: &'a Ranking,
    with_reasons: bool,
}

/// The lines of all places in the order of the graph; of a node in the order of row counts. Where reasons are asked
/// for, launches are alike only if the same runs of theirs are not fused for the same reasons.
pub(crate) fn lines<'a>(decisions: &[&'a Decisions], with_reasons: bool) -> Vec<SpanLine<'a>> {
    let all = || decisions.iter().flat_map(|decisions| &decisions.all);
    let most = |rows: Rows| {
        let of_decode = all().filter(|one| one.rows == rows && one.step == StepKind::Decode);
        of_decode.map(|one| one.last_row_count).max().unwrap_or(0)
    };
    let (most_rows, most_logits) = (most(Rows::All), most(Rows::Logits));
    let most = |line: &SpanLine<'_>| if line.decision.rows == Rows::All { most_rows } else { most_logits };

    let mut lines = joined(
        decisions.iter().flat_map(|of| of.all.iter().map(|decision| SpanLine::new(of, decision, with_reasons))),
        SpanLine::takes_layer,
    );
    lines = joined(lines.into_iter(), SpanLine::takes_range);
    let mut starts: BTreeMap<String, usize> = BTreeMap::new();
    for line in &lines {
        let start = starts.entry(line.generic.clone()).or_insert(usize::MAX);
        *start = (*start).min(line.decision.nodes.start);
    }
    lines.sort_by_key(|line| (starts[&line.generic], line.decision.nodes.len(), line.decision.nodes.start));
    joined(lines.into_iter(), |line, next| {
        let most_decode_rows = most(line);
        line.takes_step(next, most_decode_rows)
    })
}

/// Lines of which none takes another one in.
fn joined<'a>(
    lines: impl Iterator<Item = SpanLine<'a>>,
    takes: impl Fn(&mut SpanLine<'a>, &SpanLine<'a>) -> bool,
) -> Vec<SpanLine<'a>> {
    let mut joined: Vec<SpanLine<'a>> = Vec::new();
    for next in lines {
        if !joined.iter_mut().rev().any(|line| takes(line, &next)) {
            joined.push(next);
        }
    }
    joined
}

impl<'a> SpanLine<'a> {
    fn new(decisions: &'a Decisions, decision: &'a Decision, with_reasons: bool) -> Self {
        let (generic, layer) = generic(&decision.label);
        Self {
            generic,
            layers: layer.into_iter().collect(),
            problem: decisions.problem(decision),
            step: Some(decision.step),
            first_row_count: decision.first_row_count,
            last_row_count: decision.last_row_count,
            decision,
            ranking: decisions.ranking(decision),
            with_reasons,
        }
    }

    /// The nodes: `block.0-23.attn.norm + qkv`.
    pub(crate) fn label(&self) -> String {
        let mut parts = self.generic.split(" + ");
        let first = parts.next().unwrap_or_default();
        let prefix = first.rfind('.').map_or("", |dot| &first[..=dot]);
        let rest = parts.map(|part| part.strip_prefix(prefix).unwrap_or(part));
        let label = std::iter::once(first).chain(rest).collect::<Vec<_>>().join(" + ");
        let next = self.layers.iter().map(|layer| layer + 1).collect();
        [("*", &self.layers), ("next", &next)].into_iter().fold(label, |label, (place, layers)| {
            label.replace(&format!("block.{place}."), &format!("block.{}.", layers_text(layers)))
        })
    }

    /// `1-8`, and `1-8 logits` where only these rows count.
    pub(crate) fn row_counts(&self) -> String {
        let (first, last) = (self.first_row_count, self.last_row_count);
        let counts = if first == last { first.to_string() } else { format!("{first}-{last}") };
        match self.decision.rows {
            Rows::All => counts,
            Rows::Logits | Rows::Gathered | Rows::Compared => format!("{counts} logits"),
            Rows::Changed => format!("{counts} changed"),
            Rows::Logprobs => format!("{counts} logprobs"),
        }
    }

    /// `decode`, `mixed` or `any`.
    pub(crate) fn step_name(&self) -> &'static str {
        self.step.map_or("any", StepKind::name)
    }

    fn is_of_same_launch(&self, next: &Self) -> bool {
        let (own, other) = (self.decision, next.decision);
        let is_alike = own.rows == other.rows && own.place == other.place;
        self.generic == next.generic && is_alike && self.problem == next.problem
    }

    /// Whether the same was decided, for the same reasons.
    fn is_alike(&self, next: &Self) -> bool {
        let places = |ranking: &Ranking| ranking.rows.iter().map(|row| row.place.clone()).collect::<Vec<_>>();
        let unfused = |line: &Self| {
            let runs = line.decision.unfused.iter();
            runs.map(|run| (run.problem.ops.clone(), run.why.clone())).collect::<Vec<_>>()
        };
        are_same(&self.ranking.choices, &next.ranking.choices)
            && places(self.ranking) == places(next.ranking)
            && self.ranking.warnings == next.ranking.warnings
            && (!self.with_reasons || unfused(self) == unfused(next))
    }

    /// Takes in the same launch of another layer.
    fn takes_layer(&mut self, next: &Self) -> bool {
        let is_same_range = self.step == next.step && self.first_row_count == next.first_row_count;
        let takes = is_same_range && self.is_of_same_launch(next) && self.is_alike(next);
        if takes {
            self.layers.extend(&next.layers);
        }
        takes
    }

    /// Takes in the range of row counts that follows.
    fn takes_range(&mut self, next: &Self) -> bool {
        let follows = self.step == next.step && self.last_row_count + 1 == next.first_row_count;
        let takes = follows && self.layers == next.layers && self.is_of_same_launch(next) && self.is_alike(next);
        if takes {
            self.last_row_count = next.last_row_count;
        }
        takes
    }

    /// Takes in the same in steps of the other kind, where it is the same range of row counts: but mixed steps begin
    /// at two rows, and decode steps end at `most_decode_rows`.
    fn takes_step(&mut self, next: &Self, most_decode_rows: usize) -> bool {
        let (Some(StepKind::Decode), Some(StepKind::Mixed)) = (self.step, next.step) else { return false };
        let (own, other) = ((self.first_row_count, self.last_row_count), (next.first_row_count, next.last_row_count));
        let begins = own.0 == other.0 || (own.0, other.0) == (1, 2);
        let ends = own.1 == other.1 || (own.1 == most_decode_rows && own.1 < other.1);
        let is_same_range = begins && ends && self.layers == next.layers;
        let takes = is_same_range && self.is_of_same_launch(next) && self.is_alike(next);
        if takes {
            self.step = None;
            self.last_row_count = next.last_row_count;
        }
        takes
    }
}

/// A label with `block.*` for `block.N`, and the layer, if all parts are of the same one, or later ones of the next,
/// `block.next`.
fn generic(label: &str) -> (String, Option<usize>) {
    let of_part = |part: &str| -> Option<usize> {
        let (layer, _) = part.strip_prefix("block.")?.split_once('.')?;
        layer.parse().ok()
    };
    let mut layers = label.split(" + ").map(of_part);
    match layers.next().flatten() {
        Some(layer) if layers.all(|other| other == Some(layer) || other == Some(layer + 1)) => {
            let places = [(layer, "*"), (layer + 1, "next")];
            let generic = places.into_iter().fold(label.to_owned(), |label, (layer, place)| {
                label.replace(&format!("block.{layer}."), &format!("block.{place}."))
            });
            (generic, Some(layer))
        }
        _ => (label.to_owned(), None),
    }
}

/// `0-23`, `0,2,..,22`, or the numbers one by one.
fn layers_text(layers: &BTreeSet<usize>) -> String {
    let all: Vec<usize> = layers.iter().copied().collect();
    let steps: BTreeSet<usize> = all.windows(2).map(|pair| pair[1] - pair[0]).collect();
    match (all.as_slice(), steps.first(), steps.len()) {
        ([first, .., last], Some(1), 1) => format!("{first}-{last}"),
        ([first, second, _, .., last], _, 1) => format!("{first},{second},..,{last}"),
        _ => all.iter().map(usize::to_string).collect::<Vec<_>>().join(","),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_told_short() {
        for (layers, text) in [
            (&[3][..], "3"),
            (&[0, 1], "0-1"),
            (&[0, 1, 2, 3], "0-3"),
            (&[0, 2], "0,2"),
            (&[1, 3, 5, 7], "1,3,..,7"),
            (&[0, 1, 3], "0,1,3"),
        ] {
            assert_eq!(layers_text(&layers.iter().copied().collect()), text);
        }
        assert_eq!(
            generic("block.12.attn.norm + block.12.attn.qkv"),
            ("block.*.attn.norm + block.*.attn.qkv".into(), Some(12))
        );
        assert_eq!(
            generic("block.1.mlp.mlp2 + block.2.attn.norm"),
            ("block.*.mlp.mlp2 + block.next.attn.norm".into(), Some(1))
        );
        assert_eq!(generic("block.1.mlp.mlp2 + block.3.attn.norm").1, None);
        assert_eq!(generic("unembedding"), ("unembedding".into(), None));
    }
}
