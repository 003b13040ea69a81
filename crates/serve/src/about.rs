//! Endpoints of other servers for routers, test harnesses and benchmarks: the server, its load, its tokenizer, and a
//! chat's tokens.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde_json::{Value, json};

use super::Server;
use super::body;
use super::chat::prompt_of;
use super::error::ApiError;
use super::keys::Caller;

pub(super) fn router() -> Router<Arc<Server>> {
    Router::new()
        .route("/server_info", get(server_info))
        .route("/get_server_info", get(server_info))
        .route("/model_info", get(model_info))
        .route("/get_model_info", get(model_info))
        .route("/get_load", get(load))
        .route("/load", get(load_of_all))
        .route("/tokenizer_info", get(tokenizer_info))
        .route("/chat/completions/render", post(render))
}

fn name(server: &Server) -> String {
    server.check_model(None).unwrap_or_default()
}

/// `SGLang`'s: routers read the model's name, the longest sequence and how much may wait.
async fn server_info(State(server): State<Arc<Server>>) -> Json<Value> {
    let (facts, replicas) = (server.backend.model(), server.backend.replicas().len().max(1));
    Json(json!({
        "model_path": name(&server),
        "served_model_name": name(&server),
        "tokenizer_path": name(&server),
        "version": env!("CARGO_PKG_VERSION"),
        "context_length": facts.context_tokens,
        "max_running_requests": facts.most_answers,
        "dp_size": replicas,
        "vocab_size": facts.vocab_size,
    }))
}

async fn model_info(State(server): State<Arc<Server>>) -> Json<Value> {
    Json(json!({
        "model_path": name(&server),
        "tokenizer_path": name(&server),
        "is_generation": true,
        "max_model_len": server.backend.model().context_tokens,
        "has_chat_format": server.chat.is_ok(),
    }))
}

/// `SGLang`'s: an element for each copy of the model.
async fn load(State(server): State<Arc<Server>>) -> Json<Value> {
    let one = |rank: usize, running: usize, waiting: usize| json!({"dp_rank": rank, "num_reqs": running + waiting, "num_running_reqs": running, "num_waiting_reqs": waiting});
    let replicas = server.backend.replicas();
    let each = replicas.iter().enumerate().map(|(rank, of)| one(rank, of.running, of.waiting));
    let figures = server.backend.figures();
    Json(if replicas.is_empty() { json!([one(0, figures.running, figures.waiting)]) } else { each.collect() })
}

/// vLLM's: requests that are here.
async fn load_of_all(State(server): State<Arc<Server>>) -> Json<Value> {
    let figures = server.backend.figures();
    Json(json!({"server_load": figures.running + figures.waiting}))
}

/// What harnesses that have no tokenizer of their own ask.
async fn tokenizer_info(State(server): State<Arc<Server>>) -> Json<Value> {
    let spelled = |id: &u32| server.tokenizer.decode(*id).ok().map(|name| String::from_utf8_lossy(name).into_owned());
    let (bos, eos) = (server.tokenizer.begun(Vec::new()), server.ends.first().and_then(spelled));
    Json(json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos.first().and_then(spelled),
        "eos_token": eos,
        "pad_token": eos,
        "eos_token_ids": server.ends,
        "chat_template": null,
        "model_max_length": server.backend.model().context_tokens,
        "vocab_size": server.backend.model().vocab_size,
    }))
}

/// vLLM's: what a chat would run as.
async fn render(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    body::Json(body): body::Json<Value>,
) -> Result<Json<Value>, ApiError> {
    let model = server.check_model(body["model"].as_str())?;
    let (sampling, ids) = prompt_of(&server, caller, &body).await?;
    let text = server.tokenizer.decode_all(&ids).map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(Json(json!({
        "request_id": server.ids.next("chatcmpl-"),
        "model": model,
        "token_ids": ids,
        "prompt_text": String::from_utf8_lossy(&text),
        "token_offsets": null,
        "features": null,
        "sampling_params": sampling,
    })))
}
