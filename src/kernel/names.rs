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
            let Some((start, end)) = quoted_ends(tag.content) else {
                return Err(LibraryError::Declaration {
                    place: file.place_at(tag.offset),
                    item: format!("`{}`", tag.content),
                    expected: "the file's name in quotes, or `\"its start\" ~ a name ~ \"its end\"`".into(),
                    found: "another expression".into(),
                });
            };
            let included: Vec<&SourceFile> =
                self.files.values().filter(|file| file.name.starts_with("lib/") && is_named(file, start, end)).collect();
            if included.is_empty() {
                let name = end.map_or(start.to_owned(), |end| format!("{start}*{end}"));
                return Err(LibraryError::NoInclude { place: file.place_at(tag.offset), name });
            }
            included.into_iter().try_for_each(|file| self.visit(file, visited))?;
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
        let close = match text[open..].as_bytes() {
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

/// The text in quotes of a name that is written out; of a computed one (`"lib/dot_" ~ precision ~ ".c.j2"`) the texts at
/// its start and at its end.
fn quoted_ends(content: &str) -> Option<(&str, Option<&str>)> {
    let (_, after) = content.split_once(char::is_whitespace)?;
    let (start, rest) = quoted(after.trim_start())?;
    if !rest.trim_start().starts_with('~') {
        return Some((start, None));
    }
    let end = rest.rfind('~').and_then(|i| quoted(rest[i + 1..].trim_start()))?.0;
    Some((start, Some(end)))
}

/// The text in quotes that `content` begins with, and what follows.
fn quoted(content: &str) -> Option<(&str, &str)> {
    let quote = content.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    content[1..].split_once(quote)
}

/// Whether a name that is written out, or a computed one, can be this file's.
fn is_named(file: &SourceFile, start: &str, end: Option<&str>) -> bool {
    match end {
        None => file.name == start,
        Some(end) => file.name.strip_prefix(start).is_some_and(|rest| rest.ends_with(end)),
    }
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
    fn an_included_name_is_written_out_or_has_a_start_and_an_end() {
        assert_eq!(quoted_ends("include \"lib/a.j2\""), Some(("lib/a.j2", None)));
        assert_eq!(quoted_ends("from 'lib/a.j2' import f"), Some(("lib/a.j2", None)));
        assert_eq!(quoted_ends("include \"lib/dot_\" ~ precision ~ '.j2'"), Some(("lib/dot_", Some(".j2"))));
        assert_eq!(quoted_ends("include \"lib/dot_\" ~ precision"), None);
        assert_eq!(quoted_ends("include name"), None);
    }

    #[test]
    fn a_use_is_a_whole_word() {
        let text = "x\n{{ tile_n }}\n{% if tile %}";
        assert_eq!(&text[first_use(text, "tile")..], "tile %}");
    }
}
