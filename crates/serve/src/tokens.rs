//! `POST /tokenize` and `/detokenize`, in llama.cpp's shapes.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::post;
use axum::{Json as Answer, Router};
use serde_json::{Value, json};

use super::Server;
use super::body::{Json, PromptBody};
use super::error::ApiError;
use super::field::Field;
use super::prompts::{Prompt, Prompts};

pub(super) fn router() -> Router<Arc<Server>> {
    Router::new().route("/tokenize", post(tokenize)).route("/detokenize", post(detokenize))
}

/// Names of special tokens are these tokens, unless `parse_special` is false.
async fn tokenize(State(server): State<Arc<Server>>, Json(body): Json<Value>) -> Result<Answer<Value>, ApiError> {
    let asked = Field::body(&body)?;
    let flag = |name, absent| asked.get(name).map_or(Ok(absent), |field| field.flag());
    let (parse_special, with_pieces) = (flag("parse_special", true)?, flag("with_pieces", false)?);
    let ids = server.encode(asked.need("content")?.text()?.to_owned(), parse_special, "content").await?;
    if !with_pieces {
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

async fn detokenize(
    State(server): State<Arc<Server>>,
    Json(body): Json<PromptBody>,
) -> Result<Answer<Value>, ApiError> {
    let Prompts(tokens) = body.tokens.ok_or_else(|| ApiError::missing("tokens"))?;
    let [Prompt::Ids(tokens)] = tokens.as_slice() else {
        return Err(ApiError::invalid("tokens", "`tokens` should be a list of token ids"));
    };
    let bytes = server.tokenizer.decode_all(tokens);
    let bytes = bytes.map_err(|error| ApiError::invalid("tokens", error.to_string()))?;
    Ok(Answer(json!({ "content": String::from_utf8_lossy(&bytes) })))
}

/// What `/apply-template` answers for the prompt of a chat: its text, special tokens spelled, and the ids that would
/// run.
pub(crate) fn applied(server: &Server, ids: &[u32]) -> Result<Answer<Value>, ApiError> {
    let bytes = server.tokenizer.decode_all(ids).map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(Answer(json!({ "prompt": String::from_utf8_lossy(&bytes), "token_ids": ids })))
}
