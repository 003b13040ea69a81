//! The names that a template and all that it includes use, against those that are declared.
//!
//! The engine tells which names a file looks up and does not set, but not across includes; so the includes are
//! walked here. What a file of the walk sets, imports or defines as a macro is known in all of them.

use std::collections::{BTreeMap, BTreeSet};

use minijinja::Environment;

use super::library_error::LibraryError;
use super::source_file::SourceFile;

/// Names of the engine's own.
const FUNCTIONS: [&str; 4] = ["range", "ceil_div", "min", "max"];

/// The files of a library by name, with the engine that has compiled them.
pub(super) struct Walk<'a> {
    pub environment: &'a Environment<'static>,
    pub files: &'a BTreeMap<String, SourceFile>,
    /// Files that could not be compiled.
    pub broken: &'a BTreeMap<String, LibraryError>,
}

impl Walk<'_> {
    /// Checks that every name used is in `known`; gives the names used.
    pub fn check(&self, root: &SourceFile, known: &BTreeSet<String>) -> Result<BTreeSet<String>, LibraryError> {
        let mut visited: BTreeMap<String, &SourceFile> = BTreeMap::new();
        self.visit(root, &mut visited)?;
        let mut own = BTreeSet::new();
        for file in visited.values() {
            own.extend(tags(&file.text).iter().flat_map(|tag| assigned(tag.content)));
        }
        let mut used = BTreeSet::new();
        for (name, file) in &visited {
            let names = self.environment.get_template(name).map(|template| template.undeclared_variables(false));
            for name in names.unwrap_or_default() {
                if own.contains(&name) || FUNCTIONS.contains(&name.as_str()) {
                    continue;
                }
                if !known.contains(&name) {
                    let place = file.place_at(first_use(&file.text, &name));
                    return Err(LibraryError::UnknownName { place, name, known: known.iter().cloned().collect() });
                }
                used.insert(name);
            }
        }
        Ok(used)
    }

    fn visit<'s>(
        &'s self,
        file: &'s SourceFile,
        visited: &mut BTreeMap<String, &'s SourceFile>,
    ) -> Result<(), LibraryError> {
        if let Some(error) = self.broken.get(&file.name) {
            return Err(error.clone());
        }
        if visited.insert(file.name.clone(), file).is_some() {
            return Ok(());
        }
        for tag in tags(&file.text) {
            let mut words = tag.content.split_whitespace();
            if !matches!(words.next(), Some("include" | "import" | "from" | "extends")) {
                continue;
            }
            let Some(name) = quoted(tag.content) else {
                return Err(LibraryError::Declaration {
                    place: file.place_at(tag.offset),
                    item: format!("`{}`", tag.content),
                    expected: "the file's name in quotes".into(),
                    found: "an expression".into(),
                });
            };
            match self.files.get(name).filter(|_| name.starts_with("lib/")) {
                Some(included) => self.visit(included, visited)?,
                None => return Err(LibraryError::NoInclude { place: file.place_at(tag.offset), name: name.into() }),
            }
        }
        Ok(())
    }
}

/// A `{% … %}` or `{{ … }}` of a file.
struct Tag<'a> {
    content: &'a str,
    offset: usize,
}

/// The tags of a file, comments left out.
fn tags(text: &str) -> Vec<Tag<'_>> {
    let mut tags = Vec::new();
    let mut at = 0;
    while let Some(open) = text[at..].find('{').map(|i| at + i) {
        let close = match &text.as_bytes()[open..] {
            [b'{', b'#', ..] => "#}",
            [b'{', b'%', ..] => "%}",
            [b'{', b'{', ..] => "}}",
            _ => {
                at = open + 1;
                continue;
            }
        };
        let Some(end) = text[open + 2..].find(close).map(|i| open + 2 + i) else { break };
        if close != "#}" {
            let content = text[open + 2..end].trim_matches(['-', '+']).trim();
            tags.push(Tag { content, offset: open });
        }
        at = end + 2;
    }
    tags
}

/// The names that a block sets: `set a, b = …`, `macro f(…)`, `import … as m`, `from … import a, b as c`.
fn assigned(content: &str) -> Vec<String> {
    let identifiers = |text: &str| -> Vec<String> {
        let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty());
        words.map(str::to_owned).collect()
    };
    let (keyword, rest) = content.split_once(char::is_whitespace).unwrap_or((content, ""));
    match keyword {
        "set" => identifiers(rest.split('=').next().unwrap_or_default()),
        "macro" => identifiers(rest.split('(').next().unwrap_or_default()),
        "import" => rest.rsplit_once(" as ").map(|(_, name)| identifiers(name)).unwrap_or_default(),
        "from" => rest.split_once(" import ").map(|(_, names)| identifiers(names)).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// The file that an `include`, `import`, … names; `None` if an expression makes the name.
fn quoted(content: &str) -> Option<&str> {
    let (_, rest) = content.split_once(char::is_whitespace)?;
    let rest = rest.trim_start();
    let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let (name, tail) = rest[1..].split_once(quote)?;
    let follows = tail.split_whitespace().next();
    matches!(follows, None | Some("import" | "as" | "ignore" | "with" | "without")).then_some(name)
}

/// Where a name is first used, in bytes.
fn first_use(text: &str, name: &str) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    for tag in tags(text) {
        let mut from = 0;
        while let Some(found) = tag.content[from..].find(name).map(|i| from + i) {
            let before = tag.content[..found].chars().next_back();
            let after = tag.content[found + name.len()..].chars().next();
            if !before.is_some_and(is_word) && !after.is_some_and(is_word) {
                let skipped = text[tag.offset..].find(tag.content).unwrap_or(0);
                return tag.offset + skipped + found;
            }
            from = found + name.len();
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_skip_comments_and_c_braces() {
        let text = "{# {% set no = 1 %} #}{% set a = 1 %}\nint x[2] = { 1, 2 };{{ a }}";
        let found: Vec<&str> = tags(text).iter().map(|tag| tag.content).collect();
        assert_eq!(found, ["set a = 1", "a"]);
    }

    #[test]
    fn assignments_are_seen() {
        assert_eq!(assigned("set a, b = 1, 2"), ["a", "b"]);
        assert_eq!(assigned("macro sum(x)"), ["sum"]);
        assert_eq!(assigned("import 'lib/x.j2' as m"), ["m"]);
        assert_eq!(assigned("from 'lib/x.j2' import f, g"), ["f", "g"]);
        assert!(assigned("if a").is_empty());
    }

    #[test]
    fn a_file_is_named_by_a_lone_text() {
        assert_eq!(quoted("include 'lib/x.j2'"), Some("lib/x.j2"));
        assert_eq!(quoted("from \"lib/x.j2\" import f"), Some("lib/x.j2"));
        for expression in ["include 'lib/' ~ name", "include 'a' if b else 'c'", "include name", "include"] {
            assert_eq!(quoted(expression), None, "{expression}");
        }
    }

    #[test]
    fn a_use_is_a_whole_word() {
        let text = "x\n{{ tile_n }}\n{% if tile %}";
        assert_eq!(&text[first_use(text, "tile")..], "tile %}");
    }
}
