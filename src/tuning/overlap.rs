//! Rows of a table that apply at once, found without holding each row against all others.

use std::collections::BTreeMap;

use super::table::{Fact, Row, StepKind};

/// What rows want: the op, the names of what must be equal, and the kind of step.
type Wants<'a> = (&'a str, Vec<&'a str>, Option<&'static str>);

/// Rows that want alike, by the values of what must be equal and by their first number of tokens. No two of the same
/// values have a number in common: they would apply at once.
type ByValues<'a> = BTreeMap<Vec<&'a Fact>, BTreeMap<u32, &'a Row>>;

/// The rows before a row, by what they want: held against each of them, tables of many thousand rows took half a
/// minute.
#[derive(Default)]
pub(super) struct Earlier<'a> {
    rows: BTreeMap<Wants<'a>, ByValues<'a>>,
}

impl<'a> Earlier<'a> {
    pub fn add(&mut self, row: &'a Row) {
        let names = row.facts.keys().map(String::as_str).collect();
        let alike = self.rows.entry((&row.op, names, row.step.map(StepKind::name))).or_default();
        alike.entry(row.facts.values().collect()).or_default().insert(row.tokens.first, row);
    }

    /// A row that applies at once with this one, and at how many tokens. Rows that want other values of the same names
    /// never do, and need not be looked at.
    pub fn overlap(&self, row: &'a Row) -> Option<(&'a Row, u32)> {
        let own: Vec<&str> = row.facts.keys().map(String::as_str).collect();
        let values: Vec<&Fact> = row.facts.values().collect();
        let wants: Wants<'_> = (&row.op, own.clone(), row.step.map(StepKind::name));
        let of_op = self.rows.iter().filter(|(other, _)| can_clash(other, &wants));
        let alike = of_op.flat_map(|((_, names, _), by_values)| {
            let equal = (*names == own).then(|| by_values.get(&values));
            let all = equal.is_none().then(|| by_values.values());
            equal.flatten().into_iter().chain(all.into_iter().flatten())
        });
        let last = row.tokens.last.unwrap_or(u32::MAX);
        let meeting = alike.flat_map(|by_tokens| {
            let below = by_tokens.range(..=last).rev().map(|(_, other)| *other);
            below.take_while(|other| row.tokens.meet(other.tokens).is_some())
        });
        meeting.filter_map(|other| Some((other, row.overlap(other)?))).min_by_key(|(other, _)| other.line)
    }
}

/// Whether rows that want this and rows that want that may apply at once with neither before the other: not if one
/// wants all that the other wants, and more.
fn can_clash(one: &Wants<'_>, other: &Wants<'_>) -> bool {
    let n_wants = |(_, names, step): &Wants<'_>| names.len() + usize::from(step.is_some());
    let goes_before = |more: &Wants<'_>, less: &Wants<'_>| {
        let has_names = less.1.iter().all(|name| more.1.contains(name));
        has_names && (less.2.is_none() || less.2 == more.2) && n_wants(more) > n_wants(less)
    };
    let same_step = one.2.is_none() || other.2.is_none() || one.2 == other.2;
    one.0 == other.0 && same_step && !goes_before(one, other) && !goes_before(other, one)
}

#[cfg(test)]
mod tests {
    use super::super::TuningError;
    use super::super::table::Table;

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
}
