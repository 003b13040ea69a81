//! File names with `*`, `?` and `[…]` that no shell expanded.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use regex::bytes::Regex;

/// Whether a name has signs that stand for others.
pub(crate) fn is_pattern(name: &OsStr) -> bool {
    name.as_encoded_bytes().iter().any(|byte| b"*?[".contains(byte))
}

/// The files that a pattern names, in the order of their names. `*` and `?` stand for no `/`, and for no dot that a
/// name begins with.
///
/// # Errors
/// A folder that it names cannot be listed.
pub(crate) fn matching(pattern: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![PathBuf::new()];
    for component in pattern.components() {
        let Component::Normal(name) = component else {
            found.iter_mut().for_each(|path| path.push(component));
            continue;
        };
        let Some(expression) = Some(name).filter(|name| is_pattern(name)).and_then(expression) else {
            found.iter_mut().for_each(|path| path.push(name));
            continue;
        };
        let mut next = Vec::new();
        for folder in found {
            next.extend(matching_in(&folder, name, &expression)?.into_iter().map(|name| folder.join(name)));
        }
        found = next;
    }
    found.retain(|path| path.metadata().is_ok_and(|found| !found.is_dir()));
    Ok(found)
}

fn matching_in(folder: &Path, pattern: &OsStr, expression: &Regex) -> io::Result<Vec<OsString>> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let names = fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.file_name()));
    let mut names = names.collect::<io::Result<Vec<_>>>()?;
    let is_hidden = |name: &OsStr| name.as_encoded_bytes().starts_with(b".");
    names.retain(|name| expression.is_match(name.as_encoded_bytes()) && (!is_hidden(name) || is_hidden(pattern)));
    names.sort();
    Ok(names)
}

/// What a name has to be. None if that cannot be said: then the pattern stands for itself.
fn expression(name: &OsStr) -> Option<Regex> {
    let mut text = String::from("(?s-u)^");
    let mut rest = name.to_str()?.chars();
    while let Some(sign) = rest.next() {
        match sign {
            '*' => text += ".*",
            '?' => text += "(?u:.)",
            '[' => {
                let (set, behind) = rest.as_str().split_once(']')?;
                let (not, set) = set.strip_prefix('!').map_or(("", set), |set| ("^", set));
                text += &format!("(?u:[{not}{}])", regex::escape(set).replace("\\-", "-"));
                rest = behind.chars();
            }
            other => text += &regex::escape(&other.to_string()),
        }
    }
    Regex::new(&(text + "$")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_questions_and_sets_stand_for_names() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir(folder.path().join("x")).expect("made");
        for name in ["a1", "a2", "b1", ".a1", "é1", "x/a1", "a.1"] {
            fs::write(folder.path().join(name), "").expect("written");
        }
        let found = |pattern: &str| -> Vec<String> {
            let paths = matching(&folder.path().join(pattern)).expect("listed");
            let below = |path: PathBuf| path.strip_prefix(folder.path()).expect("below").display().to_string();
            paths.into_iter().map(below).collect()
        };
        assert_eq!(found("*"), ["a.1", "a1", "a2", "b1", "é1"], "no hidden file and no folder");
        assert_eq!(found("?1"), ["a1", "b1", "é1"]);
        assert_eq!(found("[!a]1"), ["b1", "é1"]);
        assert_eq!(found("a[1-9]"), ["a1", "a2"]);
        assert_eq!(found(".?1"), [".a1"]);
        assert_eq!(found("*/a?"), ["x/a1"]);
        assert_eq!(found("a.1"), ["a.1"], "a dot is a dot");
        assert_eq!(found("c*"), [""; 0]);
    }
}
