//! `POST /tokenize` and `/detokenize`, in llama.cpp's shapes.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::post;
use axum::{Json as Answer, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Server;
use super::body::{FromBody, Json};
use super::error::ApiError;

pub(super) fn router() -> Router<Arc<Server>> {
    Router::new().route("/tokenize", post(tokenize)).route("/detokenize", post(detokenize))
}

#[derive(Deserialize)]
struct Tokenize {
    content: String,
    parse_special: Option<bool>,
    with_pieces: Option<bool>,
}

impl FromBody for Tokenize {}

/// Names of special tokens are these tokens, unless `parse_special` is false.
async fn tokenize(State(server): State<Arc<Server>>, Json(asked): Json<Tokenize>) -> Result<Answer<Value>, ApiError> {
    let ids = server.encode(asked.content, asked.parse_special.unwrap_or(true), "content").await?;
    if !asked.with_pieces.unwrap_or(false) {
        return Ok(Answer(json!({ "tokens": ids })));
    }
    let pieces = ids.iter().map(|&id| Ok(json!({ "id": id, "piece": piece(&server, id)? })));
    Ok(Answer(json!({ "tokens": pieces.collect::<Result<Vec<Value>, ApiError>>()? })))
}

/// The text of a token; its bytes, where these are not whole characters.
fn piece(server: &Server, id: u32) -> Result<Value, ApiError> {
    let bytes = server.tokenizer.decode(id).map_err(|error| ApiError::invalid("tokens", error.to_string()))?;
    Ok(str::from_utf8(bytes).map_or_else(|_| json!(bytes), |text| json!(text)))
}

#[derive(Deserialize)]
struct Detokenize {
    tokens: Vec<u32>,
}

impl FromBody for Detokenize {
    const NUMBER_BYTES: usize = 2 * size_of::<u32>(); // in a list that may be half empty
}

async fn detokenize(
    State(server): State<Arc<Server>>,
    Json(asked): Json<Detokenize>,
) -> Result<Answer<Value>, ApiError> {
    let bytes = server.tokenizer.text_of(&asked.tokens);
    let bytes = bytes.map_err(|error| ApiError::invalid("tokens", error.to_string()))?;
    Ok(Answer(json!({ "content": String::from_utf8_lossy(&bytes) })))
}

/// What `/apply-template` answers for the prompt of a chat: its text, special tokens spelled, and the ids that would
/// run.
pub(crate) fn applied(server: &Server, ids: &[u32]) -> Result<Answer<Value>, ApiError> {
    let bytes = server.tokenizer.decode_all(ids).map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(Answer(json!({ "prompt": String::from_utf8_lossy(&bytes), "token_ids": ids })))
}
