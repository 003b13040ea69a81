//! Streams of events: `text/event-stream`, with a comment where nothing came for a while.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};

/// Nothing was sent for so long: proxies would begin to think that the connection is dead.
const QUIET: Duration = Duration::from_secs(15);

/// A response that sends these events as they come. The stream owns what it tells of: hyper drops it when the client
/// leaves.
pub fn response(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let keep_alive = KeepAlive::new().interval(QUIET).text("keep-alive");
    let events = events.map(Ok::<_, Infallible>);
    let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
