//! Lists the files of `templates/`, `tuning/`, `models/` and `chats/` so that they can be embedded with `include_str!`:
//! a new template is one new file and no line of Rust.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../..");
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    for folder in ["templates", "tuning", "models", "chats"] {
        println!("cargo::rerun-if-changed=../../{folder}");
        let mut files = Vec::new();
        walk(&root.join(folder), &mut files);
        files.sort();
        let mut list = String::from("&[\n");
        for file in &files {
            println!("cargo::rerun-if-changed={}", file.display());
            let name = file.strip_prefix(root.join(folder)).expect("walked from there");
            list += &format!("    ({:?}, include_str!({:?})),\n", name, file);
        }
        list += "]\n";
        let file = out.join(format!("{folder}.rs"));
        let _ = fs::remove_file(&file); // it may have another name: a copied target folder made of links
        fs::write(file, list).expect("OUT_DIR is writable");
    }
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            println!("cargo::rerun-if-changed={}", path.display());
            walk(&path, files);
        } else if matches!(path.extension().and_then(|e| e.to_str()), Some("j2" | "toml")) {
            files.push(path);
        }
    }
}
