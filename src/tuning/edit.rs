//! Rows put into the text of a table: everything else stays as it is, comments too.
//!
//! A row that is there keeps the numbers of tokens that no new row of the same `where` covers. The text is edited by
//! lines: a row is a block that begins with `[[rows]]` and ends before the next empty line, comment or table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use super::TuningError;
use super::table::{Fact, Facts, Provenance, Row, StepKind, Table, Tokens};
use crate::new_file::NewFile;

/// A row to put in.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRow {
    /// The op, or the ops of a fused run joined by `+`.
    pub op: String,
    /// What must be equal.
    pub facts: Facts,
    /// For how many tokens.
    pub tokens: Tokens,
    /// For steps of this kind; of either where it says none.
    pub step: Option<StepKind>,
    /// `linear/dot`.
    pub template: String,
    /// All parameters.
    pub params: BTreeMap<String, u32>,
    /// Time of one launch, in microseconds, and at how many tokens it was taken.
    pub time_us: f64,
    /// Bandwidth that it came to, in 10^9 bytes per second.
    pub gbps: f64,
    /// At how many tokens both were measured.
    pub timed_at: u32,
    /// SHA-256 of the rendered source, in hex.
    pub source: String,
}

/// The text of a table with these rows in it, in the place of those that they cover.
///
/// - `name`: the table's name; `text`: its text, empty for a new one
///
/// # Errors
/// [`TuningError`], if the text is no table, or would be none.
pub fn merged(name: &str, text: &str, rows: &[NewRow], provenance: &Provenance) -> Result<String, TuningError> {
    let table = Table::parse(name, name, text)?;
    let known = table.provenance.iter().find(|(_, known)| *known == provenance).map(|(name, _)| name.clone());
    let label = known.clone().unwrap_or_else(|| new_label(&table, &provenance.date));
    let mut blocks = blocks(text);
    for (row, block) in table.rows.iter().zip(blocks.iter_mut().filter(|block| block.is_row)) {
        block.keep(row, &left(row, rows));
    }
    let mut new = String::new();
    if known.is_none() {
        new += &provenance_text(&label, provenance);
    }
    for row in rows {
        new += &row.text(&label);
    }
    let op = rows.first().map(|row| row.op.as_str());
    let last_of_op = table.rows.iter().rposition(|row| Some(row.op.as_str()) == op);
    let mut merged = String::new();
    let mut n_rows = 0;
    for block in &blocks {
        merged += &block.text;
        n_rows += usize::from(block.is_row);
        if block.is_row && last_of_op == Some(n_rows - 1) {
            merged = format!("{}\n\n{}", merged.trim_end(), new.trim_start());
        }
    }
    if last_of_op.is_none() {
        merged = format!("{}\n\n{}", merged.trim_end(), new.trim_start());
    }
    let merged = tidy(&without_unused(merged.trim_start(), name)?);
    Table::parse(name, name, &merged)?;
    Ok(merged)
}

/// Writes a file in one step: who reads it sees all of it or what was there before.
///
/// # Errors
/// [`TuningError::Write`].
pub fn write(path: &Path, text: &str) -> Result<(), TuningError> {
    let wrong = |source: io::Error| TuningError::Write { path: path.to_path_buf(), source: Arc::new(source) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(wrong)?;
    let mut file = NewFile::create(path).map_err(wrong)?;
    file.file().write_all(text.as_bytes()).and_then(|()| file.publish()).map_err(wrong)
}

/// Lines that belong together.
struct Block {
    text: String,
    is_row: bool,
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = vec![Block { text: String::new(), is_row: false }];
    for line in text.split_inclusive('\n') {
        let begins_row = line.trim() == "[[rows]]";
        let ends_row = line.trim().is_empty() || line.starts_with(['#', '[']);
        let last = blocks.last_mut().expect("there is one");
        if begins_row || (last.is_row && ends_row) {
            blocks.push(Block { text: line.to_owned(), is_row: begins_row });
        } else {
            last.text += line;
        }
    }
    blocks
}

impl Block {
    /// Leaves a row for these ranges, once for each.
    fn keep(&mut self, row: &Row, ranges: &[Tokens]) {
        if *ranges == [row.tokens] {
            return;
        }
        let mut text = String::new();
        for tokens in ranges {
            let lines = self.text.lines().filter(|line| !is_key(line, "tokens"));
            for line in lines {
                text += line;
                text.push('\n');
                if is_key(line, "where") || (row.facts.is_empty() && is_key(line, "op")) {
                    let _ = writeln!(text, "tokens     = \"{tokens}\"");
                }
            }
            text.push('\n');
        }
        self.text = text;
    }
}

fn is_key(line: &str, key: &str) -> bool {
    line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='))
}

/// What no new row covers of an old one.
fn left(row: &Row, new: &[NewRow]) -> Vec<Tokens> {
    let mut left = vec![row.tokens];
    for other in new.iter().filter(|other| other.is_like(row)) {
        left = left.into_iter().flat_map(|tokens| tokens.without(other.tokens)).collect();
    }
    left
}

/// A name for new provenance that the table does not have.
fn new_label(table: &Table, date: &str) -> String {
    let first = format!("measured_{}", date.replace('-', "_"));
    let numbered = (2..).map(|i| format!("{first}_{i}"));
    let mut labels = std::iter::once(first.clone()).chain(numbered);
    labels.find(|label| !table.provenance.contains_key(label)).expect("there is always one more number")
}

fn provenance_text(label: &str, provenance: &Provenance) -> String {
    let kind = provenance.kind.name();
    let mut text = format!("\n[provenance.{label}]\nkind     = \"{kind}\"\n");
    let fields = [
        ("date    ", Some(&provenance.date)),
        ("method  ", Some(&provenance.method)),
        ("device  ", provenance.device.as_ref()),
        ("compiler", provenance.compiler.as_ref()),
        ("notes   ", provenance.notes.as_ref()),
    ];
    for (key, value) in fields {
        if let Some(value) = value {
            let _ = writeln!(text, "{key} = {}", quoted(value));
        }
    }
    text
}

impl NewRow {
    /// Whether another row uses the same template with the same parameters.
    pub fn is_same_choice(&self, other: &Self) -> bool {
        self.template == other.template && self.params == other.params
    }

    /// Whether an old row is for the same, but for the number of tokens.
    fn is_like(&self, row: &Row) -> bool {
        self.op == row.op && self.facts == row.facts && self.step == row.step
    }

    fn text(&self, provenance: &str) -> String {
        let list =
            |items: Vec<String>| if items.is_empty() { "{}".into() } else { format!("{{ {} }}", items.join(", ")) };
        let facts = self.facts.iter().map(|(name, fact)| match fact {
            Fact::Flag(flag) => format!("{name} = {flag}"),
            Fact::Number(number) => format!("{name} = {number}"),
            Fact::Text(text) => format!("{name} = {}", quoted(text)),
        });
        let params = self.params.iter().map(|(name, value)| format!("{name} = {value}"));
        let ops: Vec<String> = self.op.split('+').map(quoted).collect();
        let step = self.step.map_or(String::new(), |step| format!("step       = \"{step}\"\n"));
        let op = if let [op] = ops.as_slice() { op.clone() } else { format!("[{}]", ops.join(", ")) };
        format!(
            "\n[[rows]]\nop         = {op}\nwhere      = {}\ntokens     = \"{}\"\n{step}use        = {}\nparams     = {}\n\
             provenance = \"{provenance}\"\ntime_us    = {:.2}\ngbps       = {:.1}\ntimed_at   = {}\nsource     = \"{}\"\n",
            list(facts.collect()),
            self.tokens,
            quoted(&self.template),
            list(params.collect()),
            self.time_us.max(0.01),
            self.gbps.max(0.1),
            self.timed_at,
            self.source,
        )
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// The text without provenance that no row names.
fn without_unused(text: &str, name: &str) -> Result<String, TuningError> {
    let table = Table::parse(name, name, text)?;
    let used: BTreeSet<&String> = table.rows.iter().map(|row| &row.provenance).collect();
    let unused: Vec<String> = table
        .provenance
        .keys()
        .filter(|label| !used.contains(label))
        .map(|label| format!("[provenance.{label}]"))
        .collect();
    let mut kept = String::new();
    let mut is_unused = false;
    for line in text.split_inclusive('\n') {
        if line.starts_with('[') {
            is_unused = unused.iter().any(|header| line.trim() == header);
        } else if line.starts_with('#') {
            is_unused = false;
        }
        if !is_unused {
            kept += line;
        }
    }
    Ok(kept)
}

/// One empty line where there are several.
fn tidy(text: &str) -> String {
    let mut tidied = String::new();
    let mut n_empty = 0;
    for line in text.lines() {
        n_empty = if line.is_empty() { n_empty + 1 } else { 0 };
        if n_empty < 2 {
            tidied += line;
            tidied.push('\n');
        }
    }
    format!("{}\n", tidied.trim_end())
}

#[cfg(test)]
mod tests {
    use super::super::table::ProvenanceKind;
    use super::*;

    const TABLE: &str = "\
# A table.

[target]
wave_size = 32
lds_bytes = 1024

[provenance.hand]      # judgement
kind   = \"hand\"
date   = \"2026-11-01\"
method = \"judgement\"

# Products first.
[[rows]]
op         = \"linear\"
where      = { precision = \"bf16\" }
tokens     = \"1-8\"
use        = \"linear/dot\"
provenance = \"hand\"

[[rows]]
op         = \"linear\"
where      = { precision = \"bf16\" }
tokens     = \"9+\"                     # a prompt
use        = \"linear/tile\"
params     = { tile = 64 }
provenance = \"hand\"

# Then norms.
[[rows]]
op         = \"rmsnorm\"
use        = \"rmsnorm/rows\"
provenance = \"hand\"
";

    fn provenance() -> Provenance {
        Provenance {
            kind: ProvenanceKind::Measured,
            date: "2026-11-20".into(),
            method: "gptoss-jit tune --op linear".into(),
            device: Some("a \"GPU\"".into()),
            compiler: None,
            notes: None,
        }
    }

    fn new_row(tokens: &str, template: &str) -> NewRow {
        NewRow {
            op: "linear".into(),
            facts: [("precision".to_owned(), Fact::Text("bf16".into()))].into(),
            tokens: tokens.parse().expect("a range"),
            step: None,
            template: template.into(),
            params: [("tile".to_owned(), 32)].into(),
            time_us: 12.5,
            gbps: 1000.04,
            timed_at: 16,
            source: "0".repeat(64),
        }
    }

    fn rows(text: &str) -> Vec<String> {
        let table = Table::parse("t", "t", text).expect("a table");
        table.rows.iter().map(|row| format!("{} {} {} {}", row.op, row.tokens, row.template, row.provenance)).collect()
    }

    #[test]
    fn rows_keep_what_no_new_row_covers() {
        let merged = merged("t", TABLE, &[new_row("5-16", "linear/new")], &provenance()).expect("right");
        assert_eq!(
            rows(&merged),
            [
                "linear 1-4 linear/dot hand",
                "linear 17+ linear/tile hand",
                "linear 5-16 linear/new measured_2026_11_20",
                "rmsnorm 1+ rmsnorm/rows hand",
            ]
        );
        for comment in ["# A table.", "# judgement", "# Products first.", "# Then norms."] {
            assert!(merged.contains(comment), "{merged}");
        }
        assert!(merged.contains("device   = 'a \"GPU\"'") && !merged.contains("\n\n\n"), "{merged}");
    }

    #[test]
    fn measuring_again_gives_the_same_text() {
        let new = [new_row("1-16", "linear/new"), new_row("17+", "linear/other")];
        let once = merged("t", TABLE, &new, &provenance()).expect("right");
        assert_eq!(merged("t", &once, &new, &provenance()).expect("right"), once);
        let other = Provenance { method: "another command".into(), ..provenance() };
        let again = merged("t", &once, &new, &other).expect("right");
        assert!(again.contains("[provenance.measured_2026_11_20_2]"), "{again}");
        assert!(!again.contains("[provenance.measured_2026_11_20]"), "nothing names it any more: {again}");
    }

    #[test]
    fn a_row_in_the_middle_is_cut_in_two_and_other_rows_are_left_alone() {
        let merged = merged("t", TABLE, &[new_row("3", "linear/new")], &provenance()).expect("right");
        assert_eq!(
            rows(&merged)[..3],
            ["linear 1-2 linear/dot hand", "linear 4-8 linear/dot hand", "linear 9+ linear/tile hand"]
        );
        let mut f32s = new_row("3", "linear/new");
        f32s.facts.insert("precision".into(), Fact::Text("f32".into()));
        assert_eq!(rows(&super::merged("t", TABLE, &[f32s], &provenance()).expect("right")).len(), 4);
    }

    #[test]
    fn a_new_table_has_provenance_and_rows() {
        let merged = merged("t", "", &[new_row("1+", "linear/new")], &provenance()).expect("right");
        assert_eq!(rows(&merged), ["linear 1+ linear/new measured_2026_11_20"]);
        assert!(merged.starts_with("[provenance.measured_2026_11_20]\n"), "{merged}");
    }

    #[test]
    fn a_file_is_replaced_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deep/t.toml");
        write(&path, "first").expect("written");
        write(&path, "second").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("read"), "second");
        assert_eq!(fs::read_dir(path.parent().expect("a folder")).expect("listed").count(), 1);
    }
}
