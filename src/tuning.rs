//! Tuning tables: which template, with which parameters, for which shapes. `tuning/README.md` is the format.

use crate::target::TargetFacts;

/// The files of `tuning/`, embedded: name and text.
const BUILT_IN: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/tuning.rs"));

/// What the built-in table of an arch says in `[target]`.
pub(crate) fn built_in_facts(arch: &str) -> Option<TargetFacts> {
    #[derive(serde::Deserialize)]
    struct Table {
        target: Option<TargetFacts>,
    }
    let (_, text) = BUILT_IN.iter().find(|(name, _)| name.strip_suffix(".toml") == Some(arch))?;
    toml::from_str::<Table>(text).expect("a test reads every built-in table").target
}

/// The archs that the built-in tables have facts about.
pub(crate) fn built_in_archs() -> Vec<String> {
    let names = BUILT_IN.iter().filter_map(|(name, _)| name.strip_suffix(".toml"));
    names.filter(|name| built_in_facts(name).is_some()).map(String::from).collect()
}
