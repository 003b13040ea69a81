//! Log-probabilities as both chat APIs write them.

use serde_json::{Value, json};

use super::answer::Drawn;
use model::tokenizer::Tokenizer;

/// Told instead of minus infinity, which JSON does not have.
const LEAST: f32 = -9999.0;

/// `[{token, logprob, bytes, top_logprobs}]`. A token may be part of a character: `bytes` is the truth.
pub(crate) fn json(drawn: &[Drawn], tokenizer: &Tokenizer) -> Value {
    let one = |token: u32, logprob: f32| {
        let bytes = tokenizer.decode(token).unwrap_or_default();
        json!({"token": String::from_utf8_lossy(bytes), "logprob": logprob.max(LEAST), "bytes": bytes})
    };
    drawn
        .iter()
        .map(|drawn| {
            let mut entry = one(drawn.token, drawn.logprobs.chosen);
            entry["top_logprobs"] = drawn.logprobs.top.iter().map(|top| one(top.token, top.logprob)).collect();
            entry
        })
        .collect()
}
