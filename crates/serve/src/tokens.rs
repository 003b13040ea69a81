//! `POST /tokenize` and `/detokenize`, in llama.cpp's shapes and in vLLM's.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::post;
use axum::{Extension, Json as Answer, Router};
use serde_json::{Value, json};

use super::Server;
use super::body::{Json, PromptBody};
use super::chat::prompt_of;
use super::error::ApiError;
use super::field::Field;
use super::keys::Caller;

pub(super) fn router() -> Router<Arc<Server>> {
    Router::new().route("/tokenize", post(tokenize)).route("/detokenize", post(detokenize))
}

/// Names of special tokens are these tokens, unless `parse_special` is false.
///
/// With `prompt` or `messages` it is vLLM's: the tokens of a text, or of a chat's prompt, and how many they are.
///
/// A `prompt` has the tokens that prompts begin with unless `add_special_tokens` is false; a `content`, which is
/// llama.cpp's, has them if `add_special` is true.
async fn tokenize(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    Json(body): Json<Value>,
) -> Result<Answer<Value>, ApiError> {
    let asked = Field::body(&body)?;
    let flag = |name, absent| asked.get(name).map_or(Ok(absent), |field| field.flag());
    let begun = |ids, adds| if adds { server.tokenizer.begun(ids) } else { ids };
    if asked.get("messages").is_some() || asked.get("prompt").is_some() {
        let wants_texts = flag("return_token_strs", false)?;
        let ids = match asked.get("prompt") {
            Some(prompt) => {
                let adds = flag("add_special_tokens", true)?;
                begun(server.encode(prompt.text()?.to_owned(), true, "prompt").await?, adds)
            }
            None => prompt_of(&server, caller, &body).await?.1,
        };
        let texts = |ids: &[u32]| ids.iter().map(|&id| piece(&server, id)).collect::<Result<Vec<Value>, _>>();
        let texts = wants_texts.then(|| texts(&ids)).transpose()?;
        return Ok(Answer(json!({
            "count": ids.len(),
            "max_model_len": server.backend.model().context_tokens,
            "tokens": ids,
            "token_strs": texts,
        })));
    }
    let (parse_special, with_pieces) = (flag("parse_special", true)?, flag("with_pieces", false)?);
    let adds = flag("add_special", false)?;
    let ids = server.encode(asked.need("content")?.text()?.to_owned(), parse_special, "content").await?;
    let ids = begun(ids, adds);
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
    let tokens = body.tokens.ok_or_else(|| ApiError::missing("tokens"))?;
    let bytes = server.tokenizer.text_of(&tokens);
    let bytes = bytes.map_err(|error| ApiError::invalid("tokens", error.to_string()))?;
    // llama.cpp's name of it, and vLLM's.
    let text = String::from_utf8_lossy(&bytes);
    Ok(Answer(json!({ "content": text, "prompt": text })))
}

/// What `/apply-template` answers for the prompt of a chat: its text, special tokens spelled, and the ids that would
/// run.
pub(crate) fn applied(server: &Server, ids: &[u32]) -> Result<Answer<Value>, ApiError> {
    let bytes = server.tokenizer.decode_all(ids).map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(Answer(json!({ "prompt": String::from_utf8_lossy(&bytes), "token_ids": ids })))
}
