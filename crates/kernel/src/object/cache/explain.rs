//! Explains why a lookup missed: the nearest entry, and how its key differs.

use std::cmp::Reverse;
use std::sync::Arc;

use super::entry::{KeyRecord, Meta, Stored};
use super::folder::{CacheError, Folder};
use crate::object::key::{Digest, KernelKey};
use hint::chain;

/// What looking up a key gives, and why.
#[derive(Clone, Debug)]
pub enum Explanation {
    Hit {
        /// The digest of the key.
        digest: Digest,
        /// The entry's records.
        meta: Arc<Meta>,
    },
    /// A failure is remembered.
    Failed {
        /// The digest of the key.
        digest: Digest,
        /// The compiler's output.
        log: String,
    },
    /// An entry of that name is there, and is not used.
    Damaged {
        /// The digest of the key.
        digest: Digest,
        /// The error and its causes, in one line.
        why: String,
    },
    /// It is not there; this comes nearest.
    Nearest(Box<Nearest>),
    /// There is nothing to compare with.
    Empty,
}

/// The entry with the most similar key: the same kernel name if possible, then the fewest differing fields, then the
/// fewest differing lines of source, then the newest.
#[derive(Clone, Debug)]
pub struct Nearest {
    pub digest: Digest,
    /// What its `meta.toml` holds.
    pub meta: Meta,
    /// Where the keys differ.
    pub differences: Vec<Difference>,
}

/// A field in which two keys differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// `source`, `target`, `entry`, `backend`, `compiler` or `option N`.
    pub field: String,
    /// In the source: the number of the first line that differs, from 1.
    pub line: Option<usize>,
    /// What the entry has; of the source, that line. None if it has no such option or line.
    pub theirs: Option<String>,
    /// What the key in question has.
    pub ours: Option<String>,
}

/// A key as explaining needs it.
struct Side<'a> {
    key: &'a KeyRecord,
    source: &'a str,
}

impl Folder {
    /// As [`super::Cache::explain`].
    pub(crate) fn explain(&self, key: &KernelKey) -> Explanation {
        let digest = key.digest();
        match self.read(&digest) {
            Ok(Stored::Object(entry)) => return Explanation::Hit { digest, meta: entry.meta },
            Ok(Stored::Failed { log }) => return Explanation::Failed { digest, log },
            Err((_, damage)) => return Explanation::Damaged { digest, why: chain(&damage) },
            Ok(Stored::Absent) => {}
        }
        let record = KeyRecord::from_key(key);
        let nearest = self.nearest(&digest, &Side { key: &record, source: &key.source });
        nearest.map_or(Explanation::Empty, |nearest| Explanation::Nearest(Box::new(nearest)))
    }

    /// How an entry's key differs from another's, or from that of its nearest neighbour. None if there is none.
    ///
    /// # Errors
    /// [`CacheError::Damaged`] when one of them cannot be read.
    pub fn compare(&self, one: &Digest, other: Option<&Digest>) -> Result<Option<Nearest>, CacheError> {
        let (meta, source) = self.recorded(one)?;
        let ours = Side { key: &meta.key, source: &source };
        let Some(other) = other else { return Ok(self.nearest(one, &ours)) };
        let (meta, source) = self.recorded(other)?;
        let differences = differences(&Side { key: &meta.key, source: &source }, &ours);
        Ok(Some(Nearest { digest: *other, meta, differences }))
    }

    fn recorded(&self, digest: &Digest) -> Result<(Meta, String), CacheError> {
        let meta = self.find(&digest.to_string())?.meta;
        let meta = meta.map_err(|source| CacheError::Damaged { path: self.entry_path(digest), source })?;
        Ok((meta, self.text(digest, "source")?))
    }

    /// The entry most like `ours`, other than the one with this digest. What cannot be read is passed over.
    fn nearest(&self, digest: &Digest, ours: &Side) -> Option<Nearest> {
        let mut best = None;
        for listed in self.list().unwrap_or_default() {
            let (Ok(meta), Ok(source)) = (listed.meta, self.text(&listed.digest, "source")) else { continue };
            let theirs = Side { key: &meta.key, source: &source };
            let differences = differences(&theirs, ours);
            let distance = (
                theirs.key.entry != ours.key.entry,
                differences.len(),
                changed_lines(theirs.source, ours.source),
                Reverse(meta.created_unix_s),
            );
            if listed.digest != *digest && best.as_ref().is_none_or(|(least, _)| distance < *least) {
                best = Some((distance, Nearest { digest: listed.digest, meta, differences }));
            }
        }
        best.map(|(_, nearest)| nearest)
    }
}

fn differences(theirs: &Side, ours: &Side) -> Vec<Difference> {
    let mut found = Vec::new();
    found.extend(source_difference(theirs.source, ours.source));
    for ((field, theirs), (_, ours)) in theirs.key.texts().into_iter().zip(ours.key.texts()) {
        if theirs != ours {
            let (theirs, ours) = (Some(theirs.clone()), Some(ours.clone()));
            found.push(Difference { field: field.into(), line: None, theirs, ours });
        }
    }
    found.extend(option_differences(&theirs.key.options, &ours.key.options));
    found
}

/// The first line that differs. Sources that differ only in how the last line ends differ in that line.
fn source_difference(theirs: &str, ours: &str) -> Option<Difference> {
    let (mut their_lines, mut our_lines) = (theirs.split_inclusive('\n'), ours.split_inclusive('\n'));
    let text = |line: Option<&str>| line.map(|line| line.strip_suffix('\n').unwrap_or(line).to_owned());
    for line in 1.. {
        match (their_lines.next(), our_lines.next()) {
            (None, None) => break,
            (theirs, ours) if theirs != ours => {
                let (theirs, ours) = (text(theirs), text(ours));
                return Some(Difference { field: "source".into(), line: Some(line), theirs, ours });
            }
            _ => {}
        }
    }
    None
}

/// The options between those that are the same at the front and at the back, pairwise.
fn option_differences(theirs: &[String], ours: &[String]) -> Vec<Difference> {
    let (front, back) = common_ends(theirs, ours);
    let (their_middle, our_middle) = (&theirs[front..theirs.len() - back], &ours[front..ours.len() - back]);
    (0..their_middle.len().max(our_middle.len()))
        .filter(|&i| their_middle.get(i) != our_middle.get(i))
        .map(|i| Difference {
            field: format!("option {}", front + i),
            line: None,
            theirs: their_middle.get(i).cloned(),
            ours: our_middle.get(i).cloned(),
        })
        .collect()
}

/// How many lines lie between those that are the same at the front and at the back.
fn changed_lines(theirs: &str, ours: &str) -> usize {
    let (theirs, ours): (Vec<&str>, Vec<&str>) = (theirs.lines().collect(), ours.lines().collect());
    let (front, back) = common_ends(&theirs, &ours);
    theirs.len().max(ours.len()) - front - back
}

/// How many elements two lists share at the front, and how many of the rest at the back.
fn common_ends<T: PartialEq>(a: &[T], b: &[T]) -> (usize, usize) {
    let front = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let back = a[front..].iter().rev().zip(b[front..].iter().rev()).take_while(|(a, b)| a == b).count();
    (front, back)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(options: &[&str]) -> Vec<String> {
        options.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_inserted_option_is_one_difference() {
        let found = option_differences(&texts(&["-O3", "-g"]), &texts(&["-O3", "-ffast-math", "-g"]));
        let expected =
            Difference { field: "option 1".into(), line: None, theirs: None, ours: Some("-ffast-math".into()) };
        assert_eq!(found, [expected]);
        assert_eq!(option_differences(&texts(&["-g", "-g"]), &texts(&["-g"])).len(), 1);
        assert_eq!(option_differences(&texts(&["a", "b"]), &texts(&["b", "a"])).len(), 2);
        assert_eq!(option_differences(&texts(&["a"]), &texts(&["a"])), []);
    }

    #[test]
    fn the_first_differing_line_is_told_with_both_texts() {
        let found = source_difference("a\nb\nc\n", "a\nB\nC\n").expect("they differ");
        assert_eq!((found.line, found.theirs.as_deref(), found.ours.as_deref()), (Some(2), Some("b"), Some("B")));
        let found = source_difference("a\n", "a\nb\n").expect("they differ");
        assert_eq!((found.line, found.theirs.as_deref(), found.ours.as_deref()), (Some(2), None, Some("b")));
        assert_eq!(source_difference("a", "a\n").expect("they differ").line, Some(1));
        assert_eq!(source_difference("a\n", "a\n"), None);
    }

    #[test]
    fn lines_are_counted_between_what_is_common() {
        assert_eq!(changed_lines("a\nb\nc", "a\nc"), 1);
        assert_eq!(changed_lines("a\nb\nc", "a\nX\nY\nc"), 2);
        assert_eq!(changed_lines("a", "a"), 0);
    }
}
