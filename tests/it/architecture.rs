//! What `ARCHITECTURE.md` says always holds, where reading the source can tell; and that the documents name commands
//! that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use regex::Regex;

use crate::fixtures::program::shared_cache;

/// Longer than [`MAX_LINES`], because they are one thing.
const LONG_FILES: [&str; 0] = [];

const MAX_LINES: usize = 500;

/// The compilers' canary kernel, and the head of every kernel, which is written from its contract.
const KERNEL_TEXT: [&str; 3] =
    ["src/object/compile/hiprtc.rs", "src/object/compile/nvrtc.rs", "src/template/render.rs"];

/// A Rust file of ours.
pub struct Source {
    /// Below the repository, with `/`.
    pub path: String,
    /// Without comments, and without its tests.
    pub code: String,
    n_lines: usize,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All below a folder.
pub fn sources(folder: &str) -> Vec<Source> {
    let mut paths = Vec::new();
    walk(&root().join(folder), &mut paths);
    assert!(!paths.is_empty(), "{folder} holds no Rust");
    paths.iter().map(|path| Source::of(path)).collect()
}

fn walk(folder: &Path, paths: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for path in entries.map(|entry| entry.expect("listed").path()) {
        if path.is_dir() {
            walk(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
}

impl Source {
    fn of(path: &Path) -> Self {
        let text = read(path);
        let name = path.strip_prefix(root()).expect("walked from there").to_string_lossy().into_owned();
        Self { path: name, code: code_of(&text), n_lines: text.lines().count() }
    }

    /// The module path below the crate: `["kernel", "cache", "entry"]`.
    fn module(&self) -> Vec<&str> {
        let inside = self.path.trim_start_matches("src/").trim_end_matches(".rs");
        inside.trim_end_matches("/mod").split('/').collect()
    }

    /// The top-level modules that its code names, by `crate::` or by enough `super::`.
    fn uses(&self) -> BTreeSet<String> {
        let depth = self.module().len();
        // Compiled once: unoptimised, that takes longer than all of the search.
        static DIRECT: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(?-u)\bcrate::(\w+|\{|\*)").expect("a pattern"));
        static RELATIVE: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(r"(?-u)\b((?:super::)+)(\w+|\{|\*)").expect("a pattern"));
        let mut used: BTreeSet<String> = DIRECT.captures_iter(&self.code).map(|found| found[1].to_owned()).collect();
        let to_root = RELATIVE.captures_iter(&self.code).filter(|found| found[1].matches("super").count() == depth);
        used.extend(to_root.map(|found| found[2].to_owned()));
        used
    }
}

/// The text without comments, up to its tests. A `//` in a string ends its line too: nothing below is found in strings
/// that hold one.
fn code_of(text: &str) -> String {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The rooms of `src/` and what each may use, as the table in `ARCHITECTURE.md` says it: `| `room` | what it is |
/// `uses` … |`.
fn rooms() -> BTreeMap<String, BTreeSet<String>> {
    let document = read(&root().join("ARCHITECTURE.md"));
    let table = document.split("## Rooms\n").nth(1).and_then(|rest| rest.split("\n## ").next()).expect("the table");
    let name = Regex::new(r"`(\w+)`").expect("a pattern");
    let names = |cell: &str| name.captures_iter(cell).map(|found| found[1].to_owned()).collect::<Vec<_>>();
    let rows = table.lines().filter(|line| line.starts_with("| `")).map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        let [room, _, uses] = cells[..] else { panic!("a row of three cells: {line}") };
        (names(room), names(uses))
    });
    let mut rooms: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (room, uses) in rows {
        let [room] = &room[..] else { panic!("one room in a row: {room:?}") };
        rooms.insert(room.clone(), uses.into_iter().collect());
    }
    rooms
}

/// Whether a room could come to use itself by what it may use.
fn is_in_a_circle(room: &str, rooms: &BTreeMap<String, BTreeSet<String>>) -> bool {
    let mut reached: BTreeSet<&String> = BTreeSet::new();
    let mut next: Vec<&String> = rooms[room].iter().collect();
    while let Some(used) = next.pop() {
        if reached.insert(used) {
            next.extend(rooms.get(used).into_iter().flatten());
        }
    }
    reached.iter().any(|used| *used == room)
}

#[test]
fn dependencies_point_one_way() {
    let rooms = rooms();
    for (room, uses) in &rooms {
        assert!(!is_in_a_circle(room, &rooms), "ARCHITECTURE.md: `{room}` uses itself in the end");
        assert!(uses.iter().all(|used| rooms.contains_key(used)), "ARCHITECTURE.md: `{room}` uses no room: {uses:?}");
    }
    let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for source in sources("src").iter().filter(|source| !["src/lib.rs", "src/main.rs"].contains(&source.path.as_str()))
    {
        let room = source.module()[0].to_owned();
        let allowed = rooms.get(&room).unwrap_or_else(|| panic!("{}: ARCHITECTURE.md has no `{room}`", source.path));
        for used in source.uses().into_iter().filter(|used| *used != room) {
            if !allowed.contains(used.as_str()) {
                wrong.push(format!("{}: `{room}` must not use `crate::{used}`", source.path));
            }
            seen.entry(room.clone()).or_default().insert(used);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The table tells no more than there is, and the scan itself works.
    for (room, allowed) in &rooms {
        let unused: Vec<&String> = allowed.difference(seen.entry(room.clone()).or_default()).collect();
        assert!(unused.is_empty(), "ARCHITECTURE.md: `{room}` uses no {unused:?}");
    }
}

#[test]
fn a_circle_is_found() {
    let room = |name: &str, uses: &[&str]| (name.to_owned(), uses.iter().map(|used| (*used).to_owned()).collect());
    let rooms = BTreeMap::from([room("a", &["b"]), room("b", &["c"]), room("c", &["b"]), room("d", &["a"])]);
    let circles: Vec<&str> = ["a", "b", "c", "d"].into_iter().filter(|name| is_in_a_circle(name, &rooms)).collect();
    assert_eq!(circles, ["b", "c"]);
}

#[test]
fn both_spellings_of_a_path_are_seen_and_comments_are_not() {
    let source = |path: &str, code: &str| Source { path: path.into(), code: code_of(code), n_lines: 1 };
    let text = "use crate::graph::Rows; // crate::cli\n/// [`crate::engine`]\nfn f() { super::super::kernel::g() }\n\
                #[cfg(test)]\nuse crate::reference;\n";
    let used: Vec<String> = source("src/a/b.rs", text).uses().into_iter().collect();
    assert_eq!(used, ["graph", "kernel"]);
    assert_eq!(source("src/a/mod.rs", "use super::kernel;").uses().len(), 1);
    assert_eq!(source("src/a/b/mod.rs", "use super::kernel;").uses().len(), 0);
}

#[test]
fn unsafe_code_is_in_crates_alone() {
    let word = Regex::new(r"\bunsafe\b\s*(\{|fn|impl|extern|trait)|#\[unsafe\(|allow\(unsafe_code").expect("a pattern");
    let ours = sources("src").into_iter().chain(sources("tests")).filter(|s| s.path != "tests/it/architecture.rs");
    let found: Vec<String> = ours.filter(|source| word.is_match(&source.code)).map(|source| source.path).collect();
    assert!(found.is_empty(), "{found:?}");
    assert!(sources("crates").iter().any(|source| word.is_match(&source.code)), "the pattern finds nothing at all");
    assert!(read(&root().join("Cargo.toml")).contains("unsafe_code = \"deny\""));
}

#[test]
fn no_kernel_is_written_in_rust() {
    let with_kernels = sources("src").into_iter().filter(|source| source.code.contains("__global__"));
    let found: Vec<String> = with_kernels.map(|source| source.path).collect();
    assert_eq!(found.iter().map(String::as_str).collect::<BTreeSet<_>>(), BTreeSet::from(KERNEL_TEXT));
}

#[test]
fn only_the_command_line_prints_and_uses_anyhow() {
    let prints = Regex::new(r"\be?print(ln)?!|\bdbg!|\banyhow\b").expect("a pattern");
    let outside = sources("src").into_iter().filter(|source| source.module()[0] != "cli");
    let found: Vec<String> = outside.filter(|source| prints.is_match(&source.code)).map(|source| source.path).collect();
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn compilers_are_opened_in_the_compile_worker_alone() {
    let outside = sources("src").into_iter().filter(|source| !source.path.starts_with("src/object/compile/"));
    let found: Vec<String> = outside.filter(|s| s.code.contains("rtc_sys")).map(|source| source.path).collect();
    assert!(found.is_empty(), "{found:?}");
}

/// What adding a thing touches, as CONTRIBUTING.md lists it: its mark there, what names a thing of that kind which
/// exists, and the files that are that thing's own.
const WALKS: [(&str, &str, &str); 6] = [
    (
        "device",
        // Not in a string: texts for people and names of libraries are no obstacle.
        r#"(?mi)^([^"\n]|"[^"\n]*")*?(cuda|nvidia|nvrtc|cubin)"#,
        "cuda|nvrtc|hip|cubin",
    ),
    ("weight format", "(?i)q8_0", "^$"),
    ("family", r#""llama"|"gpt-oss"|\bgpt_oss\(\)|\bgpt_oss_20b\b"#, r"/tests\.rs$"),
    ("op", "silu_and_mul", "^$"),
    ("arch", r#""gfx(1151|1201|950)""#, r"fake-hip|/tests\.rs$"),
    ("sampler field", r"\bmin_p\b", "^crates/reference/"),
];

#[test]
fn the_walks_in_the_contributors_guide_are_all_that_a_new_thing_touches() {
    let guide = read(&root().join("CONTRIBUTING.md"));
    let all: Vec<Source> = sources("src").into_iter().chain(sources("crates")).collect();
    for (name, names_it, own) in WALKS {
        let (names_it, own) = (Regex::new(names_it).expect("a pattern"), Regex::new(own).expect("a pattern"));
        let walk = guide.split(&format!("<!-- walk: {name} -->")).nth(1).expect("the walk");
        let own_lines = walk.lines().take_while(|line| !line.starts_with("<!-- walk") && !line.starts_with("## "));
        let items = own_lines.filter(|line| line.starts_with("- "));
        let listed: BTreeSet<&str> = items.map(|line| line.trim_start_matches("- ").trim_matches('`')).collect();
        let touched = all.iter().filter(|source| !own.is_match(&source.path) && names_it.is_match(&source.code));
        let found: BTreeSet<&str> = touched.map(|source| source.path.as_str()).collect();
        assert_eq!(listed, found, "CONTRIBUTING.md, {name}");
    }
}

#[test]
fn files_stay_short_enough_to_be_read() {
    let all = sources("src").into_iter().chain(sources("crates"));
    let long: BTreeSet<String> = all.filter(|source| source.n_lines > MAX_LINES).map(|source| source.path).collect();
    assert_eq!(long, LONG_FILES.map(String::from).into(), "files of more than {MAX_LINES} lines");
}

#[test]
fn lines_of_templates_fit_a_screen() {
    const MAX_COLUMNS: usize = 120;
    let (mut open, mut n_files, mut long) = (vec![root().join("templates")], 0, Vec::new());
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).expect("listed").map(|entry| entry.expect("listed").path()));
            continue;
        }
        if path.extension().is_none_or(|extension| extension != "j2" && extension != "toml") {
            continue;
        }
        n_files += 1;
        let text = read(&path);
        let lines = text.lines().enumerate().filter(|(_, line)| line.chars().count() > MAX_COLUMNS);
        long.extend(lines.map(|(i, _)| format!("{}:{}", path.display(), i + 1)));
    }
    assert!(n_files > 80, "{n_files} templates");
    assert!(long.is_empty(), "lines of more than {MAX_COLUMNS} columns:\n{}", long.join("\n"));
}

/// rustfmt keeps code within `max_width` and leaves comments as they are.
#[test]
fn comments_fit_a_screen() {
    const MAX_COLUMNS: usize = 120;
    let mut paths = Vec::new();
    ["src", "crates", "tests"].iter().for_each(|folder| walk(&root().join(folder), &mut paths));
    assert!(paths.len() > 200, "{} files", paths.len());
    let is_long = |line: &str| line.trim_start().starts_with("//") && line.chars().count() > MAX_COLUMNS;
    let of_file = |path: &PathBuf| {
        let text = read(path);
        let long = text.lines().enumerate().filter(|(_, line)| is_long(line));
        long.map(|(i, _)| format!("{}:{}", path.display(), i + 1)).collect::<Vec<_>>()
    };
    let long: Vec<String> = paths.iter().flat_map(of_file).collect();
    assert!(long.is_empty(), "comments of more than {MAX_COLUMNS} columns:\n{}", long.join("\n"));
}

// ---- documents ----

/// Documents whose commands are tried.
const DOCUMENTS: [&str; 4] =
    ["README.md", "CONTRIBUTING.md", ".github/ISSUE_TEMPLATE/card.yml", ".github/ISSUE_TEMPLATE/kernel.yml"];

/// The arguments of every `gptoss-jit …` and `cargo run … -- …` in a text, fenced or in backticks.
fn commands(text: &str) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            commands.extend(arguments(line));
        } else {
            commands.extend(line.split('`').skip(1).step_by(2).filter_map(arguments));
        }
    }
    commands
}

/// The arguments, if the line is a call of the program. What follows a comment, a pipe or a redirection is not of it.
fn arguments(line: &str) -> Option<Vec<String>> {
    let words = words(line);
    let is_assignment = |word: &&String| {
        word.split('=').next().is_some_and(|name| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
            && word.contains('=')
    };
    let words: Vec<&String> = words.iter().skip_while(is_assignment).collect();
    let start = match words.first().map(|word| word.as_str())? {
        "gptoss-jit" | "target/release/gptoss-jit" => 1,
        "cargo" if words.get(1).is_some_and(|word| *word == "run") => words.iter().position(|word| *word == "--")? + 1,
        _ => return None,
    };
    let rest = words[start..].iter().take_while(|word| !matches!(word.as_str(), "|" | ">" | "<" | "&&" | "#"));
    Some(rest.map(|word| (*word).clone()).collect())
}

/// As a shell would split it, quotes included; a comment begins at a word `#…`.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => (quote, word) = (Some(c), Some(word.unwrap_or_default())),
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, '#') if word.is_none() => break,
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[test]
fn commands_are_found_in_a_document() {
    let text = "Run `gptoss-jit cache ls` or `cargo build`.\n```sh\nA_B=c gptoss-jit run -i \"a b\" > out  # say\n\
                cargo run --release -- doctor | less\nls\n```\n";
    let found: Vec<String> = commands(text).iter().map(|arguments| arguments.join("|")).collect();
    assert_eq!(found, ["cache|ls", "run|-i|a b", "doctor"]);
}

#[test]
fn every_command_in_the_documents_exists() {
    for document in DOCUMENTS {
        let commands = commands(&read(&root().join(document)));
        assert!(!commands.is_empty(), "{document} names no command");
        for arguments in commands {
            // What stands before `--help` is parsed first, so a flag or a verb that does not exist is an error.
            let tried = Command::new(env!("CARGO_BIN_EXE_gptoss-jit")).args(&arguments).arg("--help").output();
            let tried = tried.expect("the program starts");
            let said = String::from_utf8_lossy(&tried.stderr);
            assert!(tried.status.success(), "{document}: gptoss-jit {}: {said}", arguments.join(" "));
            assert!(String::from_utf8_lossy(&tried.stdout).contains("Usage:"), "{document}: {arguments:?}");
        }
    }
}

#[test]
fn the_kernel_in_the_contributors_guide_is_right() {
    let guide = read(&root().join("CONTRIBUTING.md"));
    let fenced =
        guide.split("   ```jinja\n").nth(1).and_then(|rest| rest.split("   ```\n").next()).expect("a template");
    let template: String =
        fenced.lines().map(|line| format!("{}\n", line.strip_prefix("   ").unwrap_or(line))).collect();
    let room = tempfile::tempdir().expect("a temporary folder");
    let folder = room.path().join("my-kernels/rmsnorm");
    fs::create_dir_all(&folder).expect("made");
    fs::write(folder.join("unrolled.c.j2"), template).expect("written");

    // The commands of the guide that need no model, in a folder where `my-kernels` is.
    let tried = commands(&guide)
        .into_iter()
        .filter(|arguments| arguments.contains(&"my-kernels".to_owned()) && !arguments.contains(&"MODEL".to_owned()));
    let mut n_tried = 0;
    for arguments in tried {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gptoss-jit"));
        command.args(&arguments).current_dir(&room).env("GPTOSS_JIT_CACHE", shared_cache());
        let output = command.output().expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && told.contains("unrolled"), "{}: {told}{said}", arguments.join(" "));
        n_tried += 1;
    }
    assert_eq!(n_tried, 4, "ls, show, check and plan");
}
