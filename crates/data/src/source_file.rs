//! A file of the template library: its text, its origin, and places in it for errors.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Where a file came from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Origin {
    /// Embedded in the program.
    BuiltIn,
    /// Read from this folder.
    Folder(PathBuf),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn => f.pad("built in"),
            Self::Folder(folder) => f.pad(&folder.display().to_string()),
        }
    }
}

/// A line of a file, printed `file:line`; line 0 is the whole file and is not printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The path as a person would open it, or `<built in>/…`.
    pub file: String,
    /// Counted from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 { f.write_str(&self.file) } else { write!(f, "{}:{}", self.file, self.line) }
    }
}

/// One text file, as it was read.
#[derive(Clone, Debug)]
pub struct SourceFile {
    pub origin: Origin,
    /// Its path below that, with `/` between folders: `linear/dot.c.j2`.
    pub name: String,
    pub text: Arc<str>,
}

impl SourceFile {
    /// Whether it is in a folder and not the copy of a file that is built in.
    pub fn is_own(&self) -> bool {
        let is_built_in = |(name, text): &(&str, &str)| *name == self.name && *text == &*self.text;
        self.origin != Origin::BuiltIn && !crate::TEMPLATES.iter().any(is_built_in)
    }

    /// The given line, counted from 1; 0 is the file as a whole.
    pub fn place(&self, line: usize) -> Place {
        let file = match &self.origin {
            Origin::BuiltIn => format!("<built in>/{}", self.name),
            Origin::Folder(folder) => folder.join(&self.name).display().to_string(),
        };
        Place { file, line }
    }

    /// The line with this byte.
    pub fn place_at(&self, offset: usize) -> Place {
        let mut line = 1;
        // No chain of iterators: every expression of every file is placed, also where nobody optimises.
        for &byte in &self.text.as_bytes()[..offset.min(self.text.len())] {
            if byte == b'\n' {
                line += 1;
            }
        }
        self.place(line)
    }

    /// The line in which a span of a part of this file begins; `base` is where the part begins.
    pub fn place_of(&self, base: usize, span: Option<Range<usize>>) -> Place {
        self.place_at(base + span.map_or(0, |span| span.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_from_one() {
        let file = SourceFile { origin: Origin::BuiltIn, name: "a/b".into(), text: "x\ny\nz".into() };
        assert_eq!(file.place_at(0).to_string(), "<built in>/a/b:1");
        assert_eq!(file.place_at(2).line, 2);
        assert_eq!(file.place_at(99).line, 3);
    }
}
