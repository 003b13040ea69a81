//! New digests for tuning rows whose contract got further names after they were measured.

use std::collections::BTreeMap;

use kernel::template::Problem;

/// A name that contracts have got, and the value at which everything is as it was without it: `has_sinks`, `true`.
pub type Added = (String, String);

/// The digests of these problems from before they had the names, each with today's. A problem that has none of the
/// names, or one of them at another value, has no such digest.
pub fn digests<'a>(problems: impl IntoIterator<Item = &'a Problem>, added: &[Added]) -> BTreeMap<String, String> {
    let known = |problem: &Problem| Some((before(problem, added)?.identity(), problem.identity()));
    problems.into_iter().filter_map(known).collect()
}

/// A problem as it was before it had these names.
fn before(problem: &Problem, added: &[Added]) -> Option<Problem> {
    let mut old = problem.clone();
    for (name, value) in added {
        let own = [
            old.dims.remove(name).map(|dim| dim.to_string()),
            old.constants.remove(name).map(|constant| constant.to_string()),
            old.flags.remove(name).map(|flag| flag.to_string()),
            old.dtypes.remove(name).map(|dtype| dtype.to_string()),
        ];
        if own.into_iter().flatten().any(|own| own != *value) {
            return None;
        }
    }
    (old != *problem).then_some(old)
}

/// The text of a table with the new digests, and their number. Everything else stays, the digests of sources too, so
/// that a stale row stays stale.
pub fn rekeyed(text: &str, digests: &BTreeMap<String, String>) -> (String, usize) {
    let (mut text, mut n) = (text.to_owned(), 0);
    for (old, new) in digests {
        let [old, new] = [old, new].map(|digest| format!("\"{digest}\""));
        n += text.matches(&old).count();
        text = text.replace(&old, &new);
    }
    (text, n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::template::Precision;

    fn problem(has_sinks: Option<bool>) -> Problem {
        let flags = has_sinks.map(|flag| ("has_sinks".to_owned(), flag));
        let dims = [("window".to_owned(), 128)].into();
        Problem { dims, flags: flags.into_iter().collect(), ..Problem::plain("attention", Precision::Bf16) }
    }

    #[test]
    fn a_row_follows_its_problem_where_a_name_has_the_value_that_it_always_had() {
        let (old, new) = (problem(None).identity(), problem(Some(true)).identity());
        let row =
            |problem: &str| format!("[[rows]]\nop = \"attention\"\nproblem = \"{problem}\" # mine\nsource = \"a\"\n");
        let text = row(&old) + &row("b");
        let added = [("has_sinks".to_owned(), "true".to_owned())];
        let rekeyed_for = |problems: &[Problem]| rekeyed(&text, &digests(problems, &added));
        assert_eq!(rekeyed_for(&[problem(Some(false)), problem(Some(true))]), (row(&new) + &row("b"), 1));
        // Without sinks it is another problem, and what has no such name is what it was.
        assert_eq!(rekeyed_for(&[problem(Some(false)), problem(None)]), (text.clone(), 0));
    }
}
