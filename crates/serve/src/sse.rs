//! Streams of events: `text/event-stream`, with a comment after a time without events.
//!
//! Every token of every stream may be an event, so events are written once, in the form that goes over the wire, and
//! events that are ready together are sent together.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use hyper::body::Frame;
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, Sleep, sleep};

/// Nothing was sent for so long: proxies would begin to think that the connection is dead.
const QUIET: Duration = Duration::from_secs(15);

const KEEP_ALIVE: &str = ": keep-alive\n\n";

/// One event or several, as they are sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Event(String);

/// An event that is not written yet, by its name.
pub(crate) type NamedEvent = (&'static str, Value);

impl Event {
    /// An event of this text, which has no line breaks.
    pub(crate) fn data(text: &str) -> Self {
        Self(format!("data: {text}\n\n"))
    }

    pub(crate) fn named(kind: &str, data: &Value) -> Self {
        Self(format!("event: {kind}\ndata: {data}\n\n"))
    }

    /// Those that are ready, which are taken, if there are any.
    pub(crate) fn of_ready(ready: &mut Vec<NamedEvent>) -> Option<Self> {
        let mut events = Self::default();
        ready.drain(..).for_each(|(kind, event)| events.push(&Self::named(kind, &event)));
        (!events.is_empty()).then_some(events)
    }

    /// Has another one come after.
    pub(crate) fn push(&mut self, next: &Self) {
        self.0.push_str(&next.0);
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A response that sends these events as they come. The stream owns what it tells of: hyper drops it when the client
/// leaves.
pub(crate) fn response(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let mut response = Body::new(Events::new(events, QUIET)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct Events<S> {
    /// None after the last.
    events: Option<Pin<Box<S>>>,
    /// Ends when it is to be looked whether nothing came for a while: it is not set anew for every event.
    quiet: Pin<Box<Sleep>>,
    quiet_for: Duration,
    sent: Instant,
}

impl<S> Events<S> {
    fn new(events: S, quiet_for: Duration) -> Self {
        Self { events: Some(Box::pin(events)), quiet: Box::pin(sleep(quiet_for)), quiet_for, sent: Instant::now() }
    }
}

impl<S: Stream<Item = Event>> HttpBody for Events<S> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(events) = &mut self.events else { return Poll::Ready(None) };
        match events.as_mut().poll_next(context) {
            Poll::Ready(Some(Event(text))) => {
                self.sent = Instant::now();
                return Poll::Ready(Some(Ok(Frame::data(text.into()))));
            }
            Poll::Ready(None) => {
                self.events = None;
                return Poll::Ready(None);
            }
            Poll::Pending => {}
        }
        loop {
            ready!(self.quiet.as_mut().poll(context));
            let (now, due) = (Instant::now(), self.sent + self.quiet_for);
            if due <= now {
                self.sent = now;
            }
            let next = self.sent + self.quiet_for;
            self.quiet.as_mut().reset(next);
            if due <= now {
                return Poll::Ready(Some(Ok(Frame::data(KEEP_ALIVE.into()))));
            }
        }
    }
}

/// The fields that all chunks of an answer begin with, written once: there is a chunk for every token.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// The object, less the brace that ends it.
    text: String,
}

/// What a chunk of one token has after its head.
const USUAL_BYTES: usize = 160;

impl Head {
    /// These fields, of which there is one at least.
    pub(crate) fn new(fields: &Value) -> Self {
        let mut text = fields.to_string();
        text.pop();
        Self { text }
    }

    /// One object of these fields and those of `rest`, which has one at least too.
    pub(crate) fn with(&self, rest: &impl Serialize) -> String {
        self.between("", rest, "")
    }

    /// The same as an event.
    pub(crate) fn event(&self, rest: &impl Serialize) -> Event {
        Event(self.between("data: ", rest, "\n\n"))
    }

    fn between(&self, before: &str, rest: &impl Serialize, behind: &str) -> String {
        let mut text = Vec::with_capacity(self.text.len() + USUAL_BYTES);
        text.extend_from_slice(before.as_bytes());
        text.extend_from_slice(self.text.as_bytes());
        let begin = text.len();
        serde_json::to_writer(&mut text, rest).expect("memory takes all, and maps have strings for keys");
        text[begin] = b',';
        text.extend_from_slice(behind.as_bytes());
        String::from_utf8(text).expect("JSON is text")
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::{StreamExt, stream};
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
            assert_eq!(head.event(&rest), Event::data(&head.with(&rest)));
        }
    }

    #[test]
    fn a_body_has_all_events_and_says_something_where_none_comes() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (tell, told) = tokio::sync::oneshot::channel::<()>();
            let event = |n: u32| Event::named("e", &json!({"n": n}));
            let second = stream::once(async move {
                told.await.unwrap();
                event(2)
            });
            let mut body = Events::new(stream::iter([event(1)]).chain(second), Duration::from_millis(1));
            let mut tell = Some(tell);
            let mut got = Vec::new();
            while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
                let text = String::from_utf8(frame.unwrap().into_data().unwrap().to_vec()).unwrap();
                if text == KEEP_ALIVE {
                    tell.take().map(|tell| tell.send(()));
                }
                got.push(text);
            }
            got.dedup();
            let event = |n: u32| format!("event: e\ndata: {{\"n\":{n}}}\n\n");
            assert_eq!(got, [event(1), KEEP_ALIVE.to_owned(), event(2)]);
        });
    }
}
