//! Inserts rows into a table's text and leaves everything else unchanged, comments included.
//!
//! An existing row keeps the token counts that no new row of the same `where` covers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use toml_edit::{DocumentMut, Item, Value};

use super::table::{Fact, Facts, Provenance, Table, Tokens, TuningRow};
use super::{TuningError, lists};
use crate::step::StepKind;
use system::new_file::NewFile;

/// A row to insert into a table.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRow {
    /// The op, or the ops of a fused run joined by `+`.
    pub op: String,
    pub facts: Facts,
    /// The numbers of tokens that it applies to.
    pub tokens: Tokens,
    /// For steps of this kind; of either where it says none.
    pub step: Option<StepKind>,
    /// `linear/dot`, or `apart`.
    pub template: String,
    pub params: BTreeMap<String, u32>,
    /// Time of one launch, in microseconds, and at how many tokens it was taken.
    pub time_us: f64,
    /// Bandwidth that it came to, in 10^9 bytes per second.
    pub gbps: f64,
    /// At how many tokens both were measured.
    pub timed_at: u32,
    /// The evidence for the time.
    pub proof: Proof,
}

/// The evidence for a row's time; digests are SHA-256 in hex.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proof {
    /// How far apart the middle half of the times lay, as a fraction of their median.
    pub spread: Option<f64>,
    /// The problem it was measured on.
    pub problem: Option<String>,
    /// The rendered source.
    pub source: Option<String>,
    pub object: Option<String>,
    /// Digest of the gate's expected and found outputs.
    pub evidence: Option<String>,
}

/// Between the positions of two tables of a text there is room for this many new ones.
pub(super) const ROOM: isize = 1 << 20;

/// The text of a table with these rows in it, in the place of those that they cover.
///
/// - `name`: the table's name; `text`: its text, empty for a new one
///
/// # Errors
/// [`TuningError`], if the text is no table, or would be none.
pub fn merged(name: &str, text: &str, rows: &[NewRow], provenance: &Provenance) -> Result<String, TuningError> {
    let text = &lists::without_lists(name, text, rows)?;
    let table = Table::parse(name, name, text)?;
    let known = table.provenance.iter().find(|(_, known)| *known == provenance).map(|(name, _)| name.clone());
    let label = known.clone().unwrap_or_else(|| new_label(&table, provenance));
    let mut document = parsed(name, text)?;
    each_table(document.as_table_mut(), &mut |table| {
        table.set_position(table.position().map(|position| ROOM * (position + 1)));
    });
    let (mut kept, mut comments) = (Vec::new(), Vec::new());
    let in_file = table.rows().chunk_by(|a, b| a.line == b.line).map(|alike| &alike[0]);
    for (row, old) in in_file.zip(taken_rows(&mut document)) {
        let ranges = left(row, rows);
        if ranges.is_empty() {
            comments.push((old.position().unwrap_or_default(), comment_of(&old)));
        }
        for (i, tokens) in ranges.iter().enumerate() {
            let mut piece = old.clone();
            if ranges != [row.tokens] {
                set_tokens(&mut piece, *tokens);
            }
            if i > 0 {
                piece.decor_mut().set_prefix("\n"); // its comment stays with the first part
            }
            piece.set_position(old.position().map(|position| position + i as isize));
            kept.push((row.op.clone(), piece));
        }
    }
    let op = rows.first().map(|row| row.op.clone());
    let last_of_op = kept.iter().filter(|(of, _)| Some(of) == op.as_ref()).filter_map(|(_, row)| row.position()).max();
    let mut position = last_of_op.unwrap_or(isize::MAX / 2);
    let mut new_text = if known.is_none() { provenance_text(&label, provenance) } else { String::new() };
    new_text.extend(rows.iter().map(|row| row.text(&label)));
    let mut new = parsed(name, &new_text)?;
    if let Some(described) = new.get_mut("provenance").and_then(|all| all.get_mut(&label)).map(std::mem::take) {
        position += 2; // behind the parts of a row that was cut in two
        let mut described = described.into_table().expect("it is one");
        described.set_position(Some(position));
        let all = document.entry("provenance").or_insert_with(|| Item::Table(implicit()));
        all.as_table_mut().expect("the table was read").insert(&label, Item::Table(described));
    }
    for mut row in taken_rows(&mut new) {
        position += 2;
        row.set_position(Some(position));
        kept.push((String::new(), row));
    }
    kept.sort_by_key(|(_, row)| row.position());
    let all: toml_edit::ArrayOfTables = kept.into_iter().map(|(_, row)| row).collect();
    document.insert("rows", Item::ArrayOfTables(all));
    comments.extend(without_unused(&mut document));
    for (position, comment) in comments.into_iter().rev() {
        hand_on(&mut document, position, &comment);
    }
    let merged = tidy(document.to_string().trim_start());
    Table::parse(name, name, &merged)?;
    Ok(merged)
}

pub(super) fn parsed(name: &str, text: &str) -> Result<DocumentMut, TuningError> {
    text.parse().map_err(|error: toml_edit::TomlError| TuningError::Toml {
        file: name.to_owned(),
        line: 1 + error.span().map_or(0, |span| text[..span.start].matches('\n').count()),
        message: error.message().trim().to_owned(),
    })
}

fn implicit() -> toml_edit::Table {
    let mut table = toml_edit::Table::new();
    table.set_implicit(true);
    table
}

/// The rows, out of the document.
pub(super) fn taken_rows(document: &mut DocumentMut) -> Vec<toml_edit::Table> {
    let rows = document.remove("rows").and_then(|rows| rows.into_array_of_tables().ok());
    rows.into_iter().flatten().collect()
}

/// Every table of a document that has a header.
pub(super) fn each_table(table: &mut toml_edit::Table, visit: &mut dyn FnMut(&mut toml_edit::Table)) {
    for (_, item) in table.iter_mut() {
        match item {
            Item::Table(inner) => {
                visit(inner);
                each_table(inner, visit);
            }
            Item::ArrayOfTables(all) => all.iter_mut().for_each(&mut *visit),
            _ => {}
        }
    }
}

/// The comment before a table's header.
fn comment_of(table: &toml_edit::Table) -> String {
    table.decor().prefix().and_then(|prefix| prefix.as_str()).filter(|text| text.contains('#')).unwrap_or("").to_owned()
}

/// Puts the comment of a table that is gone before what follows it.
fn hand_on(document: &mut DocumentMut, position: isize, comment: &str) {
    if comment.is_empty() {
        return;
    }
    let mut next: Option<isize> = None;
    each_table(document.as_table_mut(), &mut |table| {
        if let Some(own) = table.position().filter(|own| *own > position && !table.is_implicit()) {
            next = Some(next.map_or(own, |next| next.min(own)));
        }
    });
    let Some(next) = next else {
        let trailing = document.trailing().as_str().unwrap_or_default().to_owned();
        return document.set_trailing(format!("{comment}{trailing}"));
    };
    each_table(document.as_table_mut(), &mut |table| {
        if table.position() == Some(next) {
            let own = table.decor().prefix().and_then(|own| own.as_str()).unwrap_or_default().to_owned();
            table.decor_mut().set_prefix(format!("{}\n{own}", comment.trim_end()));
        }
    });
}

/// Gives a row another range; what is written after the old one stays.
fn set_tokens(row: &mut toml_edit::Table, tokens: Tokens) {
    let mut value = Value::from(tokens.to_string());
    match row.get_mut("tokens").and_then(Item::as_value_mut) {
        Some(old) => {
            *value.decor_mut() = old.decor().clone();
            *old = value;
        }
        None => {
            let key = toml_edit::Key::new("tokens").with_leaf_decor(toml_edit::Decor::new("", "     "));
            row.insert_formatted(&key, Item::Value(value));
        }
    }
}

/// Takes out the provenance that no row names; gives its comments.
fn without_unused(document: &mut DocumentMut) -> Vec<(isize, String)> {
    let rows = document.get("rows").and_then(Item::as_array_of_tables);
    let names = rows.into_iter().flatten().filter_map(|row| Some(row.get("provenance")?.as_str()?.to_owned()));
    let used: BTreeSet<String> = names.collect();
    let Some(all) = document.get_mut("provenance").and_then(Item::as_table_mut) else { return Vec::new() };
    let unused: Vec<String> = all.iter().map(|(name, _)| name.to_owned()).filter(|name| !used.contains(name)).collect();
    let removed = unused.iter().filter_map(|name| all.remove(name)?.into_table().ok());
    removed.map(|table| (table.position().unwrap_or_default(), comment_of(&table))).collect()
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

/// What no new row covers of an old one.
fn left(row: &TuningRow, new: &[NewRow]) -> Vec<Tokens> {
    let mut left = vec![row.tokens];
    for other in new.iter().filter(|other| other.is_like(row)) {
        left = left.into_iter().flat_map(|tokens| tokens.without(other.tokens)).collect();
    }
    left
}

/// A name for new provenance that the table does not have.
fn new_label(table: &Table, provenance: &Provenance) -> String {
    let first = format!("{}_{}", provenance.kind.name(), provenance.date.replace('-', "_"));
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
    pub(super) fn is_like(&self, row: &TuningRow) -> bool {
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
        let mut text = format!(
            "\n[[rows]]\nop         = {op}\nwhere      = {}\ntokens     = \"{}\"\n{step}use        = {}\nparams     = {}\n\
             provenance = \"{provenance}\"\ntime_us    = {:.2}\ngbps       = {:.1}\ntimed_at   = {}\n",
            list(facts.collect()),
            self.tokens,
            quoted(&self.template),
            list(params.collect()),
            self.time_us.max(0.01),
            self.gbps.max(0.1),
            self.timed_at,
        );
        let Proof { spread, problem, source, object, evidence } = &self.proof;
        if let Some(spread) = spread {
            let _ = writeln!(text, "spread     = {spread:.3}");
        }
        for (key, digest) in [("problem ", problem), ("source  ", source), ("object  ", object), ("evidence", evidence)]
        {
            if let Some(digest) = digest {
                let _ = writeln!(text, "{key}   = \"{digest}\"");
            }
        }
        text
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
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
            proof: Proof { spread: Some(0.0123), source: Some("0".repeat(64)), ..Proof::default() },
        }
    }

    fn rows(text: &str) -> Vec<String> {
        let table = Table::parse("t", "t", text).expect("a table");
        table
            .rows()
            .iter()
            .map(|row| format!("{} {} {} {}", row.op, row.tokens, row.template, row.provenance))
            .collect()
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

    #[test]
    fn the_comment_of_a_row_that_is_gone_stands_before_the_next_one() {
        let merged = merged("t", TABLE, &[new_row("1-8", "linear/new")], &provenance()).expect("right");
        let at = |text: &str| merged.find(text).unwrap_or_else(|| panic!("{text}: {merged}"));
        let between = &merged[at("# Products first.")..at("\"9+\"")];
        assert_eq!(between.matches("[[rows]]").count(), 1, "{merged}");
        assert!(at("# judgement") < at("# Products first."), "{merged}");
    }

    #[test]
    fn a_text_that_is_no_toml_is_told_with_its_line() {
        let new = [new_row("1+", "linear/new")];
        match merged("t", "[target]\nwave_size = 32\nlds_bytes = = 2\n", &new, &provenance()) {
            Err(TuningError::Toml { file, line, .. }) => assert_eq!((file.as_str(), line), ("t", 3)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_empty_line_is_kept_and_more_are_one() {
        assert_eq!(tidy("a\n\nb\n\n\n\nc\n\n\n"), "a\n\nb\n\nc\n");
    }

    #[test]
    fn the_comment_of_a_row_that_is_cut_in_two_stays_with_the_first_part() {
        let merged = merged("t", TABLE, &[new_row("3-4", "linear/new")], &provenance()).expect("right");
        let own = rows(&merged).into_iter().filter(|row| row.starts_with("linear") && row.contains("linear/dot"));
        assert_eq!(own.collect::<Vec<_>>(), ["linear 1-2 linear/dot hand", "linear 5-8 linear/dot hand"]);
        assert_eq!(merged.matches("# Products first.").count(), 1, "{merged}");
    }
}
