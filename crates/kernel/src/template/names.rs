//! Checks that all names which a template and its includes use are declared.
//!
//! The engine reports which names a file looks up and does not set, but not across includes. So the includes are
//! walked here, in the order of the text. A file of the library sees the names that its header takes, and leaves those
//! that it gives.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use minijinja::Environment;

use super::environment::ONCE;
use super::lib_header::{LibHeader, words};
use super::library_error::LibraryError;
use data::SourceFile;

/// Names of the engine's own.
const FUNCTIONS: [&str; 5] = ["range", "ceil_div", "min", "max", ONCE];

/// Names of the target, which a file of the library need not list.
const OF_THE_TARGET: [&str; 4] = ["arch", "wave_size", "precision", "features"];

/// The head of a kernel, which is written from the contract.
const SIGNATURE: &str = "signature";

/// How a hand-written kernel head begins: a GPU's, the host's.
const TYPED_HEADS: [&str; 2] = ["extern \"C\"", "static void kernel("];

/// The engine renders no more than some fifty includes within each other.
pub(super) const MAX_DEPTH: usize = 32;

/// By file, the names that it looks up, and does not set itself.
pub(super) type LookedUp = BTreeMap<String, BTreeSet<String>>;

/// What each file looks up. The engine compiles a file once more to tell: not for each that includes it.
pub(super) fn looked_up(environment: &Environment<'static>, files: &[&SourceFile]) -> LookedUp {
    let of_file = |file: &&SourceFile| {
        let names = environment.get_template(&file.name).ok()?.undeclared_variables(false);
        let own: BTreeSet<String> = tags(&file.text).iter().flat_map(|tag| assigned(tag.content)).collect();
        let is_foreign = |name: &String| !own.contains(name) && !FUNCTIONS.contains(&name.as_str());
        Some((file.name.clone(), names.into_iter().filter(is_foreign).collect()))
    };
    files.iter().filter_map(of_file).collect()
}

/// The files of a library by name.
pub(super) struct Walk<'a> {
    pub(crate) looked_up: &'a LookedUp,
    pub(crate) files: &'a BTreeMap<String, SourceFile>,
    /// What the files of `lib/` say of themselves.
    pub(crate) headers: &'a BTreeMap<String, LibHeader>,
    /// Files that could not be compiled.
    pub(crate) broken: &'a BTreeMap<String, LibraryError>,
}

/// What is known where the walk stands.
struct Seen<'a> {
    /// Files that have been included: a second time they render to nothing.
    files: BTreeSet<String>,
    /// Words of C, of the text so far or given by what it includes.
    c: BTreeSet<&'a str>,
    /// Names of the template language.
    jinja: BTreeSet<String>,
    /// Names that were looked up.
    used: BTreeSet<String>,
    /// Files that are being walked, each included by the one before.
    depth: usize,
}

impl<'a> Walk<'a> {
    /// Checks that every name used is in `known` or given by what is included; gives the names used.
    pub(crate) fn check(
        &self,
        root: &'a SourceFile,
        known: &BTreeSet<String>,
    ) -> Result<BTreeSet<String>, LibraryError> {
        let mut seen =
            Seen { files: BTreeSet::new(), c: BTreeSet::new(), jinja: known.clone(), used: BTreeSet::new(), depth: 0 };
        self.walk(root, &mut seen)?;
        if let Some(name) = self.names_of(root).iter().find(|name| !seen.jinja.contains(*name)) {
            let (place, name) = (root.place_at(first_use(&root.text, name)), name.clone());
            return Err(LibraryError::UnknownName { place, name, known: known.iter().cloned().collect() });
        }
        if !seen.used.contains(SIGNATURE) {
            return Err(no_signature(root));
        }
        Ok(seen.used)
    }

    /// The names that a file looks up, and does not set itself: none of one that could not be compiled.
    fn names_of(&self, file: &SourceFile) -> &'a BTreeSet<String> {
        static NONE: BTreeSet<String> = BTreeSet::new();
        self.looked_up.get(&file.name).unwrap_or(&NONE)
    }

    /// Goes through a file and what it includes.
    fn walk(&self, file: &'a SourceFile, seen: &mut Seen<'a>) -> Result<(), LibraryError> {
        if let Some(error) = self.broken.get(&file.name) {
            return Err(error.clone());
        }
        seen.used.extend(self.names_of(file).iter().cloned());
        let mut at = comment_end(&file.text);
        for tag in tags(&file.text) {
            seen.c.extend(words(&file.text[at.min(tag.offset)..tag.offset]));
            at = tag.end;
            seen.jinja.extend(assigned(tag.content));
            if !is_inclusion(tag.content) {
                continue;
            }
            let Some(name) = Name::of(tag.content) else {
                return Err(LibraryError::Declaration {
                    place: file.place_at(tag.offset),
                    item: format!("`{}`", tag.content),
                    expected: "the file's name in quotes".into(),
                    found: "an expression".into(),
                });
            };
            // Of files of which a name chooses one, each finds what was there, and any may give what follows uses.
            let before = (seen.c.clone(), seen.jinja.clone());
            let mut given = before.clone();
            let mut is_none = true;
            for included in name.files(self.files).filter(|file| file.name.starts_with("lib/")) {
                is_none = false;
                (seen.c, seen.jinja) = before.clone();
                self.include(file, &tag, included, seen)?;
                given.0.append(&mut seen.c);
                given.1.append(&mut seen.jinja);
            }
            if is_none {
                return Err(LibraryError::NoInclude { place: file.place_at(tag.offset), name: name.to_string() });
            }
            (seen.c, seen.jinja) = given;
        }
        Ok(())
    }

    /// Goes through a file of the library that `from` includes: what it takes must be there, and it must list all that
    /// it uses.
    fn include(
        &self,
        from: &'a SourceFile,
        tag: &Tag<'_>,
        file: &'a SourceFile,
        seen: &mut Seen<'a>,
    ) -> Result<(), LibraryError> {
        if !seen.files.insert(file.name.clone()) {
            return Ok(());
        }
        if let Some(error) = self.broken.get(&file.name) {
            return Err(error.clone());
        }
        let header = &self.headers[&file.name];
        let missing = |name: &String, language| LibraryError::NotGiven {
            place: from.place_at(tag.offset),
            file: file.name.clone(),
            name: name.clone(),
            language,
        };
        if let Some(name) = header.takes.c.iter().find(|name| !seen.c.contains(name.as_str())) {
            return Err(missing(name, "C"));
        }
        let own = header.own.intersection(self.names_of(file));
        if let Some(name) = header.takes.jinja.iter().chain(own).find(|name| !seen.jinja.contains(*name)) {
            return Err(missing(name, "Jinja"));
        }
        if let Some(name) = header.takes.jinja.difference(self.names_of(file)).next() {
            return Err(LibraryError::StaleName { place: file.place(1), name: name.clone() });
        }
        if seen.depth == MAX_DEPTH {
            return Err(LibraryError::Declaration {
                place: from.place_at(tag.offset),
                item: format!("`{}`", tag.content),
                expected: format!("files that include each other {MAX_DEPTH} deep at most"),
                found: "one more".into(),
            });
        }
        let before = (seen.c.clone(), seen.jinja.clone());
        seen.depth += 1;
        self.walk(file, seen)?;
        seen.depth -= 1;
        let given: BTreeSet<String> = seen.jinja.difference(&before.1).cloned().collect();
        for name in self.names_of(file) {
            let is_taken = header.takes.jinja.contains(name) || header.own.contains(name);
            let is_listed = is_taken || OF_THE_TARGET.contains(&name.as_str());
            if !is_listed && !given.contains(name) {
                let place = file.place_at(first_use(&file.text, name));
                return Err(LibraryError::Unlisted { place, name: name.clone() });
            }
        }
        (seen.c, seen.jinja) = before;
        let nested: Vec<&LibHeader> = seen.files.iter().map(|name| &self.headers[name]).collect();
        seen.c.extend(nested.iter().flat_map(|header| header.gives.c.iter().map(String::as_str)));
        seen.jinja.extend(nested.iter().flat_map(|header| header.gives.jinja.iter().cloned()));
        Ok(())
    }
}

/// The error of a body whose head is not generated from its contract: a wrong order of arguments would be noticed
/// late or never, for example two of the same type.
fn no_signature(file: &SourceFile) -> LibraryError {
    let body = comment_end(&file.text);
    let typed = TYPED_HEADS.iter().find_map(|head| file.text[body..].find(head));
    LibraryError::Declaration {
        place: file.place_at(body + typed.unwrap_or_default()),
        item: "the head of the kernel".into(),
        expected: "`{{ signature }}`, which generates it from the contract".into(),
        found: if typed.is_some() { "a handwritten one" } else { "none" }.into(),
    }
}

/// A file and all that it includes.
pub(super) fn reached<'a>(files: &'a BTreeMap<String, SourceFile>, root: &'a SourceFile) -> Vec<&'a SourceFile> {
    let mut reached = vec![root];
    let mut names = BTreeSet::from([root.name.as_str()]);
    let mut next = 0;
    while let Some(file) = reached.get(next) {
        let tags = tags(&file.text);
        let included = tags.iter().filter(|tag| is_inclusion(tag.content)).filter_map(|tag| Name::of(tag.content));
        for name in included {
            reached.extend(name.files(files).filter(|file| names.insert(file.name.as_str())));
        }
        next += 1;
    }
    reached
}

fn is_inclusion(content: &str) -> bool {
    matches!(content.split_whitespace().next(), Some("include" | "import" | "from" | "extends"))
}

/// A `{% … %}` or `{{ … }}` of a file.
struct Tag<'a> {
    content: &'a str,
    offset: usize,
    end: usize,
}

/// Where a file's first comment, its front matter or header, ends.
fn comment_end(text: &str) -> usize {
    if text.starts_with("{#") { text.find("#}").map_or(text.len(), |end| end + 2) } else { 0 }
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
            tags.push(Tag { content, offset: open, end: end + 2 });
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

/// What an `include`, `import`, … names.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Name<'t> {
    File(&'t str),
    /// One of a folder's files, which a name of the template language chooses: what is before and after it.
    OneOf(&'t str, &'t str),
}

impl<'t> Name<'t> {
    /// `None` if it is another expression.
    fn of(content: &'t str) -> Option<Self> {
        quoted(content).map(Self::File).or_else(|| {
            let text = |part: &'t str| part.trim().strip_prefix('"')?.strip_suffix('"');
            let (before, rest) = content.strip_prefix("include ")?.split_once('~')?;
            let (name, behind) = rest.split_once('~')?;
            let is_name = name.trim().chars().all(|c| c.is_alphanumeric() || c == '_');
            let (before, behind) = (text(before)?, text(behind)?);
            (is_name && before.ends_with('/')).then_some(Self::OneOf(before, behind))
        })
    }

    fn files<'f>(self, files: &'f BTreeMap<String, SourceFile>) -> impl Iterator<Item = &'f SourceFile> + use<'f, 't> {
        let is_meant = move |name: &str| match self {
            Self::File(file) => name == file,
            Self::OneOf(before, behind) => {
                let chosen = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(behind));
                chosen.is_some_and(|chosen| !chosen.contains(['/', '.']))
            }
        };
        files.values().filter(move |file| is_meant(&file.name))
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(name) => f.write_str(name),
            Self::OneOf(before, behind) => write!(f, "{before}…{behind}"),
        }
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
    fn a_name_may_choose_one_of_a_folder() {
        let of_weights = Name::OneOf("lib/host/weights/", ".c.j2");
        assert_eq!(Name::of("include \"lib/host/weights/\" ~ weight ~ \".c.j2\""), Some(of_weights));
        assert_eq!(Name::of("include 'lib/x.j2'"), Some(Name::File("lib/x.j2")));
        for other in
            ["include \"lib/x\" ~ weight ~ \".j2\"", "include \"lib/\" ~ f(x) ~ \".j2\"", "include \"lib/\" ~ x"]
        {
            assert_eq!(Name::of(other), None, "{other}");
        }
    }

    #[test]
    fn a_use_is_a_whole_word() {
        let text = "x\n{{ tile_n }}\n{% if tile %}";
        assert_eq!(&text[first_use(text, "tile")..], "tile %}");
    }
}
