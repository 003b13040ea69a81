//! The page at `/`, which chats through this API. It is one file and asks nobody else for anything.

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

use super::Server;

const PAGE: &str = include_str!("page.html");

pub(super) fn router() -> Router<Arc<Server>> {
    Router::new().route("/", get(page))
}

async fn page() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CACHE_CONTROL, "no-cache")], PAGE)
}
