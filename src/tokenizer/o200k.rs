//! OpenAI's `o200k_harmony`, which `tiktoken-rs` carries.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::vocabulary::{ByteNames, Token, TokenKind, Vocabulary};

/// Ordinary tokens, then special and reserved ones.
const VOCAB_SIZE: u32 = 201_088;

/// `tiktoken` in Python knows this token by a second name besides `<|reserved_200018|>`; `tiktoken-rs` does not.
const END_OF_PROMPT: (&str, u32) = ("<|endofprompt|>", 200_018);

/// The vocabulary, unpacked once in a process.
pub(super) fn vocabulary() -> Arc<Vocabulary> {
    static VOCABULARY: OnceLock<Arc<Vocabulary>> = OnceLock::new();
    VOCABULARY.get_or_init(|| Arc::new(unpack())).clone()
}

/// Takes over the tokens one by one. The encoder of `tiktoken-rs` is not kept: it panics on text on which its regular
/// expression backtracks too far, and it cannot encode bytes that are not UTF-8.
fn unpack() -> Vocabulary {
    let encoding = tiktoken_rs::o200k_harmony().expect("the built-in vocabulary is whole");
    let specials = encoding.special_tokens();
    let mut bytes = Vec::new();
    let mut ends = Vec::with_capacity(VOCAB_SIZE as usize);
    for id in 0..VOCAB_SIZE {
        bytes.extend(encoding.decode_bytes(&[id]).expect("ids have no gaps"));
        ends.push(bytes.len());
    }
    let bytes = Bytes::from(bytes);
    let mut tokens = Vec::with_capacity(ends.len());
    let (mut start, mut longest) = (0, 0);
    for end in ends {
        let token = bytes.slice(start..end);
        let is_special = str::from_utf8(&token).is_ok_and(|name| specials.contains(name));
        tokens.push(Token { bytes: token, kind: if is_special { TokenKind::Special } else { TokenKind::Ordinary } });
        longest = longest.max(end - start);
        start = end;
    }
    let mut vocabulary = Vocabulary::new(tokens, longest, ByteNames::Literal);
    let (name, id) = END_OF_PROMPT;
    vocabulary.add_special(Bytes::from_static(name.as_bytes()), id);
    vocabulary
}
