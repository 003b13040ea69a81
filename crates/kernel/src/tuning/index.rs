//! An index of a table's rows by their conditions: finds the rows that apply, and pairs that apply at once, without
//! looking at every row.

use std::collections::BTreeMap;

use super::Query;
use super::table::{Fact, TuningRow};
use crate::step::StepKind;

/// What rows want: the op, the names of what must be equal, and the kind of step.
type Wants = (String, Vec<String>, Option<StepKind>);

/// Rows that want alike, by the values of what must be equal and by their first number of tokens: places among the
/// table's rows. No two of the same values have a number in common: they would apply at once.
type ByValues = BTreeMap<Vec<Fact>, BTreeMap<u32, usize>>;

/// The rows of a table by their conditions. Comparing rows one by one, reading a table of many thousand rows, and
/// planning with it, took half a minute.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    rows: BTreeMap<Wants, ByValues>,
}

impl Index {
    /// Of rows, unless two apply at once: these two and the fewest tokens at which they do.
    pub(crate) fn new(rows: &[TuningRow]) -> Result<Self, (usize, usize, u32)> {
        let mut index = Self::default();
        for (i, row) in rows.iter().enumerate() {
            if let Some((other, tokens)) = index.overlap(rows, row) {
                return Err((i, other, tokens));
            }
            let alike = index.rows.entry(wants(row)).or_default();
            alike.entry(row.facts.values().cloned().collect()).or_default().insert(row.tokens.first, i);
        }
        Ok(index)
    }

    /// The rows that apply at this many tokens, or at some number of them, in the order of the table.
    pub(crate) fn applying(
        &self,
        rows: &[TuningRow],
        query: &Query,
        step: StepKind,
        n_tokens: Option<u32>,
    ) -> Vec<usize> {
        let of_op =
            self.rows.iter().filter(|((op, _, wanted), _)| *op == query.op && wanted.is_none_or(|own| own == step));
        let alike = of_op.filter_map(|((_, names, _), by_values)| {
            let values: Option<Vec<Fact>> = names.iter().map(|name| query.facts.get(name).cloned()).collect();
            by_values.get(&values?)
        });
        let mut found: Vec<usize> = match n_tokens {
            None => alike.flat_map(BTreeMap::values).copied().collect(),
            Some(n_tokens) => {
                let last_below = alike.filter_map(|by_tokens| by_tokens.range(..=n_tokens).next_back());
                last_below.map(|(_, &i)| i).filter(|&i| rows[i].tokens.contains(n_tokens)).collect()
            }
        };
        found.sort_unstable();
        found
    }

    /// A row that applies at once with this one, and at how many tokens. Rows that want other values of the same names
    /// never do, and need not be looked at.
    fn overlap(&self, rows: &[TuningRow], row: &TuningRow) -> Option<(usize, u32)> {
        let values: Vec<Fact> = row.facts.values().cloned().collect();
        let wants = wants(row);
        let of_op = self.rows.iter().filter(|(other, _)| can_clash(other, &wants));
        let alike = of_op.flat_map(|((_, names, _), by_values)| {
            let equal = (*names == wants.1).then(|| by_values.get(&values));
            let all = equal.is_none().then(|| by_values.values());
            equal.flatten().into_iter().chain(all.into_iter().flatten())
        });
        let last = row.tokens.last.unwrap_or(u32::MAX);
        let meeting = alike.flat_map(|by_tokens| {
            let below = by_tokens.range(..=last).rev().map(|(_, &other)| other);
            below.take_while(|&other| row.tokens.meet(rows[other].tokens).is_some())
        });
        meeting.filter_map(|other| Some((other, row.overlap(&rows[other])?))).min_by_key(|(other, _)| *other)
    }
}

fn wants(row: &TuningRow) -> Wants {
    (row.op.clone(), row.facts.keys().cloned().collect(), row.step)
}

/// Whether rows that want this and rows that want that may apply at once with neither before the other: not if one
/// wants all that the other wants, and more.
fn can_clash(one: &Wants, other: &Wants) -> bool {
    let n_wants = |(_, names, step): &Wants| names.len() + usize::from(step.is_some());
    let goes_before = |more: &Wants, less: &Wants| {
        let has_names = less.1.iter().all(|name| more.1.contains(name));
        has_names && (less.2.is_none() || less.2 == more.2) && n_wants(more) > n_wants(less)
    };
    let same_step = one.2.is_none() || other.2.is_none() || one.2 == other.2;
    one.0 == other.0 && same_step && !goes_before(one, other) && !goes_before(other, one)
}

#[cfg(test)]
mod tests {
    use super::super::table::Table;
    use super::super::{Query, TuningError};
    use super::{Fact, TuningRow};
    use crate::step::StepKind;

    const HAND: &str = "[provenance.hand]\nkind = \"hand\"\ndate = \"2026-11-20\"\nmethod = \"judgement\"\n";

    fn row(tokens: &str, wants: &str, step: &str) -> String {
        format!(
            "[[rows]]\nop = \"linear\"\nwhere = {{ {wants} }}\ntokens = \"{tokens}\"\nuse = \"linear/dot\"\n\
             provenance = \"hand\"\n{step}"
        )
    }

    /// Against every pair of rows, by what is written in `tuning/README.md`: on a problem where both apply, in a step
    /// where both do, one must want all that the other wants and more.
    #[test]
    fn rows_that_overlap_are_found_as_by_looking_at_every_pair() {
        let mut state = 88_172_645_463_325_252_u64;
        let mut draw = |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 20) % n
        };
        let mut n_refused = 0;
        for _ in 0..400 {
            let drawn: Vec<_> = (0..8)
                .map(|_| ([draw(3), draw(3)], 1 + draw(12), draw(5), ["", "decode", "mixed"][draw(3) as usize]))
                .collect();
            // A want of 0 is none; a length of 4 is no end.
            let text: String = drawn
                .iter()
                .map(|&([a, b], first, len, step)| {
                    let wants = [("in_features", a), ("out_features", b)].into_iter().filter(|(_, value)| *value > 0);
                    let wants: Vec<String> = wants.map(|(name, value)| format!("{name} = {value}")).collect();
                    let tokens = if len == 4 { format!("{first}+") } else { format!("{first}-{}", first + len) };
                    let step = if step.is_empty() { String::new() } else { format!("step = \"{step}\"\n") };
                    row(&tokens, &wants.join(", "), &step)
                })
                .collect();
            let meet = |i: usize, j: usize| {
                let ([a, b], first, len, step) = drawn[i];
                let ([c, d], other_first, other_len, other_step) = drawn[j];
                let ends = [(first, len), (other_first, other_len)];
                let ends = ends.map(|(first, len)| if len == 4 { u64::MAX } else { first + len });
                let is_met = first <= ends[1] && other_first <= ends[0];
                let agree = |x, y| x == 0 || y == 0 || x == y;
                let is_same_step = step.is_empty() || other_step.is_empty() || step == other_step;
                let wants = [[a, b], [c, d]];
                let steps = [step, other_step];
                let n = |k: usize| wants[k].iter().filter(|&&x| x > 0).count() + usize::from(!steps[k].is_empty());
                let has = |k: usize, l: usize| {
                    wants[l].iter().zip(&wants[k]).all(|(&of, &own)| of == 0 || of == own)
                        && (steps[l].is_empty() || steps[l] == steps[k])
                        && n(k) > n(l)
                };
                is_met && agree(a, c) && agree(b, d) && is_same_step && !has(0, 1) && !has(1, 0)
            };
            let expected = (0..drawn.len()).find_map(|i| Some((i, (0..i).find(|&j| meet(i, j))?)));
            let found = Table::parse("gfx11", "gfx11.toml", &format!("{HAND}{text}")).err().map(|error| match error {
                TuningError::Overlap { line, other, .. } => (line, other),
                other => panic!("{other}"),
            });
            let starts: Vec<usize> =
                text.lines().enumerate().filter(|(_, line)| *line == "[[rows]]").map(|(i, _)| i + 1).collect();
            let place = |i: usize| starts[i] + HAND.lines().count();
            assert_eq!(found, expected.map(|(i, j)| (place(i), place(j))), "{text}");
            n_refused += u32::from(found.is_some());
        }
        assert!((40..360).contains(&n_refused), "{n_refused} of 400");
    }

    /// Against every row, by what a row says of itself.
    #[test]
    fn rows_that_apply_are_found_as_by_looking_at_every_row() {
        let most = "in_features = 1, out_features = 1";
        let wants =
            [("", ""), ("in_features = 1", ""), ("in_features = 2", ""), (most, ""), (most, "step = \"mixed\"\n")];
        let of_wants =
            |(want, step): (&str, &str)| ["1", "2-5", "8-9", "12+"].map(|tokens| row(tokens, want, step)).concat();
        let text: String = wants.into_iter().map(of_wants).collect();
        let table = Table::parse("gfx11", "gfx11.toml", &format!("{HAND}{text}")).expect("nothing overlaps");
        let mut n_found = 0;
        for (a, b, op) in (0..3).flat_map(|a| (0..3).flat_map(move |b| [(a, b, "linear"), (a, b, "rmsnorm")])) {
            let facts = [("in_features", a), ("out_features", b), ("other", 1)];
            let facts = facts.into_iter().map(|(name, value)| (name.to_owned(), Fact::Number(value))).collect();
            let query = Query { op: op.to_owned(), facts };
            for (n_tokens, step) in (0..=14).flat_map(|n| StepKind::ALL.map(|step| (n, step))) {
                let n_tokens = (n_tokens > 0).then_some(n_tokens);
                let is_at = |row: &TuningRow| n_tokens.is_none_or(|n_tokens| row.tokens.contains(n_tokens));
                let mut expected: Vec<usize> = table
                    .rows()
                    .iter()
                    .filter(|row| is_at(row) && row.applies(&query, step))
                    .map(|row| row.line)
                    .collect();
                let mut found: Vec<usize> = table.applying(&query, step, n_tokens).iter().map(|row| row.line).collect();
                n_found += found.len();
                expected.sort_unstable();
                found.sort_unstable();
                assert_eq!(found, expected, "{query:?} {n_tokens:?} {step}");
            }
        }
        assert!(n_found > 300, "{n_found}");
    }
}
