//! `GET /health`, `/ping`, `/version` and `/metrics`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::Server;
use super::backend::Health;
use super::error::ApiError;

pub(super) fn router() -> Router<Arc<Server>> {
    Router::new()
        .route("/health", get(health))
        .route("/ping", get(health))
        .route("/version", get(version))
        .route("/metrics", get(metrics))
}

async fn health(State(server): State<Arc<Server>>) -> Result<Json<Value>, ApiError> {
    match server.backend.health() {
        Health::Ok => Ok(Json(json!({ "status": "ok" }))),
        Health::Degraded { n_up: 0, .. } => Err(ApiError::restarting()),
        Health::Degraded { n_up, n } => Ok(Json(json!({ "status": "degraded", "replicas": n, "replicas_up": n_up }))),
        Health::ShuttingDown => {
            let wait = Some(Duration::from_secs(1));
            Err(ApiError::unavailable("shutting_down", "the server is shutting down", wait))
        }
        Health::Stalled(how_long) => {
            let message = format!("the engine has work and did nothing for {} s", how_long.as_secs());
            Err(ApiError::unavailable("engine_stalled", message, None))
        }
        Health::Failed(why) => Err(ApiError::unavailable("engine_failed", format!("the engine failed: {why}"), None)),
    }
}

async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}

async fn metrics(State(server): State<Arc<Server>>) -> Response {
    let model = server.check_model(None).unwrap_or_default();
    let (prefix, backend) = (&server.options.metrics_prefix, &server.backend);
    let text = server.metrics.text(prefix, &model, &backend.figures(), &backend.replicas());
    const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, TYPE)], text).into_response()
}
