//! Streams of events: `text/event-stream`, with a comment where nothing came for a while.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use serde::Serialize;
use serde_json::Value;

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

/// The fields that all chunks of an answer begin with, written once: there is a chunk for every token.
#[derive(Clone, Debug)]
pub struct Head {
    /// The object, less the brace that ends it.
    text: String,
}

impl Head {
    /// These fields, of which there is one at least.
    pub fn new(fields: &Value) -> Self {
        let mut text = fields.to_string();
        text.pop();
        Self { text }
    }

    /// One object of these fields and those of `rest`, which has one at least too.
    pub fn with(&self, rest: &impl Serialize) -> String {
        let mut text = self.text.clone().into_bytes();
        let begin = text.len();
        serde_json::to_writer(&mut text, rest).expect("memory takes all, and maps have strings for keys");
        text[begin] = b',';
        String::from_utf8(text).expect("JSON is text")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_chunk_is_one_object_of_its_head_and_the_rest() {
        let head = Head::new(&json!({"id": "a\"}", "created": 3}));
        for rest in [json!({"choices": []}), json!({"choices": [{"text": "é}"}], "usage": null})] {
            let chunk: Value = serde_json::from_str(&head.with(&rest)).expect("JSON");
            let mut want = json!({"id": "a\"}", "created": 3});
            want.as_object_mut().expect("an object").extend(rest.as_object().expect("an object").clone());
            assert_eq!(chunk, want);
        }
    }
}
