//! `GET /health`, `/ping`, `/version` and `/metrics`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::Server;
use super::backend::Health;
use super::error::ApiError;
use super::metrics::Metrics;

pub(super) fn router() -> Router<Arc<Server>> {
    Router::new()
        .route("/health", get(health))
        .route("/ping", get(health))
        .route("/health_generate", get(health))
        .route("/version", get(version))
        .route("/metrics", get(metrics))
}

async fn health(State(server): State<Arc<Server>>) -> Result<Json<Value>, ApiError> {
    match server.backend.health() {
        Health::Ok => Ok(Json(json!({ "status": "ok" }))),
        Health::Unloaded => Ok(Json(json!({ "status": "unloaded" }))),
        Health::Loading => Ok(Json(json!({ "status": "loading" }))),
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

/// Whether there is a model, for `model_state`.
fn state(health: &Health) -> &'static str {
    match health {
        Health::Unloaded => "unloaded",
        Health::Loading => "loading",
        _ => "loaded",
    }
}

/// `OpenMetrics`, unless another text is all that is asked for.
async fn metrics(State(server): State<Arc<Server>>, headers: HeaderMap) -> Response {
    let model = server.check_model(None).unwrap_or_default();
    let (prefix, backend) = (&server.options.metrics_prefix, &server.backend);
    let text = server.metrics.text(prefix, &model, state(&backend.health()), &backend.figures(), &backend.replicas());
    const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";
    let accepted = headers.get(header::ACCEPT).map(|types| String::from_utf8_lossy(types.as_bytes()).into_owned());
    let is_plain = accepted.is_some_and(|types| types.contains("text/plain") && !types.contains("openmetrics"));
    if is_plain {
        return ([(header::CONTENT_TYPE, PLAIN)], Metrics::plain(&text)).into_response();
    }
    ([(header::CONTENT_TYPE, TYPE)], text).into_response()
}
