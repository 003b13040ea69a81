//! One file of `tuning/`, read and checked.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, de};
use toml::Spanned;
use toml::value::Datetime;

use super::index::Index;
use super::lists::{self, OneOrMore};
use super::{BUILT_IN, Query, TuningError, words};
use crate::step::StepKind;
use crate::target::TargetFacts;

/// A problem's dims, flags, dtypes and precision by name, or those that a row wants.
pub type Facts = BTreeMap<String, Fact>;

/// A value in `where`: a number, a flag, a dtype or a precision.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(untagged)]
pub enum Fact {
    Flag(bool),
    Number(i64),
    /// A dtype, or the precision.
    Text(String),
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => flag.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// What a row for a run of ops uses that wants them done one by one.
pub const APART: &str = "apart";

/// A tuning table: facts about a chip, and the rows of one file.
#[derive(Clone, Debug)]
pub struct Table {
    /// The file's name without `.toml`: an arch, a family, `generic` or `host`.
    pub(crate) name: String,
    /// Facts about the chip.
    pub(crate) target: Option<TargetFacts>,
    /// Where the rows' numbers come from.
    pub(crate) provenance: BTreeMap<String, Provenance>,
    /// In the order of the file; one whose `where` lists values stands here for each of them. No two apply at once.
    rows: Vec<TuningRow>,
    index: Index,
}

/// For an op, some shapes and some numbers of tokens: a template and its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct TuningRow {
    /// The op, or the ops of a fused run joined by `+`.
    pub op: String,
    pub facts: Facts,
    /// The numbers of tokens that it applies to.
    pub tokens: Tokens,
    /// For steps of this kind; of either where it says none.
    pub(crate) step: Option<StepKind>,
    /// `linear/dot`, or [`APART`].
    pub template: String,
    /// Those left out have their defaults.
    pub params: BTreeMap<String, u32>,
    /// A name from the file's provenance.
    pub provenance: String,
    /// Time of one launch, in microseconds.
    pub time_us: Option<f64>,
    /// Bandwidth that it came to, in 10^9 bytes per second.
    pub(crate) gbps: Option<f64>,
    /// The number of tokens at which both were measured.
    pub timed_at: Option<u32>,
    /// How far apart the middle half of the times lay, as a fraction of their median.
    pub spread: Option<f64>,
    /// SHA-256 of the problem it was measured on, in hex: which dims, constants and types.
    pub problem: Option<String>,
    /// SHA-256 of the rendered source that was measured, in hex.
    pub source: Option<String>,
    /// SHA-256 of the object that was measured, in hex.
    pub object: Option<String>,
    /// SHA-256 of the kernel's expected and found outputs in the check before timing, in hex.
    pub evidence: Option<String>,
    /// `file:line` of the row.
    pub place: String,
    pub(super) line: usize,
}

/// The origin of numbers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// How the numbers were obtained.
    pub kind: ProvenanceKind,
    /// A text or a date of TOML.
    #[serde(deserialize_with = "date")]
    pub date: String,
    /// The command, or how the prediction was made.
    pub method: String,
    pub device: Option<String>,
    pub compiler: Option<String>,
    pub notes: Option<String>,
}

/// How numbers were obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProvenanceKind {
    Measured,
    /// From a model of the chip.
    Predicted,
    Hand,
}

impl ProvenanceKind {
    /// The name in tables and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Predicted => "predicted",
            Self::Hand => "hand",
        }
    }
}

/// A closed range of numbers of tokens, or one without end. Written `"1-8"`, `"9+"`, `"4"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// At least 1.
    pub first: u32,
    /// The range's end is in it; `None` is no end.
    pub last: Option<u32>,
}

impl Tokens {
    /// Whether a number is in the range.
    pub fn contains(self, n_tokens: u32) -> bool {
        self.first <= n_tokens && self.last.is_none_or(|last| n_tokens <= last)
    }

    /// What of the range is not in another: nothing, or up to two ranges.
    pub fn without(self, other: Self) -> Vec<Self> {
        if self.meet(other).is_none() {
            return vec![self];
        }
        let below = (self.first < other.first).then(|| Self { first: self.first, last: Some(other.first - 1) });
        let after = other.last.and_then(|last| last.checked_add(1));
        let above = after.filter(|&first| self.last.is_none_or(|last| first <= last));
        below.into_iter().chain(above.map(|first| Self { first, last: self.last })).collect()
    }

    /// The least number in both ranges.
    pub(super) fn meet(self, other: Self) -> Option<u32> {
        let first = self.first.max(other.first);
        (self.contains(first) && other.contains(first)).then_some(first)
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.last {
            None => write!(f, "{}+", self.first),
            Some(last) if last == self.first => write!(f, "{last}"),
            Some(last) => write!(f, "{}-{last}", self.first),
        }
    }
}

impl<'de> Deserialize<'de> for Tokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl std::str::FromStr for Tokens {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|&n| n > 0);
        let tokens = match (text.strip_suffix('+'), text.split_once('-')) {
            (Some(first), _) => number(first).map(|first| Self { first, last: None }),
            (None, Some((first, last))) => {
                number(first).zip(number(last)).map(|(first, last)| Self { first, last: Some(last) })
            }
            (None, None) => number(text).map(|n| Self { first: n, last: Some(n) }),
        };
        tokens
            .filter(|tokens| tokens.last.is_none_or(|last| tokens.first <= last))
            .ok_or_else(|| format!("`{text}`: expected a number of tokens from 1, like \"1-8\", \"9+\" or \"4\""))
    }
}

/// `"2026-11-26"`, or the same without quotes, which is a date of TOML.
fn date<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let found = match toml::Value::deserialize(deserializer)? {
        toml::Value::String(text) if text.parse::<Datetime>().is_ok_and(|date| date.date.is_some()) => return Ok(text),
        toml::Value::Datetime(date) => return Ok(date.to_string()),
        other => other,
    };
    Err(de::Error::custom(format!("`date`: expected a date like \"2026-11-26\", found {found}")))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TableFile {
    target: Option<TargetFacts>,
    #[serde(default)]
    provenance: BTreeMap<String, Provenance>,
    #[serde(default)]
    rows: Vec<Spanned<RowFile>>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RowFile {
    op: OneOrMore<String>,
    #[serde(default, rename = "where")]
    facts: BTreeMap<String, OneOrMore<Fact>>,
    tokens: Option<Tokens>,
    step: Option<StepKind>,
    #[serde(rename = "use")]
    template: String,
    #[serde(default)]
    params: BTreeMap<String, u32>,
    provenance: String,
    #[serde(default, deserialize_with = "positive")]
    time_us: Option<f64>,
    #[serde(default, deserialize_with = "positive")]
    gbps: Option<f64>,
    timed_at: Option<u32>,
    #[serde(default, deserialize_with = "not_negative")]
    spread: Option<f64>,
    #[serde(default, deserialize_with = "sha256")]
    problem: Option<String>,
    #[serde(default, deserialize_with = "sha256")]
    source: Option<String>,
    #[serde(default, deserialize_with = "sha256")]
    object: Option<String>,
    #[serde(default, deserialize_with = "sha256")]
    evidence: Option<String>,
}

impl Table {
    /// Reads a file; `name` is without `.toml`, `file` is for messages.
    ///
    /// # Errors
    /// If it is not as `tuning/README.md` says, or two rows apply at once.
    pub fn parse(name: &str, file: &str, text: &str) -> Result<Self, TuningError> {
        let line_ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
        let line = |offset: usize| 1 + line_ends.partition_point(|&end| end < offset);
        let table: TableFile = toml::from_str(text).map_err(|error| TuningError::Toml {
            file: file.to_owned(),
            line: line(error.span().map_or(0, |span| span.start)),
            message: in_our_words(error.message().trim(), text),
        })?;
        let in_file = table.rows.iter().map(|row| (row.get_ref(), line(row.span().start)));
        let of_each = |(row, line): (&RowFile, usize)| {
            let each = lists::each(&row.facts).into_iter();
            each.map(|facts| TuningRow::new(row.clone(), facts, file, line)).collect::<Vec<_>>()
        };
        let rows: Vec<TuningRow> = in_file.flat_map(of_each).collect();
        for row in &rows {
            let unknown = |message| TuningError::Toml { file: file.to_owned(), line: row.line, message };
            words::check(&row.facts).map_err(unknown)?;
        }
        let index = indexed(file, &table.provenance, &rows)?;
        Ok(Self { name: name.to_owned(), target: table.target, provenance: table.provenance, rows, index })
    }

    /// In the order of the file. No two apply at once.
    pub fn rows(&self) -> &[TuningRow] {
        &self.rows
    }

    /// What is known of the chip stays.
    pub(super) fn remove_rows(&mut self) {
        (self.rows, self.index) = Default::default();
    }

    /// The rows that apply at this many tokens, or at some number of them, those that want more of the problem first.
    pub(crate) fn applying(&self, query: &Query, step: StepKind, n_tokens: Option<u32>) -> Vec<&TuningRow> {
        let places = self.index.applying(&self.rows, query, step, n_tokens);
        let mut rows: Vec<&TuningRow> = places.into_iter().map(|i| &self.rows[i]).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.n_wants()));
        rows
    }

    /// Numbers of tokens that the rows of one `where` leave out. Rows of a fused run may leave out any: there the ops
    /// are not fused; so may rows after which others of the file stand.
    pub(super) fn gaps(&self) -> Vec<Gap<'_>> {
        let mut gaps = Vec::new();
        let mut seen: Vec<&TuningRow> = Vec::new();
        for row in self.rows.iter().filter(|row| !row.op.contains('+')) {
            if seen.iter().any(|other| other.op == row.op && other.facts == row.facts) || self.falls_back(row) {
                continue;
            }
            seen.push(row);
            let mut group: Vec<&TuningRow> =
                self.rows.iter().filter(|r| r.op == row.op && r.facts == row.facts).collect();
            group.sort_by_key(|row| row.tokens.first);
            if group.iter().all(|row| row.step.is_none()) {
                gaps.extend(gaps_of(&group, 1, None));
                continue;
            }
            for step in StepKind::ALL {
                let of_step: Vec<&TuningRow> = group.iter().copied().filter(|row| row.is_for(step)).collect();
                match of_step.as_slice() {
                    [] => gaps.push(Gap {
                        row,
                        tokens: Tokens { first: step.fewest_rows(), last: None },
                        step: Some(step),
                    }),
                    _ => gaps.extend(gaps_of(&of_step, step.fewest_rows(), Some(step))),
                }
            }
        }
        gaps
    }

    /// Whether other rows of the file follow it, which want less.
    fn falls_back(&self, row: &TuningRow) -> bool {
        self.rows.iter().any(|other| other.op == row.op && row.wants_more(other))
    }
}

/// What the parser says, but for what the TOML means by it.
fn in_our_words(message: &str, text: &str) -> String {
    let is_table = |line: &str| line.split('#').next().unwrap_or_default().trim() == "[rows]";
    match message.contains("expected a sequence") && text.lines().any(is_table) {
        true => "`[rows]`: each row begins with `[[rows]]`".to_owned(),
        false => message.to_owned(),
    }
}

/// The rows by what they want, if each says where its numbers come from and no two apply at once.
fn indexed(file: &str, provenance: &BTreeMap<String, Provenance>, rows: &[TuningRow]) -> Result<Index, TuningError> {
    let file = || file.to_owned();
    if let Some(row) = rows.iter().find(|row| !provenance.contains_key(&row.provenance)) {
        let known = provenance.keys().cloned().collect();
        return Err(TuningError::NoProvenance { file: file(), line: row.line, name: row.provenance.clone(), known });
    }
    Index::new(rows).map_err(|(row, other, tokens)| {
        let (row, other) = (&rows[row], &rows[other]);
        TuningError::Overlap { file: file(), line: row.line, other: other.line, op: row.op.clone(), tokens }
    })
}

impl TuningRow {
    /// The file that it is in.
    pub fn file(&self) -> &str {
        self.place.rsplit_once(':').map_or(&self.place, |(file, _)| file)
    }

    /// Whether it is one of the program's own.
    pub fn is_built_in(&self) -> bool {
        self.place.starts_with(BUILT_IN)
    }

    fn new(row: RowFile, facts: Facts, file: &str, line: usize) -> Self {
        Self {
            op: match row.op {
                OneOrMore::One(op) => op,
                OneOrMore::More(ops) => ops.join("+"),
            },
            facts,
            tokens: row.tokens.unwrap_or(Tokens { first: 1, last: None }),
            step: row.step,
            template: row.template,
            params: row.params,
            provenance: row.provenance,
            time_us: row.time_us,
            gbps: row.gbps,
            timed_at: row.timed_at,
            spread: row.spread,
            problem: row.problem,
            source: row.source,
            object: row.object,
            evidence: row.evidence,
            place: format!("{file}:{line}"),
            line,
        }
    }

    /// Whether the types and the precision that it wants are these.
    pub(crate) fn asks_for_types_of(&self, facts: &Facts) -> bool {
        self.facts.iter().all(|(name, want)| !matches!(want, Fact::Text(_)) || facts.get(name) == Some(want))
    }

    /// Whether it is for this op and this kind of step and everything it wants is equal, whatever the number of tokens.
    pub fn applies(&self, query: &Query, step: StepKind) -> bool {
        self.op == query.op
            && self.is_for(step)
            && self.facts.iter().all(|(name, fact)| query.facts.get(name) == Some(fact))
    }

    fn is_for(&self, step: StepKind) -> bool {
        self.step.is_none_or(|own| own == step)
    }

    /// The fewest tokens at which both rows can apply. Whether one goes before the other was seen before.
    pub(super) fn overlap(&self, other: &Self) -> Option<u32> {
        if self.op != other.op {
            return None;
        }
        let tokens = self.tokens.meet(other.tokens)?; // before what takes longer: every row is held against all others
        let agree = |(name, fact): (&String, &Fact)| other.facts.get(name).is_none_or(|found| found == fact);
        let may_meet = StepKind::ALL.into_iter().any(|step| self.is_for(step) && other.is_for(step));
        (may_meet && self.facts.iter().all(agree)).then_some(tokens)
    }

    /// Whether it wants all that another row wants, and something besides.
    fn wants_more(&self, other: &Self) -> bool {
        let has = |(name, fact): (&String, &Fact)| self.facts.get(name) == Some(fact);
        let has_step = other.step.is_none() || other.step == self.step;
        self.n_wants() > other.n_wants() && has_step && other.facts.iter().all(has)
    }

    fn n_wants(&self) -> usize {
        self.facts.len() + usize::from(self.step.is_some())
    }
}

/// Numbers of tokens that the rows of a `where` leave out.
pub(super) struct Gap<'a> {
    /// The neighbouring row.
    pub(crate) row: &'a TuningRow,
    pub(crate) tokens: Tokens,
    /// In steps of this kind, where that matters to the rows.
    pub(crate) step: Option<StepKind>,
}

impl fmt::Display for Gap<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { row, tokens, step } = self;
        write!(f, "{}: no row for `{}`", row.place, row.op)?;
        match tokens {
            Tokens { first, last: None } if *first > step.map_or(1, StepKind::fewest_rows) => {
                write!(f, " at more than {} tokens", first - 1)?;
            }
            Tokens { last: None, .. } => {}
            tokens => write!(f, " at {tokens} tokens")?,
        }
        step.map_or(Ok(()), |step| write!(f, " in a {step} step"))
    }
}

/// Numbers of tokens from `fewest` on that rows in the order of their numbers leave out.
fn gaps_of<'a>(group: &[&'a TuningRow], fewest: u32, step: Option<StepKind>) -> Vec<Gap<'a>> {
    let mut gaps = Vec::new();
    let mut next = Some(fewest);
    for &row in group {
        if let Some(from) = next.filter(|&from| from < row.tokens.first) {
            gaps.push(Gap { row, tokens: Tokens { first: from, last: Some(row.tokens.first - 1) }, step });
        }
        next = row.tokens.last.and_then(|last| last.checked_add(1));
    }
    if let (Some(first), Some(&row)) = (next, group.last()) {
        gaps.push(Gap { row, tokens: Tokens { first, last: None }, step });
    }
    gaps
}

fn positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    let value = f64::deserialize(deserializer)?;
    if value.is_finite() && value > 0.0 {
        return Ok(Some(value));
    }
    Err(de::Error::custom(format!("expected a number above 0, found {value}")))
}

fn not_negative<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    let value = f64::deserialize(deserializer)?;
    if value.is_finite() && value >= 0.0 {
        return Ok(Some(value));
    }
    Err(de::Error::custom(format!("expected a number from 0, found {value}")))
}

fn sha256<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.len() == 64 && text.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f')) {
        return Ok(Some(text));
    }
    Err(de::Error::custom(format!("expected a SHA-256 of 64 lower-case hex digits, found `{text}`")))
}
