//! What GPU templates compute, changed a little: a bound, a stride, a tail, a window or a scale is another one, and the
//! check against the reference sees it.

use std::collections::BTreeMap;
use std::fs;

use kernel::template::Precision;
use regex::Regex;
use workbench::check::Selection;

use super::ordering::{checked, includes, library_of, seen, texts, without_hidden};
use crate::fixtures::program::{file, repository};
use crate::fixtures::say;
use fixtures::bodies::Random;

/// What is changed: the file, its text, what it is instead, and an op and a template that include it.
const CHANGES: [[&str; 5]; 5] = [
    // A bound: threads behind the last vector of a row.
    [
        "rmsnorm/row.hip.j2",
        "if (i >= {{ n_vectors }}) break;\n    held",
        "if (i > {{ n_vectors }}) break;\n    held",
        "rmsnorm",
        "row",
    ],
    // A stride: of rows of the output.
    ["linear/gemv.hip.j2", "at = (size_t)t * N + n", "at = (size_t)t * K + n", "linear", "gemv"],
    // A tail: the rows of weight that a wave has beyond the last one.
    ["linear/gemv.hip.j2", "min_u32(first_n + r, N - 1)", "min_u32(first_n + r, N)", "linear", "gemv"],
    // A window: it begins one position early.
    [
        "lib/attention/softmax.hip.j2",
        "p + 1 > {{ window }} ? p + 1 - {{ window }}",
        "p > {{ window }} ? p - {{ window }}",
        "attention",
        "decode",
    ],
    // A scale: of what is summed up over a row.
    ["rmsnorm/row.hip.j2", "/ {{ hidden_size }} +", "/ ({{ hidden_size }} + 1) +", "rmsnorm", "row"],
];

#[test]
fn bounds_strides_tails_windows_and_scales_are_seen() {
    for [name, word, instead, op, variant] in CHANGES {
        let text = fs::read_to_string(repository().join("templates").join(name)).expect(name);
        assert_eq!(text.matches(word).count(), 1, "{name}: {word}");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let _ = file(folder.path(), name, text.replace(word, instead).as_bytes());
        let how = Selection {
            op: vec![op.into()],
            op_alone: true,
            variant: vec![variant.into()],
            precision: Some(Precision::F32),
            first_shape: true,
            is_thin: true,
            common_types: true,
            until_wrong: true,
            ..Selection::default()
        };
        let (failures, _) = checked(&library_of(folder.path()), "gfx1100", 0, &how);
        let is_seen = failures.iter().any(|failure| !failure.contains("could not compile"));
        assert!(is_seen, "{name} with `{instead}`: {failures:?}");
    }
}

/// The texts in which one operator of the kernel's code is another one, each with what was changed.
fn mutants(text: &str) -> Vec<(String, String)> {
    const INSTEAD: [(&str, &str); 9] = [
        (" < ", " <= "),
        (" <= ", " < "),
        (" > ", " >= "),
        (" >= ", " > "),
        (" + 1", ""),
        (" - 1", ""),
        (" * ", " + "),
        (" + ", " - "),
        (" << ", " >> "),
    ];
    let comment = Regex::new(r"(?m)//.*$|^#.*$|\{%.*?%\}|asm\b.*$").expect("a pattern");
    let begin = text.find("#}").map_or(0, |end| end + 2);
    let passed_over: Vec<_> = comment.find_iter(text).map(|found| found.range()).collect();
    let is_code = |at: usize| at > begin && !passed_over.iter().any(|range| range.contains(&at));
    let mut mutants = Vec::new();
    for (word, instead) in INSTEAD {
        for (at, _) in text.match_indices(word).filter(|(at, _)| is_code(*at)) {
            let line = 1 + text[..at].matches('\n').count();
            let mutant = format!("{}{instead}{}", &text[..at], &text[at + word.len()..]);
            mutants.push((format!("line {line}: `{word}` as `{instead}`"), mutant));
        }
    }
    mutants
}

/// By hand: `GPTOSS_JIT_MUTANTS=50 GPTOSS_JIT_MUTANTS_SEED=1 cargo test --test it drawn_changes -- --ignored
/// --nocapture`. It draws so many of all changes of one operator, and prints those that nothing sees.
#[test]
#[ignore = "minutes for each change that nothing sees"]
fn drawn_changes_of_templates_are_seen() {
    let number = |name: &str, default: usize| std::env::var(name).map_or(default, |n| n.parse().expect(name));
    let (n_drawn, seed) = (number("GPTOSS_JIT_MUTANTS", 50), number("GPTOSS_JIT_MUTANTS_SEED", 1));
    let mut all = BTreeMap::new();
    texts(&repository().join("templates"), "", &mut all);
    let is_used = |name: &String| all.keys().any(|user| !user.starts_with("lib/") && includes(&all, user, name));
    let mut left: Vec<(&String, String, String)> = Vec::new();
    for (name, text) in all.iter().filter(|(name, _)| is_used(name)) {
        // A mutant of what the simulator's compiler does not read is the same kernel.
        let simulated = mutants(text).into_iter().filter(|(_, mutant)| without_hidden(mutant) != without_hidden(text));
        left.extend(simulated.map(|(what, mutant)| (name, what, mutant)));
    }
    let n_all = left.len();
    let mut random = Random(seed as u64);
    let (mut spared, mut n_tried) = (Vec::new(), 0);
    while n_tried < n_drawn && !left.is_empty() {
        let (name, what, mutant) = left.swap_remove(random.below(left.len()));
        let outcome = match seen(&all, name, &all[name], &mutant) {
            (Some(failure), _) => format!("seen: {name} {what}: {}", failure.lines().next().unwrap_or_default()),
            (None, 0) => format!("passed over: {name} {what}: in no kernel that compiles and is run"),
            (None, n_cases) => format!("spared: {name} {what}: in {n_cases} cases"),
        };
        say(&outcome);
        n_tried += usize::from(!outcome.starts_with("passed over"));
        spared.extend(outcome.starts_with("spared").then_some(outcome));
    }
    assert!(n_tried > 0, "nothing was tried");
    say(&format!(
        "seed {seed}: of {n_all} changes {n_tried} were tried, {} spared:\n{}",
        spared.len(),
        spared.join("\n")
    ));
}
