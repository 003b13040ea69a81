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
const KERNEL_TEXT: [&str; 3] = [
    "crates/kernel/src/object/compile/hiprtc.rs",
    "crates/kernel/src/object/compile/nvrtc.rs",
    "crates/kernel/src/template/head.rs",
];

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

/// All that is ours but tests.
pub fn ours() -> impl Iterator<Item = Source> {
    let is_tests = |source: &Source| source.path.contains("/tests/it/") || source.path.starts_with("crates/fixtures/");
    sources("src").into_iter().chain(sources("crates")).filter(move |source| !is_tests(source))
}

/// All below a folder.
fn sources(folder: &str) -> Vec<Source> {
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

    /// The crate, `gptoss-jit` for `src/`, and the module path in it: `kernel` and `["object", "key"]`.
    fn module(&self) -> (&str, Vec<&str>) {
        let (name, inside) = match self.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/")) {
            Some(parts) => parts,
            None => ("gptoss-jit", self.path.trim_start_matches("src/")),
        };
        (name, inside.trim_end_matches(".rs").trim_end_matches("/mod").split('/').collect())
    }

    /// The top-level modules of its crate that its code names, by `crate::` or by enough `super::`.
    fn uses(&self) -> BTreeSet<String> {
        let depth = self.module().1.len();
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

/// A table of `ARCHITECTURE.md` of the form `| `name` | what it is | `used` … |`: who uses whom.
fn table(heading: &str) -> BTreeMap<String, BTreeSet<String>> {
    let document = read(&root().join("ARCHITECTURE.md"));
    let section = document.split(&format!("## {heading}\n")).nth(1).and_then(|rest| rest.split("\n## ").next());
    let name = Regex::new(r"`([\w:-]+)`").expect("a pattern");
    let names = |cell: &str| name.captures_iter(cell).map(|found| found[1].to_owned()).collect::<Vec<_>>();
    let rows = section.expect("the table").lines().filter(|line| line.starts_with("| `"));
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        let [row, _, uses] = cells[..] else { panic!("a row of three cells: {line}") };
        (names(row).swap_remove(0), names(uses).into_iter().collect())
    };
    rows.map(row).collect()
}

/// Cargo holds who uses whom; this holds what is written of it.
#[test]
fn crates_use_what_the_table_says() {
    let folders = fs::read_dir(root().join("crates")).expect("listed").map(|entry| entry.expect("listed").path());
    let mut crates: BTreeMap<String, PathBuf> =
        folders.map(|path| (path.file_name().expect("a name").to_string_lossy().into_owned(), path)).collect();
    crates.insert("gptoss-jit".into(), root().to_owned());
    let ours: BTreeSet<String> = crates.keys().cloned().collect();
    let uses = |path: &PathBuf| {
        let manifest: toml::Table = read(&path.join("Cargo.toml")).parse().expect("TOML");
        let used = manifest.get("dependencies").and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::keys);
        used.filter(|name| ours.contains(*name)).cloned().collect()
    };
    let found = crates.iter().map(|(name, path)| (name.clone(), uses(path))).collect();
    assert_eq!(table("Crates"), found);
}

#[test]
fn rooms_of_a_crate_use_what_the_table_says() {
    let rooms = table("Rooms");
    let all = sources("crates");
    let mut found: BTreeMap<String, BTreeSet<String>> =
        rooms.keys().map(|room| (room.clone(), BTreeSet::new())).collect();
    for source in &all {
        let (name, path) = source.module();
        let room = format!("{name}::{}", path[0]);
        if let Some(used) = found.get_mut(&room) {
            used.extend(
                source
                    .uses()
                    .into_iter()
                    .filter(|used| *used != path[0] && rooms.contains_key(&format!("{name}::{used}"))),
            );
        }
    }
    assert_eq!(rooms, found);
    // The tops of these crates are above their rooms; that of `chat` is what all of them speak of.
    let names_top = |source: &&Source| {
        let (name, path) = source.module();
        let others = source.uses().into_iter().any(|used| !rooms.contains_key(&format!("{name}::{used}")));
        name != "chat" && rooms.contains_key(&format!("{name}::{}", path[0])) && others
    };
    let wrong: Vec<&str> = all.iter().filter(names_top).map(|source| source.path.as_str()).collect();
    assert!(wrong.is_empty(), "rooms that use the top of their crate: {wrong:?}");
}

#[test]
fn both_spellings_of_a_path_are_seen_and_comments_are_not() {
    let source = |path: &str, code: &str| Source { path: path.into(), code: code_of(code), n_lines: 1 };
    let text = "use crate::graph::Rows; // crate::cli\n/// [`crate::engine`]\nfn f() { super::super::kernel::g() }\n\
                #[cfg(test)]\nuse crate::reference;\n";
    let used: Vec<String> = source("crates/c/src/a/b.rs", text).uses().into_iter().collect();
    assert_eq!(used, ["graph", "kernel"]);
    assert_eq!(source("src/a/mod.rs", "use super::kernel;").uses().len(), 1);
    assert_eq!(source("src/a/b/mod.rs", "use super::kernel;").uses().len(), 0);
}

/// rustc denies it elsewhere. A crate that has no lints of the workspace would be held to none.
#[test]
fn unsafe_code_is_allowed_where_the_table_says() {
    let document = read(&root().join("ARCHITECTURE.md"));
    let said = document.lines().filter(|line| line.starts_with("| `") && line.contains("`unsafe` |"));
    let said: BTreeSet<String> = said.map(|line| line.split('`').nth(1).expect("a name").to_owned()).collect();
    let allows = ours().filter(|s| s.code.contains("(unsafe_code"));
    let found: BTreeSet<String> = allows.map(|source| source.module().0.to_owned()).collect();
    assert_eq!(said, found);
    for name in table("Crates").keys().filter(|name| *name != "gptoss-jit") {
        let manifest = read(&root().join("crates").join(name).join("Cargo.toml"));
        assert!(manifest.contains("[lints]\nworkspace = true\n"), "{name} has lints of its own");
    }
    assert!(read(&root().join("Cargo.toml")).contains("unsafe_code = \"deny\""));
}

/// rustc's own lint asks the same of every field and variant, which is how comments without words come about.
#[test]
fn public_items_say_what_they_are() {
    let item = Regex::new(r"^\s*pub (?:const |async |unsafe )*(?:fn|struct|enum|trait|type|const|static) (\w+)");
    let item = item.expect("a pattern");
    let mut silent = Vec::new();
    // Functions of vendors are explained where they come from, and tests by their names.
    let others = ["-sys/", "fake-hip/", "fixtures/", "/tests"];
    let sources = ours().filter(|source| !others.iter().any(|other| source.path.contains(other)));
    for source in sources {
        let text = read(&root().join(&source.path));
        let lines: Vec<&str> = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default().lines().collect();
        for (i, found) in lines.iter().enumerate().filter_map(|(i, line)| Some((i, item.captures(line)?))) {
            let before = lines[..i].iter().rev().map(|line| line.trim_start());
            let mut own = before.take_while(|line| !line.is_empty() && !line.ends_with('}'));
            if !own.any(|line| line.starts_with("///")) {
                silent.push(format!("{}:{}: {}", source.path, i + 1, &found[1]));
            }
        }
    }
    assert!(silent.is_empty(), "public items without a word:\n{}", silent.join("\n"));
}

#[test]
fn no_kernel_is_written_in_rust() {
    let ours = ours().filter(|s| !s.path.starts_with("crates/gpu/"));
    let with_kernels = ours.filter(|source| source.code.contains("__global__"));
    let found: Vec<String> = with_kernels.map(|source| source.path).collect();
    assert_eq!(found.iter().map(String::as_str).collect::<BTreeSet<_>>(), BTreeSet::from(KERNEL_TEXT));
}

#[test]
fn compilers_are_opened_in_the_compile_worker_alone() {
    // The module `rtc` beside these is not meant: a path from the crate's root.
    let opens = Regex::new(r"(?m)\b(comgr_sys|hiprtc_sys|nvrtc_sys)::|^use rtc::").expect("a pattern");
    let own = ["crates/rtc/", "crates/comgr-sys/", "crates/hiprtc-sys/", "crates/nvrtc-sys/"];
    let (inside, outside): (Vec<Source>, Vec<Source>) = ours()
        .filter(|source| !own.iter().any(|own| source.path.starts_with(own)))
        .partition(|source| source.path.starts_with("crates/kernel/src/object/compile/"));
    let opening = |sources: &[Source]| -> Vec<String> {
        sources.iter().filter(|source| opens.is_match(&source.code)).map(|source| source.path.clone()).collect()
    };
    assert_eq!(opening(&inside).len(), 4, "disassembly.rs, hiprtc.rs, nvrtc.rs and rtc.rs: the pattern finds them");
    assert_eq!(opening(&outside), Vec::<String>::new());
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
    ("weight format", "(?i)q8_0", r"/tests\.rs$"),
    // GGUF files call SentencePiece's tokenizers so, too.
    ("family", r#""llama"|"gpt-oss"|\bgpt_oss\(\)|\bgpt_oss_20b\b"#, r"/tests\.rs$|/tokenizer/gguf\.rs$"),
    ("op", "silu_and_mul", "^$"),
    ("arch", r#""gfx(1151|1201|950)""#, r"fake-hip|/tests\.rs$"),
    ("sampler field", r"\bmin_p\b", "^crates/reference/"),
];

#[test]
fn the_walks_in_the_contributors_guide_are_all_that_a_new_thing_touches() {
    let guide = read(&root().join("CONTRIBUTING.md"));
    let all: Vec<Source> = ours().collect();
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
    let all = ours();
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

/// Proptest would write what broke a property into the repository.
#[test]
fn a_property_that_fails_leaves_no_file() {
    let begins = Regex::new(r"(?m)^ *proptest! \{\n(.*)$").expect("a pattern");
    let mut paths = Vec::new();
    ["src", "crates", "tests"].iter().for_each(|folder| walk(&root().join(folder), &mut paths));
    let of_file =
        |path: &PathBuf| begins.captures_iter(&read(path)).map(|found| found[1].to_owned()).collect::<Vec<_>>();
    let firsts: Vec<(&PathBuf, String)> =
        paths.iter().flat_map(|path| of_file(path).into_iter().map(move |line| (path, line))).collect();
    assert!(firsts.len() > 10, "{firsts:?}");
    let writing: Vec<_> = firsts.iter().filter(|(_, line)| !line.contains("failure_persistence: None")).collect();
    assert!(writing.is_empty(), "{writing:?}");
}

// ---- documents ----

/// Documents whose commands are tried.
const DOCUMENTS: [&str; 14] = [
    "README.md",
    "CONTRIBUTING.md",
    "tuning/README.md",
    "docs/run.md",
    "docs/many-prompts.md",
    "docs/serve.md",
    "docs/several-gpus.md",
    "docs/checkpoints.md",
    "docs/eval.md",
    "docs/status.md",
    "docs/cache.md",
    "docs/testing.md",
    ".github/ISSUE_TEMPLATE/card.yml",
    ".github/ISSUE_TEMPLATE/kernel.yml",
];

/// The first page is read whole: longer, it is not.
#[test]
fn the_readme_is_short() {
    let text = read(&root().join("README.md"));
    let (n_words, n_lines) = (text.split_whitespace().count(), text.lines().count());
    assert!(n_words <= 1300 && n_lines <= 200, "{n_words} words in {n_lines} lines");
    let story = text.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap_or_default();
    let long = text.lines().find(|line| line.chars().count() > 160 && !story.contains(line));
    assert_eq!(long, None);
}

/// Every link of a document to a file of the project leads to one.
#[test]
fn links_between_documents_lead_somewhere() {
    let mut open: Vec<PathBuf> = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
        .iter()
        .map(|name| root().join(name))
        .chain(
            ["templates/README.md", "tuning/README.md", "models/README.md", "chats/README.md"].map(|n| root().join(n)),
        )
        .collect();
    let folders = ["docs", "docs/log"].map(|folder| fs::read_dir(root().join(folder)).expect("listed"));
    let in_docs = folders.into_iter().flatten().map(|entry| entry.expect("listed").path());
    open.extend(in_docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    let link = Regex::new(r"\]\(([^)\s:#]+)(?:#([^)\s]+))?\)").expect("a pattern");
    let mut lost = Vec::new();
    let mut n_links = 0;
    for document in &open {
        for found in link.captures_iter(&read(document)) {
            let path = document.parent().expect("a folder").join(&found[1]);
            n_links += 1;
            let has_anchor = |name: &str| read(&path).lines().any(|line| anchor(line).as_deref() == Some(name));
            if !path.exists() || found.get(2).is_some_and(|name| !has_anchor(name.as_str())) {
                lost.push(format!("{}: {}", document.display(), &found[0]));
            }
        }
    }
    assert!(n_links > 100, "{n_links} links");
    assert!(lost.is_empty(), "links that lead nowhere:\n{}", lost.join("\n"));
}

/// What GitHub calls a heading in links: lower case, blanks as `-`, no other signs.
fn anchor(line: &str) -> Option<String> {
    let title = line.strip_prefix('#')?.trim_start_matches('#').trim();
    let letters = title.to_lowercase().replace(' ', "-");
    Some(letters.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect())
}

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
