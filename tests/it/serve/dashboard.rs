//! The dashboard and the document name the metrics that there are.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::Path;

use serde_json::Value;
use serve::backend::{Figures, ReplicaFigures};
use serve::metrics::{KvCacheFacts, Metrics};

const PREFIX: &str = "gptoss_";

fn file(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The names of samples, by what `# TYPE` says of each metric.
fn samples() -> BTreeSet<String> {
    let text = {
        let replica = ReplicaFigures { is_up: true, running: 0, waiting: 0, restarts: 0 };
        let metrics = Metrics::default();
        metrics.cache_is(KvCacheFacts { block_tokens: 1, n_blocks: 1, dtype: "f32".into() });
        metrics.text(PREFIX, "m", "loaded", &Figures::default(), &[replica])
    };
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let names = types.flat_map(|(name, kind)| {
        let suffixes: &[&str] = match kind {
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_sum", "_count"],
            "gauge" => &[""],
            kind => panic!("{name} is a {kind}"),
        };
        suffixes.iter().map(move |suffix| format!("{name}{suffix}"))
    });
    names.collect()
}

/// All words of a text that begin with the prefix.
fn named(text: &str) -> HashSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with(PREFIX)).collect()
}

fn strings<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| strings(value, key, found)),
        Value::Object(entries) => {
            found.extend(entries.get(key).and_then(Value::as_str));
            entries.values().for_each(|value| strings(value, key, found));
        }
        _ => {}
    }
}

#[test]
fn the_dashboard_asks_for_metrics_that_there_are() {
    let dashboard: Value = serde_json::from_str(&file("examples/serve/grafana.json")).expect("JSON");
    let samples = samples();
    let (mut expressions, mut queries) = (Vec::new(), Vec::new());
    strings(&dashboard, "expr", &mut expressions);
    strings(&dashboard["templating"], "query", &mut queries);
    let panels = dashboard["panels"].as_array().expect("panels");
    assert!(expressions.len() >= panels.len() && !panels.is_empty());
    for text in expressions.iter().chain(&queries) {
        let named = named(text);
        assert!(!named.is_empty() || queries.contains(text), "`{text}` asks for nothing");
        for name in named {
            assert!(samples.contains(name), "`{text}` asks for `{name}`, which is not there");
        }
    }

    let (mut ids, mut taken) = (HashSet::new(), HashSet::new());
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{panel}");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().expect("a number"));
        assert!(w > 0 && h > 0 && x + w <= 24, "{panel}");
        let cells = (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y)));
        assert!(cells.into_iter().all(|cell| taken.insert(cell)), "two panels lie on each other: {panel}");
    }
}

#[test]
fn the_document_lists_all_metrics() {
    let text = file("docs/serve.md");
    let (_, section) = text.split_once("\n## Metrics\n").expect("a section");
    let (section, _) = section.split_once("\n## ").expect("more behind it");
    let told: BTreeSet<&str> =
        section.split('`').skip(1).step_by(2).map(|name| name.split('{').next().unwrap_or_default()).collect();
    let samples = samples();
    // Those of the process have the names that all programs give them.
    let own = samples.iter().filter(|name| !name.starts_with("process_"));
    let there = own.map(|name| name.strip_prefix(PREFIX).expect("the prefix"));
    let there: BTreeSet<&str> = there
        .filter(|name| !name.ends_with("_bucket") && !name.ends_with("_count"))
        .map(|name| name.strip_suffix("_sum").unwrap_or(name))
        .collect();
    let missing: Vec<&&str> = there.iter().filter(|name| !told.contains(**name)).collect();
    assert!(missing.is_empty(), "not in docs/serve.md: {missing:?}");
    let names = |line: &str| line.split('|').nth(1).unwrap_or_default().to_owned();
    let rows = section.lines().filter(|line| line.starts_with("| `")).map(names).collect::<Vec<_>>().join("\n");
    for name in rows.split('`').skip(1).step_by(2).map(|name| name.split('{').next().unwrap_or_default()) {
        assert!(there.contains(name), "docs/serve.md lists `{name}`, which is not there");
    }
}
