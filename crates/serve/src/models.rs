//! `GET /v1/models` and `/v1/models/{id}`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::Server;
use super::error::ApiError;

pub(super) fn router() -> Router<Arc<Server>> {
    Router::new().route("/models", get(list)).route("/models/{*id}", get(one))
}

async fn list(State(server): State<Arc<Server>>) -> Json<Value> {
    let all: Vec<Value> = server.options.model_names.iter().map(|name| model(&server, name)).collect();
    Json(json!({ "object": "list", "data": all }))
}

/// The id may have slashes.
async fn one(State(server): State<Arc<Server>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let id = server.check_model(Some(&id))?;
    Ok(Json(model(&server, &id)))
}

fn model(server: &Server, id: &str) -> Value {
    let facts = server.backend.model();
    json!({
        "id": id,
        "object": "model",
        "created": facts.created,
        "owned_by": "openai",
        "max_model_len": facts.context_tokens,
    })
}
