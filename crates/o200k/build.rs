//! Copies the tokens from `tiktoken-rs`, in the layout that `src/lib.rs` reads. Unpacking them at run time takes that
//! crate longer than everything else in a short command. Its encoder panics on text on which its regular expression
//! backtracks too far, and cannot encode bytes that are not UTF-8.

use std::path::PathBuf;
use std::{env, fs};

#[path = "src/hash.rs"]
mod hash;

/// Ordinary tokens, then special and reserved ones.
const N_TOKENS: u32 = 201_088;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/hash.rs");
    let encoding = tiktoken_rs::o200k_harmony().expect("the vocabulary is whole");
    let specials = encoding.special_tokens();
    let mut bytes = Vec::new();
    let mut ends = Vec::new();
    let mut slots = vec![u32::MAX; hash::N_SLOTS];
    let mut first_special = None;
    for id in 0..N_TOKENS {
        let token = encoding.decode_bytes(&[id]).expect("ids have no gaps");
        let is_special = str::from_utf8(&token).is_ok_and(|name| specials.contains(name));
        first_special = first_special.or(is_special.then_some(id));
        assert_eq!(is_special, first_special.is_some(), "special tokens come last");
        let mut slot = hash::first_slot(&token);
        while slots[slot] != u32::MAX {
            slot = hash::next_slot(slot);
        }
        slots[slot] = id;
        bytes.extend(token);
        ends.push(u32::try_from(bytes.len()).expect("fewer than 2^32 bytes"));
    }
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    let write = |name: &str, bytes: &[u8]| {
        let file = out.join(name);
        let _ = fs::remove_file(&file); // it may have another name: a copied target folder made of links
        fs::write(file, bytes).expect("OUT_DIR is writable");
    };
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    write("bytes", &bytes);
    write("ends", &words(&ends));
    write("slots", &words(&slots));
    write("first_special", first_special.expect("there are some").to_string().as_bytes());
}
