//! A part of the prompts, for one of several machines.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Every `of`-th prompt, from `index` on: prompts of a file are often sorted by length, and shards that take turns have
/// similar work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shard {
    /// Counted from 0.
    pub index: usize,
    /// How many there are; at least one.
    pub of: usize,
}

impl Shard {
    /// Whether prompt `i` is one of its own.
    pub fn has(self, i: usize) -> bool {
        i % self.of == self.index
    }

    /// How many of `n` prompts are its own.
    pub(crate) fn count(self, n: usize) -> usize {
        n.saturating_sub(self.index).div_ceil(self.of)
    }

    /// Where it keeps its answers: beside those of the whole, `answers.txt.records.0-of-4`.
    pub fn records(self, of_all: &Path) -> PathBuf {
        let mut name = of_all.as_os_str().to_owned();
        name.push(format!(".{}-of-{}", self.index, self.of));
        name.into()
    }

    /// The shards whose records are beside those of the whole, and where.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn found(of_all: &Path) -> std::io::Result<Vec<(Self, PathBuf)>> {
        let folder = of_all.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let Some(name) = of_all.file_name().and_then(|name| name.to_str()) else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let file_name = entry?.file_name();
            let suffix = file_name.to_str().and_then(|text| text.strip_prefix(name)?.strip_prefix('.'));
            let shard = suffix.and_then(|suffix| suffix.replacen("-of-", "/", 1).parse::<Self>().ok());
            found.extend(shard.map(|shard| (shard, shard.records(of_all))));
        }
        found.sort_unstable();
        Ok(found)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(index, of)| Some((index.parse().ok()?, of.parse().ok()?)));
        match numbers {
            Some((index, of)) if index < of => Ok(Self { index, of }),
            Some((_, of)) => Err(format!("there is no such shard of {of}: they are counted from 0")),
            None => Err("expected I/N, such as 0/4".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prompt_is_in_one_shard() {
        for n in 0..30 {
            for of in 1..9 {
                let shards: Vec<Shard> = (0..of).map(|index| Shard { index, of }).collect();
                for i in 0..n {
                    assert_eq!(shards.iter().filter(|shard| shard.has(i)).count(), 1);
                }
                for shard in shards {
                    assert_eq!(shard.count(n), (0..n).filter(|&i| shard.has(i)).count(), "{shard} of {n}");
                }
            }
        }
    }

    #[test]
    fn shards_are_read_as_they_are_written() {
        assert_eq!("3/8".parse(), Ok(Shard { index: 3, of: 8 }));
        assert_eq!(Shard { index: 3, of: 8 }.to_string(), "3/8");
        for text in ["8/8", "0/0", "1", "/4", "a/4", "-1/4", ""] {
            text.parse::<Shard>().expect_err(text);
        }
    }

    #[test]
    fn records_of_shards_are_found_beside_those_of_all() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let of_all = folder.path().join("out.records");
        let shards = [Shard { index: 0, of: 12 }, Shard { index: 10, of: 12 }];
        for name in ["out.records", "out.records.x-of-2", "out.records.2-of-2", "other.records.0-of-2"] {
            std::fs::write(folder.path().join(name), "").expect("written");
        }
        shards.iter().for_each(|shard| std::fs::write(shard.records(&of_all), "").expect("written"));
        let found = Shard::found(&of_all).expect("a folder");
        assert_eq!(found, shards.map(|shard| (shard, shard.records(&of_all))));
    }
}
