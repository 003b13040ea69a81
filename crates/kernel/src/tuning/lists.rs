//! Rows whose `where` lists values, read and taken apart: `weight = ["q4_k", "q6_k"]` is a row for each of the two.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use toml_edit::{Item, Value};

use super::TuningError;
use super::edit::{NewRow, ROOM, each_table, parsed, taken_rows};
use super::table::{Fact, Facts, Table, TuningRow};

/// A value, or a list of them.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

/// What a row wants; several such, where a name has a list of values: one for each of them.
pub(super) fn each(facts: &BTreeMap<String, OneOrMore<Fact>>) -> Vec<Facts> {
    let mut all = vec![Facts::new()];
    for (name, values) in facts {
        let values = match values {
            OneOrMore::One(value) => std::slice::from_ref(value),
            OneOrMore::More(values) => values,
        };
        let with = |facts: &Facts, value: &Fact| {
            let own = std::iter::once((name.clone(), value.clone()));
            facts.clone().into_iter().chain(own).collect()
        };
        all = all.iter().flat_map(|facts| values.iter().map(move |value| with(facts, value))).collect();
    }
    all
}

/// The same table: rows whose `where` lists values become one for each of them, where new rows change some. If none
/// does, all lists stay.
pub(super) fn without_lists(name: &str, text: &str, new: &[NewRow]) -> Result<String, TuningError> {
    let table = Table::parse(name, name, text)?;
    let lines: BTreeSet<usize> = table.rows().iter().map(|row| row.line).collect();
    if lines.len() == table.rows().len() {
        return Ok(text.to_owned());
    }
    let mut document = parsed(name, text)?;
    each_table(document.as_table_mut(), &mut |table| {
        table.set_position(table.position().map(|position| ROOM * (position + 1)));
    });
    let mut all = Vec::new();
    for (line, old) in lines.into_iter().zip(taken_rows(&mut document)) {
        let own: Vec<&TuningRow> = table.rows().iter().filter(|row| row.line == line).collect();
        if own.len() == 1 || !own.iter().any(|row| new.iter().any(|new| new.is_like(row))) {
            all.push(old);
            continue;
        }
        for (i, row) in own.into_iter().enumerate() {
            let mut one = old.clone();
            one.insert("where", Item::Value(Value::InlineTable(facts_of(row))));
            if i > 0 {
                one.decor_mut().set_prefix("\n"); // the comment stays with the first
            }
            one.set_position(old.position().map(|position| position + i as isize));
            all.push(one);
        }
    }
    document.insert("rows", Item::ArrayOfTables(all.into_iter().collect()));
    Ok(document.to_string())
}

fn facts_of(row: &TuningRow) -> toml_edit::InlineTable {
    let value = |fact: &Fact| match fact {
        Fact::Flag(flag) => Value::from(*flag),
        Fact::Number(number) => Value::from(*number),
        Fact::Text(text) => Value::from(text.as_str()),
    };
    row.facts.iter().map(|(name, fact)| (name.as_str(), value(fact))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::edit::{Proof, merged};
    use super::super::table::{Provenance, ProvenanceKind, Tokens};
    use super::*;

    const TABLE: &str = r#"[provenance.hand]
kind   = "hand"
date   = "2026-11-28"
method = "judgement"

# Two types.
[[rows]]
op         = "linear"
where      = { weight = ["q4_0", "q8_0"] }
use        = "linear/tile"
provenance = "hand"

[[rows]]
op         = "rmsnorm"
use        = "rmsnorm/rows"
provenance = "hand"
"#;

    fn with(op: &str, weight: &str) -> String {
        let facts = Facts::from([("weight".to_owned(), Fact::Text(weight.to_owned()))]);
        let new = NewRow {
            op: op.to_owned(),
            facts: if op == "linear" { facts } else { Facts::new() },
            tokens: Tokens { first: 1, last: Some(4) },
            step: None,
            template: format!("{op}/new"),
            params: BTreeMap::new(),
            time_us: 1.0,
            gbps: 1.0,
            timed_at: 1,
            proof: Proof::default(),
        };
        let provenance = Provenance {
            kind: ProvenanceKind::Measured,
            date: "2026-11-28".into(),
            method: "a command".into(),
            device: None,
            compiler: None,
            notes: None,
        };
        merged("t", TABLE, &[new], &provenance).expect("right")
    }

    fn rows(text: &str) -> Vec<String> {
        let table = Table::parse("t", "t", text).expect("a table");
        let text = |row: &TuningRow| {
            let weight = row.facts.get("weight").map_or(String::new(), |weight| format!(" {weight}"));
            format!("{}{weight} {}", row.template, row.tokens)
        };
        table.rows().iter().map(text).collect()
    }

    #[test]
    fn a_list_is_a_row_for_each_of_its_values() {
        assert_eq!(rows(TABLE), ["linear/tile q4_0 1+", "linear/tile q8_0 1+", "rmsnorm/rows 1+"]);
    }

    #[test]
    fn a_list_stays_until_a_new_row_is_for_one_of_its_values() {
        let other = with("rmsnorm", "");
        assert!(other.contains("where      = { weight = [\"q4_0\", \"q8_0\"] }"), "{other}");
        assert_eq!(rows(&other)[2..], ["rmsnorm/rows 5+", "rmsnorm/new 1-4"]);
        let own = with("linear", "q8_0");
        assert_eq!(
            rows(&own),
            ["linear/tile q4_0 1+", "linear/tile q8_0 5+", "linear/new q8_0 1-4", "rmsnorm/rows 1+"]
        );
        assert!(own.contains("# Two types."), "{own}");
    }
}
