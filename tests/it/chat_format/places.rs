//! Which places know what chat formats there are: those to touch for one more.

use regex::Regex;

use crate::architecture::ours;

/// Outside of the room of its own that a format may have. Before there was a trait there were 26, those that named
/// harmony outside of its room: 9 files of `serve`, 8 of `cli`, 4 of `batch` and 2 of `grammar` knew its messages, its
/// parser or its tokens, and 3 of the template's room its messages.
const PLACES: [&str; 2] = [
    "crates/chat/src/chat_format/mod.rs", // a `Word`, and an arm of `choose`
    "src/run/mod.rs",                     // the words of `--chat-format`
];

/// The folder of a format with what it does, and the room that does harmony's work; and what tells formats apart by
/// harmony's tokens or names what is repaired.
const ROOMS: [&str; 2] = ["crates/chat/src/harmony", "crates/chat/src/chat_format/"];

#[test]
fn only_their_room_and_a_flag_name_formats() {
    let format = Regex::new(r"(?-u)\bHarmony|\bharmony::|\bTemplateFormat\b").expect("a pattern");
    let parts = Regex::new(
        r"(?-u)\bcrate::harmony\b|\bHarmonyParser\b|\bChannel::|<\|(start|end|message|channel|constrain|call)\|>",
    )
    .expect("a pattern");
    let sources: Vec<_> = ours().collect();
    let outside = |path: &str| {
        let is_room =
            ROOMS.iter().any(|room| path.starts_with(room)) || path.starts_with("crates/model/src/tokenizer/");
        !is_room && !path.ends_with("/tests.rs")
    };
    let name = |pattern: &Regex| -> Vec<&str> {
        let found = sources.iter().filter(|source| pattern.is_match(&source.code) && outside(&source.path));
        found.map(|source| source.path.as_str()).collect()
    };
    assert_eq!(name(&format), PLACES[1..], "who names a format");
    // Examples in words for people.
    assert_eq!(name(&parts), ["crates/serve/src/replay.rs"], "who names what harmony is made of");
    let chooses = sources.iter().filter(|source| source.code.contains("TemplateFormat::new"));
    assert_eq!(chooses.map(|source| source.path.as_str()).collect::<Vec<_>>(), PLACES[..1], "who chooses");
}
