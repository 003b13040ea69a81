//! The first comment of a file of `templates/lib`: the names that the file takes and gives, and its declarations for
//! templates that use it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use toml::Spanned;

use super::declaration::{ArgTable, Toml};
use super::front_matter::front_matter;
use super::library_error::LibraryError;
use super::uses::{LaunchTable, NumericsTable, ParamTable, RequiresTable, Tables};
use super::work::PaddedTable;
use data::SourceFile;

/// Names of C and of the template language, of a file of the library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LibHeader {
    /// What has to be there before the file is included.
    pub takes: Names,
    /// The names that are defined after it.
    pub gives: Names,
    /// Parameters and facts that it declares: it takes those of them that its text has.
    pub own: BTreeSet<String>,
}

/// The TOML of a header.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct HeaderTable {
    takes: Names,
    gives: Names,
    uses: Vec<Spanned<String>>,
    requires: RequiresTable,
    params: BTreeMap<String, Spanned<ParamTable>>,
    #[serde(rename = "let")]
    facts: BTreeMap<String, Spanned<String>>,
    constraints: BTreeMap<String, Spanned<String>>,
    launch: Option<Spanned<LaunchTable>>,
    padded: PaddedTable,
    workspace: Vec<ArgTable>,
    numerics: NumericsTable,
}

/// The names of both languages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Names {
    /// Types, functions, constants and macros.
    pub(crate) c: BTreeSet<String>,
    /// Parameters, dims and what `set` sets.
    pub(crate) jinja: BTreeSet<String>,
}

impl LibHeader {
    /// Reads the header, and holds its C names against the text: one that does not occur there is a mistake.
    ///
    /// # Errors
    /// If there is none, it is no such TOML, or it lists a C name that the file does not have.
    pub(crate) fn parse(file: &SourceFile) -> Result<Self, LibraryError> {
        let (base, text) = front_matter(file)?;
        let HeaderTable { takes, gives, params, facts, .. } = Toml { file, base, what: "header" }.parse(text)?;
        let header = Self { takes, gives, own: params.into_keys().chain(facts.into_keys()).collect() };
        let words = words(&file.text[base + text.len()..]);
        let listed = header.takes.c.iter().chain(&header.gives.c);
        match listed.into_iter().find(|name| !words.contains(name.as_str())) {
            Some(name) => Err(LibraryError::StaleName { place: file.place(1), name: name.clone() }),
            None => Ok(header),
        }
    }
}

impl HeaderTable {
    pub(crate) fn into_tables(self) -> Tables {
        let Self { uses, requires, params, facts, constraints, launch, padded, workspace, numerics, .. } = self;
        Tables { uses, requires, params, facts, constraints, launch, padded, workspace, numerics }
    }
}

/// The words of C in a text, those of comments left out. Byte by byte: every start of the program reads the words of
/// all templates, also where nobody optimises.
pub(super) fn words(text: &str) -> BTreeSet<&str> {
    let bytes = text.as_bytes();
    let is_of_word = |byte: u8| byte == b'_' || byte.is_ascii_alphanumeric();
    let (mut words, mut at) = (BTreeSet::new(), 0);
    while at < bytes.len() {
        let begin = at;
        if bytes[at] == b'/' && at + 1 < bytes.len() && bytes[at + 1] == b'/' {
            while at < bytes.len() && bytes[at] != b'\n' {
                at += 1;
            }
            continue;
        }
        while at < bytes.len() && is_of_word(bytes[at]) {
            at += 1;
        }
        if at == begin {
            at += 1;
        } else if !bytes[begin].is_ascii_digit() {
            words.insert(&text[begin..at]);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use data::Origin;

    #[test]
    fn words_are_those_of_code() {
        let text = "u32 a1 = 0x1f / b; // no /* word\n_c(d)//e\n\u{e9}f / 2g\n//";
        assert_eq!(Vec::from_iter(words(text)), ["_c", "a1", "b", "d", "f", "u32"]);
        assert!(words("").is_empty() && words("12 // x").is_empty());
    }

    fn parse(text: &str) -> Result<LibHeader, String> {
        let file = SourceFile { origin: Origin::BuiltIn, name: "lib/x.c.j2".into(), text: text.into() };
        LibHeader::parse(&file).map_err(|error| error.to_string())
    }

    #[test]
    fn a_header_lists_names_of_both_languages() {
        let text = "{#\n[takes]\nc = [\"K\"]\njinja = [\"lanes\"]\n\n[gives]\nc = [\"Row\"]\n#}\nstruct Row { float at[K]; };\n";
        let header = parse(text).expect("a header");
        assert_eq!((header.takes.c.len(), header.takes.jinja.len(), header.gives.c.len()), (1, 1, 1));
        assert!(parse("{#\n#}\n").expect("nothing to say") == LibHeader::default());
    }

    #[test]
    fn a_wrong_header_is_told() {
        for (text, error) in [
            ("typedef float f32;\n", "<built in>/lib/x.c.j2:1: no front matter"),
            ("{#\ntake = 1\n#}\n", "<built in>/lib/x.c.j2:2: could not read the header: unknown field `take`"),
            (
                "{#\n[gives]\nc = [\"Row\"]\n#}\n// Row\nstruct Rows;\n",
                "<built in>/lib/x.c.j2:1: the header lists `Row`, which the file does not have",
            ),
        ] {
            let found = parse(text).expect_err(text);
            assert!(found.starts_with(error), "{found}");
        }
    }
}
