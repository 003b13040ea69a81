//! Findings in tuning tables that are not errors.

use std::collections::BTreeSet;

use super::table::{Gap, ProvenanceKind, Table, Tokens, TuningRow};
use super::{BUILT_IN, HeldTable, TuningTables};
use crate::step::StepKind;
use crate::target::Target;

/// Measured times of two rows that are no further apart than this are the same, as a fraction.
const NOISE: f64 = 0.02;

/// A row or a file, and what is about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LintFinding {
    pub kind: FindingKind,
    /// `file:line`.
    pub place: String,
    pub text: String,
}

/// What `tune lint` can find about a row or a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingKind {
    /// Two rows apply at once, or a file cannot be read for another reason: it is not used.
    Broken,
    /// No target has a file's name: it is not used.
    Unread,
    /// The row is passed over wherever it applies, or it can apply nowhere.
    Unusable,
    /// Numbers of tokens that the rows of a `where` leave out.
    Gap,
    /// No known model asks for the row.
    NotAskedFor,
    /// Others stand before it wherever it would apply.
    Unreachable,
    /// What follows it says the same, or was measured to be faster.
    Dominated,
}

impl FindingKind {
    /// The name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Broken => "broken",
            Self::Unread => "unread",
            Self::Unusable => "unusable",
            Self::Gap => "gap",
            Self::NotAskedFor => "not asked for",
            Self::Unreachable => "unreachable",
            Self::Dominated => "dominated",
        }
    }

    /// Whether a row or a file can never be used as it is, whatever the model.
    pub const fn is_error(self) -> bool {
        matches!(self, Self::Broken | Self::Unusable)
    }
}

impl TuningTables {
    /// Everything about the tables that concern these targets.
    ///
    /// - `all`: the targets that are known. A row of a family is reached if one of them reaches it.
    pub fn findings(&self, targets: &[Target], all: &[Target]) -> Vec<LintFinding> {
        let concerns = |name: &String| targets.iter().any(|target| target.families().contains(name));
        let placed = |kind: FindingKind, line: String| match line.split_once(": ") {
            Some((place, text)) => LintFinding { kind, place: place.to_owned(), text: text.to_owned() },
            None => LintFinding { kind, place: String::new(), text: line },
        };
        let broken = self.broken.iter().filter(|(name, _)| concerns(name));
        let mut findings: Vec<LintFinding> =
            broken.map(|(_, error)| placed(FindingKind::Broken, error.to_string())).collect();
        let unread = self.of_nobody().into_iter();
        findings.extend(unread.map(|text| LintFinding { kind: FindingKind::Unread, place: String::new(), text }));
        findings.extend(self.gaps(targets).into_iter().map(|line| placed(FindingKind::Gap, line)));
        let mut seen: Vec<(&TuningRow, bool, Option<String>)> = Vec::new();
        let concerned: BTreeSet<&str> =
            targets.iter().flat_map(|target| self.in_order(target)).map(|row| row.place.as_str()).collect();
        for target in all {
            let order = self.in_order(target);
            for (i, row) in order.iter().enumerate().filter(|(_, row)| concerned.contains(row.place.as_str())) {
                let is_reached = is_reached(row, &order[..i]);
                let beaten = self.beaten(row, &order[i + 1..]);
                match seen.iter_mut().find(|(known, ..)| known.place == row.place) {
                    // A row of a family is for all of its archs: it is one that any of them reaches.
                    Some((_, reached, why)) => {
                        *reached |= is_reached;
                        *why = why.take().and(beaten);
                    }
                    None => seen.push((row, is_reached, beaten)),
                }
            }
        }
        for (row, is_reached, beaten) in seen {
            let place = row.place.clone();
            if !is_reached {
                let text = format!("other rows for `{}` stand before it at all {} tokens", row.op, row.tokens);
                findings.push(LintFinding { kind: FindingKind::Unreachable, place, text });
            } else if let Some(text) = beaten {
                findings.push(LintFinding { kind: FindingKind::Dominated, place, text });
            }
        }
        findings
    }

    /// Numbers of tokens that the rows of a `where` leave out, and that no row after them is for, on one of these
    /// targets: a line for each.
    pub(super) fn gaps(&self, targets: &[Target]) -> Vec<String> {
        let mut lines = Vec::new();
        for target in targets {
            let names = target.families();
            let in_order = |layer: &'_ Vec<HeldTable>| -> Vec<usize> {
                names.iter().filter_map(|name| layer.iter().position(|table| table.name == *name)).collect()
            };
            let tables: Vec<&Table> = self
                .layers
                .iter()
                .flat_map(|layer| in_order(layer).into_iter().map(|at| &*layer[at]).collect::<Vec<_>>())
                .collect();
            for (i, table) in tables.iter().enumerate() {
                let behind = || tables[i + 1..].iter().flat_map(|table| table.rows());
                let open = table.gaps().into_iter().filter(|gap| !is_filled(gap, behind()));
                lines.extend(open.map(|gap| gap.to_string()));
            }
        }
        lines.sort();
        lines.dedup();
        lines
    }

    /// The rows that concern a target, those that are looked at first before the others.
    fn in_order(&self, target: &Target) -> Vec<&TuningRow> {
        let families = target.families();
        let mut order = Vec::new();
        for layer in &self.layers {
            for name in &families {
                let tables = layer.iter().filter(|table| table.name == *name);
                let mut rows: Vec<&TuningRow> = tables.flat_map(|table| table.rows()).collect();
                rows.sort_by_key(|row| std::cmp::Reverse(row.facts.len() + usize::from(row.step.is_some())));
                order.extend(rows);
            }
        }
        order
    }

    /// Why the tables would be as good or better without a row, by those that follow it.
    fn beaten(&self, row: &TuningRow, behind: &[&TuningRow]) -> Option<String> {
        // What says the same takes its place only where no other row would. A built-in row that was measured also
        // stands for its measurement.
        let is_measured = self.provenance(row).is_some_and(|one| one.kind == ProvenanceKind::Measured);
        let is_evidence = is_measured && row.place.starts_with(BUILT_IN);
        let mut is_next = true;
        for other in behind {
            let is_same = other.template == row.template && other.params == row.params;
            if is_for_all_of(other, row) && is_same && is_next && !is_evidence {
                return Some(format!("{} behind it says the same", other.place));
            }
            if let Some(why) = self.is_faster(other, row) {
                return Some(why);
            }
            let some_left = row.tokens.without(other.tokens) != [row.tokens];
            is_next &= !(wants_no_more(other, row) && meets(other, row) && some_left);
        }
        None
    }

    /// Whether a row that follows another one was measured to be faster.
    fn is_faster(&self, behind: &TuningRow, row: &TuningRow) -> Option<String> {
        if !is_for_all_of(behind, row) {
            return None;
        }
        let is_measured =
            |row: &TuningRow| self.provenance(row).is_some_and(|one| one.kind == ProvenanceKind::Measured);
        let same_device = self.provenance(row)?.device == self.provenance(behind)?.device;
        let same_problem = row.facts == behind.facts || (row.problem.is_some() && row.problem == behind.problem);
        let same_rows = row.timed_at.is_some() && row.timed_at == behind.timed_at;
        let (own, other) = (row.time_us?, behind.time_us?);
        let is_faster = other * (1.0 + NOISE) < own;
        let counts = is_measured(row) && is_measured(behind) && same_device && same_problem && same_rows;
        (counts && is_faster).then(|| format!("{} after it took {other} us, this one {own}", behind.place))
    }
}

/// Whether a row applies wherever another one does.
fn is_for_all_of(row: &TuningRow, other: &TuningRow) -> bool {
    covers(row, other) && other.tokens.without(row.tokens).is_empty()
}

/// Whether there are steps for which both are.
fn meets(row: &TuningRow, other: &TuningRow) -> bool {
    row.step.is_none_or(|step| other.step.is_none_or(|other| other == step))
}

/// Whether a row applies wherever another one does, but for the number of tokens.
fn covers(row: &TuningRow, other: &TuningRow) -> bool {
    row.step.is_none_or(|step| other.step == Some(step)) && wants_no_more(row, other)
}

/// Whether rows are for all that a gap leaves out.
fn is_filled<'a>(gap: &Gap<'_>, rows: impl Iterator<Item = &'a TuningRow> + Clone) -> bool {
    StepKind::ALL.into_iter().filter(|step| gap.step.is_none_or(|own| own == *step)).all(|step| {
        let mut left = vec![gap.tokens];
        for row in rows.clone().filter(|row| row.step.is_none_or(|own| own == step) && wants_no_more(row, gap.row)) {
            left = left.into_iter().flat_map(|tokens| tokens.without(row.tokens)).collect();
        }
        left.iter().all(|tokens| tokens.last.is_some_and(|last| last < step.fewest_rows()))
    })
}

/// Whether it is for the same op and wants nothing of the problem that another row does not want too.
fn wants_no_more(row: &TuningRow, other: &TuningRow) -> bool {
    let has = |(name, fact): (&String, _)| other.facts.get(name) == Some(fact);
    row.op == other.op && row.facts.iter().all(has)
}

/// Whether a row is ever the first that applies: at some number of tokens, in some kind of step, no earlier one does.
fn is_reached(row: &TuningRow, earlier: &[&TuningRow]) -> bool {
    StepKind::ALL.into_iter().filter(|step| row.step.is_none_or(|own| own == *step)).any(|step| {
        let mut left: Vec<Tokens> = vec![row.tokens];
        for other in earlier.iter().filter(|other| other.step.is_none_or(|own| own == step)) {
            if wants_no_more(other, row) {
                left = left.into_iter().flat_map(|tokens| tokens.without(other.tokens)).collect();
            }
        }
        left.iter().any(|tokens| tokens.last.is_none_or(|last| last >= step.fewest_rows()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target;

    const ROWS: &str = r#"
        provenance.tuned = { kind = "measured", date = "2026-11-22", method = "tune", device = "a GPU" }
        [[rows]]
        op = "linear"
        where = { weight = "bf16" }
        tokens = "1-8"
        use = "linear/dot"
        provenance = "tuned"
        time_us = 9.0
        timed_at = 8
        [[rows]]
        op = "linear"
        tokens = "1-16"
        use = "linear/dot"
        provenance = "tuned"
        [[rows]]
        op = "linear"
        where = { weight = "bf16", has_bias = true }
        tokens = "1-4"
        use = "linear/other"
        provenance = "tuned"
    "#;

    const FAMILY: &str = r#"
        provenance.tuned = { kind = "measured", date = "2026-11-22", method = "tune", device = "a GPU" }
        [[rows]]
        op = "linear"
        tokens = "3-12"
        use = "linear/never"
        provenance = "tuned"
        [[rows]]
        op = "rmsnorm"
        tokens = "1-8"
        use = "rmsnorm/slow"
        provenance = "tuned"
        time_us = 9.0
        timed_at = 8
        [[rows]]
        op = "rmsnorm"
        tokens = "9+"
        use = "rmsnorm/slow"
        provenance = "tuned"
    "#;

    const GENERIC: &str = r#"
        provenance.tuned = { kind = "measured", date = "2026-11-22", method = "tune", device = "a GPU" }
        [[rows]]
        op = "rmsnorm"
        use = "rmsnorm/fast"
        provenance = "tuned"
        time_us = 5.0
        timed_at = 8
    "#;

    fn findings(arch: &str) -> Vec<(FindingKind, String)> {
        let tables = [("gfx1100", ROWS), ("gfx11", FAMILY), ("generic", GENERIC)];
        let tables = TuningTables::from_texts(&tables).expect("right");
        let targets = [Target::gpu(arch).expect("known")];
        let all = tables.findings(&targets, &targets);
        all.into_iter().map(|one| (one.kind, one.place)).collect()
    }

    #[test]
    fn gaps_and_rows_that_nobody_reaches_or_that_others_beat_are_found_with_their_places() {
        let found = findings("gfx1100");
        let has = |kind, place: &str| found.contains(&(kind, place.to_owned()));
        assert!(has(FindingKind::Gap, "gfx1100.toml:11"), "1-16 leaves out 17 and more: {found:?}");
        assert!(has(FindingKind::Unreachable, "gfx11.toml:3"), "1-16 stands before 3-12: {found:?}");
        assert!(has(FindingKind::Dominated, "gfx1100.toml:3"), "what is behind it says the same: {found:?}");
        assert!(has(FindingKind::Dominated, "gfx11.toml:8"), "5 us at 8 tokens behind 9 us: {found:?}");
        assert!(!has(FindingKind::Dominated, "gfx11.toml:15"), "no time is known of it: {found:?}");
        assert!(!has(FindingKind::Unreachable, "gfx1100.toml:16"), "it wants more than the others: {found:?}");
    }

    /// A table of one row, without and with more in it.
    fn text(variant: &str) -> String {
        format!(
            "provenance.hand = {{ kind = \"hand\", date = \"2026-11-22\", method = \"m\" }}\n[[rows]]\n\
             op = \"linear\"\nuse = \"linear/{variant}\"\nprovenance = \"hand\"\n"
        )
    }

    fn dominated(tables: &[(&str, String)]) -> Vec<String> {
        let texts: Vec<(&str, &str)> = tables.iter().map(|(name, text)| (*name, text.as_str())).collect();
        let targets = [Target::gpu("gfx1100").expect("known")];
        let found = TuningTables::from_texts(&texts).expect("right").findings(&targets, &targets);
        found.iter().filter(|one| one.kind == FindingKind::Dominated).map(|one| one.place.clone()).collect()
    }

    #[test]
    fn what_stands_between_counts_only_where_it_would_take_the_place() {
        let [a, b] = ["a", "b"].map(text);
        let of = |row: &str, step: &str| format!("{row}step = \"{step}\"\n");
        let between = |own: &str, between: String| {
            dominated(&[("gfx1100", own.to_owned()), ("gfx11", between), ("generic", a.clone())])
        };
        assert_eq!(between(&a, b.replace("linear", "rmsnorm")), ["gfx1100.toml:2"], "it is for another op");
        assert_eq!(between(&of(&a, "decode"), of(&b, "mixed")), ["gfx1100.toml:2"], "it is for other steps");
        assert_eq!(between(&of(&a, "decode"), of(&b, "decode")), Vec::<String>::new());
    }

    #[test]
    fn times_are_compared_if_the_same_problem_was_measured() {
        let table = |wants: &str, variant: &str, problem: char, time_us: f64| {
            let problem = problem.to_string().repeat(64);
            format!(
                "provenance.tuned = {{ kind = \"measured\", date = \"2026-11-22\", method = \"tune\", device = \"a GPU\" }}\n\
                 [[rows]]\nop = \"linear\"\n{wants}use = \"linear/{variant}\"\nprovenance = \"tuned\"\n\
                 problem = \"{problem}\"\ntimed_at = 8\ntime_us = {time_us:?}\n"
            )
        };
        let own = table("where = { weight = \"bf16\" }\n", "slow", 'a', 9.0);
        let of = |behind: String| dominated(&[("gfx1100", own.clone()), ("generic", behind)]);
        assert_eq!(of(table("", "fast", 'a', 5.0)), ["gfx1100.toml:2"]);
        assert_eq!(of(table("", "fast", 'b', 5.0)), Vec::<String>::new());
        assert_eq!(of(table("", "fast", 'a', 8.9)), Vec::<String>::new(), "no more than noise");
    }

    #[test]
    fn what_says_the_same_counts_only_where_it_would_take_the_place() {
        let [a, b] = ["a", "b"].map(text);
        assert_eq!(dominated(&[("gfx1100", a.clone()), ("generic", a.clone())]), ["gfx1100.toml:2"]);
        let between = dominated(&[("gfx1100", a.clone()), ("gfx11", b), ("generic", a)]);
        assert_eq!(between, Vec::<String>::new());
    }

    #[test]
    fn a_row_of_a_family_is_reached_if_any_of_its_archs_reaches_it() {
        let tables = [("gfx1100", ROWS), ("gfx11", FAMILY), ("generic", GENERIC)];
        let tables = TuningTables::from_texts(&tables).expect("right");
        let targets = ["gfx1100", "gfx1151"].map(|arch| Target::gpu(arch).expect("known"));
        let is_unreachable = |all: &[Target]| {
            let found = tables.findings(&targets[..1], all);
            found.iter().any(|one| (one.kind, one.place.as_str()) == (FindingKind::Unreachable, "gfx11.toml:3"))
        };
        assert!(is_unreachable(&targets[..1]) && !is_unreachable(&targets));
    }

    #[test]
    fn a_row_of_amd_s_tables_says_what_none_behind_it_says_and_no_two_tables_are_copies() {
        let tables = TuningTables::load(&[]).expect("right");
        let archs = target::built_in().into_iter().map(|(arch, _)| arch).filter(|arch| arch.starts_with("gfx"));
        let targets: Vec<Target> = archs.map(|arch| Target::gpu(&arch).expect("known")).collect();
        assert_eq!(tables.findings(&targets, &targets), [], "each row is reached on some chip");
        let says = |row: &TuningRow| {
            format!("{} {:?} {} {:?} {} {:?}", row.op, row.facts, row.tokens, row.step, row.template, row.params)
        };
        let amd: Vec<(&str, BTreeSet<String>)> = tables.layers[0]
            .iter()
            .filter(|table| table.rows().len() > 1 && !table.name.starts_with("sm_") && table.name != "host")
            .map(|table| (&*table.name, table.rows().iter().map(says).collect()))
            .collect();
        assert!(amd.len() > 4, "{amd:?}");
        for (i, (one, rows)) in amd.iter().enumerate() {
            for (other, others) in &amd[i + 1..] {
                let n_common = rows.intersection(others).count();
                assert!(
                    2 * n_common <= rows.len().min(others.len()),
                    "{one} and {other} have {n_common} rows in common"
                );
            }
        }
    }

    #[test]
    fn a_time_counts_against_another_one_of_the_same_device_problem_and_rows() {
        let row = |provenance: &str, time: &str, timed_at: u32, where_: &str| {
            format!(
                "[[rows]]\nop = \"linear\"\nuse = \"linear/dot\"\nwhere = {{ {where_} }}\nprovenance = \"{provenance}\"\n\
                 time_us = {time}\ntimed_at = {timed_at}\n"
            )
        };
        let measured = |device: &str| {
            format!("{{ kind = \"measured\", date = \"2026-11-22\", method = \"tune\", device = \"{device}\" }}")
        };
        let provenance = format!("[provenance]\na = {}\nb = {}\n", measured("a GPU"), measured("another"));
        let is_faster = |behind: &str, row: &str| {
            let [first, second] = [row, behind].map(|row| format!("{provenance}{row}"));
            let tables = TuningTables::from_texts(&[("gfx1100", &first), ("gfx11", &second)]).expect("right");
            let rows: Vec<_> = tables.rows_for(&Target::gpu("gfx1100").expect("known")).collect();
            tables.is_faster(rows[1], rows[0]).is_some()
        };
        let slow = row("a", "9.0", 8, "");
        assert!(is_faster(&row("a", "5.0", 8, ""), &slow));
        assert!(!is_faster(&row("a", "9.0", 8, ""), &slow), "it took as long");
        assert!(!is_faster(&row("b", "5.0", 8, ""), &slow), "another device");
        assert!(!is_faster(&row("a", "5.0", 16, ""), &slow), "another number of rows");
        assert!(!is_faster(&row("a", "5.0", 8, ""), &row("a", "9.0", 8, "weight = \"bf16\"")), "another problem");
    }
}
