//! What the files of `templates/lib` say of themselves, held against each other: one name means one thing, and a kernel
//! includes what it uses.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde::Deserialize;

/// Ways to do the same, of which a kernel includes one: they give the same names.
const ALTERNATIVES: [&[&str]; 4] = [
    &[
        "lib/host/dot_f32.c.j2",
        "lib/host/dot_bf16.c.j2",
        "lib/host/dot_blocks.c.j2",
        "lib/host/dot_mxfp4.c.j2",
        "lib/host/dot_mxfp4_avx2.c.j2",
        "lib/host/dot_mxfp4_vnni.c.j2",
    ],
    &["lib/attention/matrix_softmax.hip.j2", "lib/attention/matrix_softmax8.hip.j2"],
    &["lib/wgmma/panels.hip.j2", "lib/wgmma/quads.hip.j2"],
    &["lib/wgmma/lds_weights.hip.j2", "lib/wgmma/codes.hip.j2"],
];

/// Files that include one of a folder, which a name chooses; what all of these give, they give too.
const CHOOSERS: [(&str, &str); 2] =
    [("lib/hip/weights.hip.j2", "lib/hip/weights/"), ("lib/host/weights.c.j2", "lib/host/weights/")];

/// Constants of a block's tile, which mean the same wherever a file of its own shape gives them.
const OF_A_TILE: [&str; 7] = ["TILE_T", "TILE_N", "TILE_K", "THREADS", "SPAN", "PANEL_K", "RING"];

/// What a file includes for those that include it: who reads weights multiplies them by activations.
const FOR_INCLUDERS: [(&str, &str); 1] = [("lib/hip/weights.hip.j2", "lib/hip/activation.hip.j2")];

#[derive(Default, Deserialize)]
#[serde(default)]
struct Names {
    c: Vec<String>,
    jinja: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Header {
    takes: Names,
    gives: Names,
    uses: Vec<String>,
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../templates"))
}

/// All files that end with `.j2`, by their path below `templates/`.
fn files() -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let mut open = vec![folder().to_owned()];
    while let Some(folder) = open.pop() {
        for path in fs::read_dir(&folder).expect("listed").map(|entry| entry.expect("listed").path()) {
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "j2") {
                let name = path.strip_prefix(self::folder()).expect("walked from there").to_string_lossy().into_owned();
                files.insert(name, fs::read_to_string(&path).expect("text"));
            }
        }
    }
    files
}

fn lib() -> BTreeMap<String, Header> {
    let of_lib = files().into_iter().filter(|(name, _)| name.starts_with("lib/"));
    let read = of_lib.map(|(name, text)| {
        let header = text.strip_prefix("{#").and_then(|rest| rest.split_once("#}")).expect(&name).0;
        (name, toml::from_str(header).expect("checked when it is loaded"))
    });
    read.collect()
}

fn are_alternatives(files: &[&str]) -> bool {
    let of_chooser =
        |(chooser, folder): &(&str, &str)| files.iter().all(|file| file == chooser || file.starts_with(folder));
    ALTERNATIVES.iter().any(|group| files.iter().all(|file| group.contains(file))) || CHOOSERS.iter().any(of_chooser)
}

/// `.c.j2` or `.hip.j2`: the languages share no names.
fn language(name: &str) -> &str {
    name.split_once('.').map_or("", |(_, extension)| extension)
}

#[test]
fn one_name_means_one_thing() {
    let lib = lib();
    let mut givers: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for (file, header) in &lib {
        for name in header.gives.c.iter().chain(&header.gives.jinja) {
            givers.entry((language(file), name)).or_default().push(file);
        }
    }
    assert!(givers.len() > 200, "few names: {}", givers.len());
    let several = givers
        .iter()
        .filter(|((_, name), files)| files.len() > 1 && !OF_A_TILE.contains(name) && !are_alternatives(files));
    let several: Vec<String> = several.map(|((_, name), files)| format!("`{name}`: {}", files.join(", "))).collect();
    assert!(several.is_empty(), "given by more than one file:\n{}", several.join("\n"));
}

/// The words of C in a file: without comments, and without tags and strings but for what is printed.
fn words(text: &str) -> BTreeSet<String> {
    let tags = regex::Regex::new(r"(?s)\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}").expect("a pattern");
    let rest = regex::Regex::new(r#"//[^\n]*|"[^"\n]*""#).expect("a pattern");
    let word = regex::Regex::new(r"[A-Za-z_]\w*").expect("a pattern");
    let code = tags.replace_all(text, "\0");
    let code = rest.replace_all(&code, "");
    let printed = tags.find_iter(text).map(|tag| tag.as_str()).filter(|tag| tag.starts_with("{{"));
    let all = printed.chain([&*code]).flat_map(|part| word.find_iter(part));
    all.map(|found| found.as_str().to_owned()).collect()
}

fn includes(text: &str) -> BTreeSet<String> {
    let include = regex::Regex::new(r#"\{% include "([^"]+)" %\}"#).expect("a pattern");
    include.captures_iter(text).map(|found| found[1].to_owned()).collect()
}

/// The files that front matter or a header uses.
fn uses(text: &str) -> BTreeSet<String> {
    let header = text.strip_prefix("{#").and_then(|rest| rest.split_once("#}")).expect("a comment").0;
    toml::from_str::<Header>(header).expect("checked when it is loaded").uses.into_iter().collect()
}

#[test]
fn a_kernel_includes_nothing_that_it_does_not_use() {
    let lib = lib();
    let mut unused = Vec::new();
    for (file, text) in files() {
        let mut words = words(&text);
        if text.contains("f32_from_{{") {
            words.insert("f32_from_f32".into());
        }
        if text.contains("f32_to_{{") {
            words.insert("f32_to_f32".into());
        }
        for included in includes(&text) {
            let gives = &lib[&included].gives;
            // Of alternatives it is their common includer's includers that use them.
            let is_alternative = ALTERNATIVES.iter().any(|group| group.contains(&included.as_str()));
            let is_for_others = FOR_INCLUDERS.contains(&(file.as_str(), included.as_str()));
            if !is_alternative && !is_for_others && !gives.c.iter().any(|name| words.contains(name)) {
                unused.push(format!("{file} includes {included}"));
            }
        }
    }
    assert!(unused.is_empty(), "and uses none of its names:\n{}", unused.join("\n"));
}

#[test]
fn a_file_of_the_library_is_shared() {
    let mut n_includers: BTreeMap<String, usize> = lib().into_keys().map(|name| (name, 0)).collect();
    for text in files().values() {
        for included in includes(text).union(&uses(text)) {
            *n_includers.get_mut(included).expect("it is in lib/") += 1;
        }
    }
    let is_lone = |(name, n): &(&String, &usize)| {
        **n < 2
            && !CHOOSERS.iter().any(|(_, folder)| name.starts_with(folder))
            && !ALTERNATIVES.iter().any(|group| group.contains(&name.as_str()))
            && !name.ends_with("/simulator.hip.j2")
    };
    let lone: Vec<&String> = n_includers.iter().filter(is_lone).map(|(name, _)| name).collect();
    assert!(lone.is_empty(), "a single kernel includes or uses {lone:?}: it can hold the text itself");
}
