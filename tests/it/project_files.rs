//! What files around the code say, and nothing else would notice: the oldest Rust is the same everywhere, no package
//! asks for a newer one, the security policy names files that exist, Python's stubs what the module has, and the page
//! of templates all ops and all of `lib/hip`.

use std::fs;
use std::path::Path;
use std::process::Command;

use regex::Regex;
use serde_json::Value;

use crate::architecture::ours;

/// The fewest packages that a scan which works finds.
const MIN_PACKAGES: usize = 100;

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The oldest Rust that builds this, as `Cargo.toml` says it: `1.92`.
fn oldest_rust() -> String {
    let pattern = Regex::new(r#"(?m)^rust-version = "(\d+\.\d+)"$"#).expect("a pattern");
    pattern.captures(&read("Cargo.toml")).expect("the workspace has one")[1].to_owned()
}

/// `1.92` and `1.92.0` alike.
fn numbers(version: &str) -> [u32; 3] {
    let mut parts = version.split('.').map(|part| part.parse().expect("a number"));
    [(); 3].map(|()| parts.next().unwrap_or(0))
}

/// What `Cargo.lock` has for this machine. Packages of other systems need not be here: nothing is downloaded.
fn packages() -> Vec<Value> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version=1", "--locked", "--offline", "--filter-platform=host-tuple"]);
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let Value::Array(packages) = metadata["packages"].take() else { panic!("a list of packages") };
    packages
}

/// Cargo looks at it only when it builds with the oldest Rust. Clippy finds calls of std that are too new.
/// Packages that say no Rust are found out by a build with the oldest one alone.
#[test]
fn no_package_asks_for_a_newer_rust_than_ours() {
    let (ours, packages) = (oldest_rust(), packages());
    assert!(packages.len() >= MIN_PACKAGES, "{} packages", packages.len());
    let of = |package: &Value| Some((package["name"].clone(), package["rust_version"].as_str()?.to_owned()));
    let asked: Vec<(Value, String)> = packages.iter().filter_map(of).collect();
    assert!(asked.len() >= MIN_PACKAGES, "{} of {} packages say a Rust", asked.len(), packages.len());
    let newer: Vec<_> = asked.iter().filter(|(_, version)| numbers(version) > numbers(&ours)).collect();
    assert!(newer.is_empty(), "rust-version is {ours}, but: {newer:?}");
    // Every package of the workspace says the same as the workspace.
    for package in packages.iter().filter(|package| package["source"].is_null()) {
        assert_eq!(package["rust_version"], ours.as_str(), "{}", package["name"]);
    }
}

#[test]
fn the_oldest_rust_is_the_same_everywhere() {
    let ours = oldest_rust();
    let named = [
        ("CONTRIBUTING.md", format!("`cargo +{ours} build`")),
        ("examples/serve/Containerfile", format!("/rust:{ours}-")),
    ];
    for (file, text) in named {
        assert!(read(file).contains(&text), "{file} does not have {text}");
    }
}

#[test]
fn the_security_policy_names_files_that_exist() {
    let pattern = Regex::new(r"[`(]((?:docs|examples|fuzz|tests)/[^`)#]*)").expect("a pattern");
    let policy = read("SECURITY.md");
    let named: Vec<&str> = pattern.captures_iter(&policy).map(|found| found.extract::<1>().1[0]).collect();
    assert!(named.len() >= 5, "{named:?}");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let missing: Vec<_> = named.iter().filter(|name| !root.join(name).exists()).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The site's table of contents is made of that list: a page that is not on it is on no site.
#[test]
fn every_document_is_in_the_list_of_documents() {
    let list = read("docs/README.md");
    let files = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")).expect("listed");
    let names = files.map(|file| file.expect("listed").file_name().to_string_lossy().into_owned());
    let documents: Vec<String> = names.filter(|name| name.ends_with(".md") && name != "README.md").collect();
    assert!(documents.len() >= 15, "{documents:?}");
    let missing: Vec<&String> = documents.iter().filter(|name| !list.contains(&format!("]({name})"))).collect();
    assert!(missing.is_empty(), "not in docs/README.md: {missing:?}");
}

/// Links have a test of their own; these are the names in code spans, which a moved file leaves behind.
#[test]
fn paths_that_documents_name_exist() {
    let folders = "benches|chats|crates|docs|examples|fuzz|models|packaging|python|src|templates|tests|tuning";
    let path = Regex::new(&format!(r"`((?:{folders})/[\w./-]+)`")).expect("a pattern");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = fs::read_dir(root.join("docs")).expect("listed").map(|file| file.expect("listed").path());
    let documents = files.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let others = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "templates/README.md", "tuning/README.md"];
    let (mut n_paths, mut missing) = (0, Vec::new());
    for document in documents.chain(others.map(|name| root.join(name))) {
        let text = fs::read_to_string(&document).expect("a document");
        for found in path.captures_iter(&text) {
            n_paths += 1;
            if !root.join(&found[1]).exists() {
                missing.push(format!("{}: {}", document.display(), &found[1]));
            }
        }
    }
    assert!(n_paths > 100, "{n_paths} paths");
    assert!(missing.is_empty(), "{missing:?}");
}

/// What differs between systems is in `system::os`, and in crates that call foreign libraries.
#[test]
fn what_needs_unix_is_in_one_place() {
    let unix = Regex::new(r"\bos::(unix|fd|linux)\b|\brustix::|\blibc::|\bsignal::unix\b").expect("a pattern");
    let own = ["crates/fake-hip/", "crates/gpu/", "crates/mapped-file/", "crates/rtc/"];
    let expected = [
        "crates/system/src/new_file/linux.rs",
        "crates/system/src/os/unix.rs",
        "src/output_file.rs",  // a pipe for signals
        "src/serve/ending.rs", // signals of a server
    ];
    // Tests run on Linux.
    let is_tests = |path: &str| path.ends_with("/tests.rs") || path.contains("/tests/");
    let others = ours().filter(|source| !own.iter().any(|own| source.path.starts_with(own)) && !is_tests(&source.path));
    let mut found: Vec<String> =
        others.filter(|source| unix.is_match(&source.code)).map(|source| source.path).collect();
    found.sort();
    assert_eq!(found, expected, "use `system::os`");
}

/// What Python's type checkers read is written by hand, beside what Rust exports.
#[test]
fn the_stubs_of_the_module_name_what_it_has() {
    let found = |file: &str, pattern: &str| -> Vec<String> {
        let pattern = Regex::new(pattern).expect("a pattern");
        let mut names: Vec<String> = pattern.captures_iter(&read(file)).map(|found| found[1].to_owned()).collect();
        names.sort();
        names
    };
    // Methods are indented once and end in `)` or a type; `new` is Python's `__new__`.
    let methods = read("crates/python/src/lib.rs");
    let methods = methods.split("#[pymethods]").nth(1).and_then(|rest| rest.split("\n}\n").next()).expect("methods");
    let method = Regex::new(r"(?m)^    fn (\w+)").expect("a pattern");
    let mut of_rust: Vec<String> =
        method.captures_iter(methods).map(|found| found[1].replace("new", "__new__")).collect();
    of_rust.sort();
    assert!(of_rust.len() >= 10, "{of_rust:?}");
    assert_eq!(found("python/gptoss_jit/_engine.pyi", r"(?m)^    def (\w+)"), of_rust);
}

/// What is between backticks.
fn code_spans(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The names of C that a file of `lib/hip` gives, as its header lists them.
fn given(file: &str) -> Vec<String> {
    let text = read(&format!("templates/lib/hip/{file}.hip.j2"));
    let header = text.strip_prefix("{#").and_then(|rest| rest.split_once("#}")).map_or("", |(header, _)| header);
    let gives = header.split_once("[gives]\n").map_or("", |(_, gives)| gives);
    let names = gives.strip_prefix("c ").and_then(|rest| rest.split_once(']')).map_or("", |(names, _)| names);
    names.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// A line without an ellipsis names all that its files give.
#[test]
fn the_table_of_lib_hip_names_what_its_files_give() {
    let page = read("templates/README.md");
    let section = page.split("### What `lib/hip` offers").nth(1).and_then(|rest| rest.split("\n## ").next());
    let lines =
        section.expect("the section").lines().filter(|line| line.starts_with("| `") && !line.contains("lib/hip/"));
    let mut listed: Vec<String> = Vec::new();
    let mut n_names = 0;
    for line in lines {
        let mut cells = line.split('|').skip(1);
        let (files, names) = (cells.next().expect("files"), cells.next().expect("names"));
        let given: Vec<String> = code_spans(files).into_iter().flat_map(given).collect();
        let shown = code_spans(names);
        let unknown: Vec<&&str> = shown.iter().filter(|name| !given.iter().any(|one| one == *name)).collect();
        assert!(unknown.is_empty(), "{files}: {unknown:?} are in no [gives]");
        let left_out: Vec<&String> = given.iter().filter(|name| !shown.contains(&name.as_str())).collect();
        assert!(left_out.is_empty() || names.contains('…'), "{files}: {left_out:?} are not in the table");
        n_names += shown.len();
        listed.extend(code_spans(files).into_iter().map(str::to_owned));
    }
    assert!(n_names > 80, "{n_names} names");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("templates/lib/hip");
    let files = fs::read_dir(folder).expect("listed").map(|file| file.expect("listed").file_name());
    let names = files.filter_map(|name| name.to_string_lossy().strip_suffix(".hip.j2").map(str::to_owned));
    let mut there: Vec<String> = names.collect();
    listed.sort();
    there.sort();
    assert_eq!(listed, there);
}

#[test]
fn the_table_of_ops_has_every_op() {
    let page = read("templates/README.md");
    let section = page.split("## The ops\n").nth(1).and_then(|rest| rest.split("\n## ").next()).expect("the section");
    let listed = code_spans(section);
    let folders = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("templates")).expect("listed");
    let folders = folders.map(|folder| folder.expect("listed").path()).filter(|folder| folder.join("op.toml").exists());
    let ops: Vec<String> = folders.filter_map(|op| Some(op.file_name()?.to_string_lossy().into_owned())).collect();
    assert!(ops.len() >= 25, "{ops:?}");
    let missing: Vec<&String> = ops.iter().filter(|op| !listed.contains(&op.as_str())).collect();
    assert!(missing.is_empty(), "not in templates/README.md: {missing:?}");
}
