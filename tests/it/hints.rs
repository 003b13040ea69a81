//! What a person can do about an error is said where it is shown: no hint is written that nobody reads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use regex::Regex;

use crate::architecture::ours;

/// The bodies of enums and structs by name, and where each type's hints are.
struct Types {
    bodies: BTreeMap<String, String>,
    with_hints: BTreeMap<String, String>,
}

fn types() -> Types {
    let body = Regex::new(r"(?ms)^pub(?:\(\w+\))? (?:enum|struct) (\w+)[^{(;]*[{(](.*?)^?[})]").expect("a pattern");
    let hint = Regex::new(r"impl (?:hint::)?Hint for (\w+)").expect("a pattern");
    let (mut bodies, mut with_hints) = (BTreeMap::new(), BTreeMap::new());
    for source in ours() {
        // Bodies end at a brace or bracket at the start of a line.
        for found in body.captures_iter(&source.code) {
            let from = found.get(2).expect("a body").start();
            let end = source.code[from..].find("\n}").or(source.code[from..].find(");")).unwrap_or(0);
            bodies.insert(found[1].to_owned(), source.code[from..from + end].to_owned());
        }
        with_hints.extend(hint.captures_iter(&source.code).map(|found| (found[1].to_owned(), source.path.clone())));
    }
    Types { bodies, with_hints }
}

#[test]
fn every_hint_is_reached_from_the_list_from_another_error_or_by_a_call() {
    let Types { bodies, with_hints } = types();
    let word = |name: &str| Regex::new(&format!(r"\b{name}\b")).expect("a pattern");
    let report = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/report.rs")).expect("the list");
    let listed = Regex::new(r"of::<(\w+)>").expect("a pattern");
    let listed: BTreeSet<String> = listed.captures_iter(&report).map(|found| found[1].to_owned()).collect();
    let unknown: Vec<&String> = listed.iter().filter(|name| !with_hints.contains_key(*name)).collect();
    assert!(unknown.is_empty() && with_hints.len() > 50, "{unknown:?} have no hints");

    let calls: Vec<_> = ours().filter(|source| source.code.contains(".hint()")).collect();
    let is_called = |name: &str, own: &str| {
        let named = word(name);
        calls.iter().any(|source| source.path != own && source.path != "src/report.rs" && named.is_match(&source.code))
    };
    let mut reached = listed;
    reached.extend(with_hints.iter().filter(|(name, own)| is_called(name, own)).map(|(name, _)| name.clone()));
    loop {
        let holds = |name: &str| reached.iter().any(|of| bodies.get(of).is_some_and(|body| word(name).is_match(body)));
        let more: Vec<String> =
            with_hints.keys().filter(|name| !reached.contains(*name) && holds(name)).cloned().collect();
        if more.is_empty() {
            break;
        }
        reached.extend(more);
    }
    let lost: Vec<&String> = with_hints.keys().filter(|name| !reached.contains(*name)).collect();
    assert!(lost.is_empty(), "nobody shows the hints of {lost:?}: list them in `src/report.rs`");
}
