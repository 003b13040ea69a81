//! OpenAI's `o200k_harmony`, which is built in.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::vocabulary::Vocabulary;

/// `tiktoken` in Python knows this token by a second name besides `<|reserved_200018|>`; `tiktoken-rs` does not.
const END_OF_PROMPT: (&str, u32) = ("<|endofprompt|>", 200_018);

/// The vocabulary, made once in a process.
pub(super) fn vocabulary() -> Arc<Vocabulary> {
    static VOCABULARY: OnceLock<Arc<Vocabulary>> = OnceLock::new();
    VOCABULARY.get_or_init(|| Arc::new(built_in())).clone()
}

fn built_in() -> Vocabulary {
    let piece = |id| Bytes::from_static(o200k::piece(id).expect("ids have no gaps"));
    let pieces: Vec<Bytes> = (0..o200k::N_TOKENS).map(piece).collect();
    let specials = (o200k::FIRST_SPECIAL..o200k::N_TOKENS).map(|id| (piece(id), id));
    let (name, id) = END_OF_PROMPT;
    Vocabulary::built_in(pieces, o200k::id, specials.chain([(Bytes::from_static(name.as_bytes()), id)]))
}
