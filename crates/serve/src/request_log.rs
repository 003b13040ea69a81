//! Wraps every HTTP request: gives it an id and a line in the log, and answers even if the handler panics.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::OwnedSemaphorePermit;

use super::Server;
use super::error::ApiError;
use super::keys::Caller;
use super::mailbox::{Ending, Failed, Times};
use super::page::is_page;
use super::watched_body::{Watched, Watcher};
use engine::scheduler::FinishReason;

/// The header that has a request's id.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

tokio::task_local! {
    /// The HTTP request that a handler works at.
    static RECORD: Arc<Record>;
}

/// What is known of an HTTP request, for its line in the log.
#[derive(Debug)]
pub(super) struct Record {
    pub(crate) id: String,
    method: Method,
    path: String,
    begin: Instant,
    /// Whether it is a line of a batch.
    pub(crate) is_background: bool,
    known: Mutex<RequestFacts>,
}

#[derive(Debug, Default)]
struct RequestFacts {
    /// None as long as no head was sent.
    status: Option<StatusCode>,
    code: Option<&'static str>,
    /// Whether the body was sent to its end.
    is_whole: bool,
    caller: Caller,
    n_generations: usize,
    prompt_tokens: usize,
    cached_tokens: usize,
    tokens: usize,
    queue_s: Option<f64>,
    first_token_s: Option<f64>,
    decode_s: f64,
    reason: Option<&'static str>,
    body_bytes: usize,
    /// The room that a long body has, until it is a prompt.
    body: Option<OwnedSemaphorePermit>,
    /// The place among the requests of its key, if these are counted.
    place: Option<OwnedSemaphorePermit>,
}

/// Whether this code works for a line of a batch.
pub(crate) fn is_background() -> bool {
    RECORD.try_with(|record| record.is_background).unwrap_or(false)
}

impl Record {
    /// That of the HTTP request which this code works for.
    pub(crate) fn current() -> Option<Arc<Self>> {
        RECORD.try_with(Arc::clone).ok()
    }

    pub(crate) fn caller(&self) -> Caller {
        self.known().caller
    }

    pub(crate) fn set_caller(&self, caller: Caller) {
        self.known().caller = caller;
    }

    /// Holds its place among the requests of its key until it ends.
    pub(crate) fn hold(&self, place: Option<OwnedSemaphorePermit>) {
        self.known().place = place;
    }

    /// Its body was read, and has room for so long as it is not a prompt.
    pub(crate) fn keep_body(&self, n_bytes: usize, room: Option<OwnedSemaphorePermit>) {
        let mut known = self.known();
        (known.body_bytes, known.body) = (n_bytes, room);
    }

    /// The body of the HTTP request that this code works for is a prompt now, and needs no room.
    pub(crate) fn drop_body() {
        if let Some(record) = Self::current() {
            record.known().body = None;
        }
    }

    /// How long its body was.
    pub(crate) fn body_bytes(&self) -> usize {
        self.known().body_bytes
    }

    /// Adds the result of a generation.
    pub(crate) fn add(&self, n_prompt: usize, cached_tokens: Option<usize>, times: &Times, ending: Option<&Ending>) {
        let seconds = |from: Instant, to: Option<Instant>| to.map(|to| (to - from).as_secs_f64());
        let later = |one: Option<f64>, other: Option<f64>| one.into_iter().chain(other).reduce(f64::max);
        let mut known = self.known();
        known.n_generations += 1;
        known.prompt_tokens += n_prompt;
        known.cached_tokens += cached_tokens.unwrap_or(0);
        known.tokens += times.n_tokens;
        known.queue_s = later(known.queue_s, seconds(times.submitted, times.admitted));
        known.first_token_s = later(known.first_token_s, seconds(times.submitted, times.first_token));
        let decode_s = times.first_token.and_then(|first| seconds(first, times.last_token));
        known.decode_s = known.decode_s.max(decode_s.unwrap_or(0.0));
        known.reason = Some(match ending {
            None | Some(Ending::Finished(FinishReason::Cancelled)) => "cancelled",
            Some(Ending::Finished(FinishReason::Stop)) => "stop",
            Some(Ending::Finished(FinishReason::Length)) => "length",
            Some(Ending::Failed(Failed::Engine(_))) => "engine_failed",
            Some(Ending::Failed(Failed::NoMemory(_))) => "out_of_memory",
            Some(Ending::Failed(Failed::Load(_))) => "load_failed",
            Some(Ending::Failed(Failed::ShuttingDown)) => "shutting_down",
            Some(Ending::Failed(Failed::QueueTimeout(_) | Failed::RequestTimeout(_))) => "timeout",
        });
    }

    fn known(&self) -> std::sync::MutexGuard<'_, RequestFacts> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is being answered; the line is written when it is dropped: with the last of the body, or when hyper
/// drops the handler since the client left.
struct OpenRequest {
    server: Arc<Server>,
    record: Arc<Record>,
    /// Counted while the program waits for its requests to end.
    _open: Arc<()>,
}

impl Watcher for OpenRequest {
    fn is_whole(&self) {
        self.record.known().is_whole = true;
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let Record { id, method, path, begin, known, .. } = &*self.record;
        let known = known.lock().unwrap_or_else(PoisonError::into_inner);
        // The head may have been sent with 200: a client that left before the end is counted as one that left.
        let status = match known.status {
            Some(status) if known.is_whole || *method == Method::HEAD || !status.is_success() => status.as_u16(),
            _ => CLIENT_LEFT,
        };
        self.server.metrics.responded(status);
        let seconds = begin.elapsed().as_secs_f64();
        let (method, path, code) = (shown(method.as_str()), shown(path), known.code);
        if known.n_generations == 0 {
            match is_unlogged(&self.record.path) {
                true => tracing::debug!(id, method, path, status, code, seconds, "request"),
                false => tracing::info!(id, method, path, status, code, seconds, "request"),
            }
            return;
        }
        let tok_per_s = (known.decode_s > 0.0)
            .then(|| (known.tokens - known.n_generations.min(known.tokens)) as f64)
            .map(|tokens| tokens / known.decode_s);
        let RequestFacts { prompt_tokens, cached_tokens, tokens, queue_s, first_token_s, reason, .. } = *known;
        tracing::info!(
            id,
            method,
            path,
            status,
            code,
            reason,
            prompt_tokens,
            cached_tokens,
            tokens,
            queue_s,
            first_token_s,
            tok_per_s,
            seconds,
            "request"
        );
    }
}

/// A word of a request's first line, as far as the log has it: a client may write anything there.
fn shown(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// What nginx calls a client that closed the connection.
pub(super) const CLIENT_LEFT: u16 = 499;

/// Probes come all day, and a page's files with the page.
fn is_unlogged(path: &str) -> bool {
    let is_probe = ["/health", "/v1/health", "/ping", "/metrics", "/v1/metrics"].contains(&path);
    is_probe || (path != "/" && is_page(path))
}

/// Around every handler.
pub(super) async fn track(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let id = own_id(&request).unwrap_or_else(|| server.ids.next("req_"));
    let record = Arc::new(Record {
        id,
        method: request.method().clone(),
        path: request.uri().path().to_owned(),
        begin: Instant::now(),
        is_background: false,
        known: Mutex::default(),
    });
    let entry = OpenRequest { record: record.clone(), _open: server.open.clone(), server };
    let answered = RECORD.scope(record.clone(), caught(next.run(request))).await;
    let mut response = answered.unwrap_or_else(|why| {
        tracing::error!(id = record.id, why, "a handler panicked");
        ApiError::internal("an error in the server; its log has details").into_response()
    });
    if let Ok(id) = HeaderValue::from_str(&record.id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    let mut known = record.known();
    known.status = Some(response.status());
    known.code = response.extensions().get::<Arc<ApiError>>().map(|error| error.code.unwrap_or(error.kind));
    drop(known);
    let length = response.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    response.map(|body| Body::new(Watched::new(body, entry).of_length(length)))
}

/// Has a handler answer a line of a batch, as it would answer an HTTP request of this caller.
pub(super) async fn in_background<F>(id: String, path: &str, caller: Caller, answer: F) -> Response
where
    F: Future<Output = Response>,
{
    let known = Mutex::new(RequestFacts { caller, ..RequestFacts::default() });
    let (method, path, begin) = (Method::POST, path.to_owned(), Instant::now());
    let record = Arc::new(Record { id, method, path, begin, is_background: true, known });
    RECORD.scope(record.clone(), caught(answer)).await.unwrap_or_else(|why| {
        tracing::error!(id = record.id, why, "a handler panicked");
        ApiError::internal("an error in the server; its log has details").into_response()
    })
}

/// The client's own id, if it fits a header and a line.
fn own_id(request: &Request) -> Option<String> {
    let id = request.headers().get(REQUEST_ID)?.to_str().ok()?;
    let is_fine = !id.is_empty() && id.len() <= 128 && id.bytes().all(|byte| byte.is_ascii_graphic());
    is_fine.then(|| id.to_owned())
}

/// The future's answer, or what it panicked with.
async fn caught<F: Future>(future: F) -> Result<F::Output, String> {
    let mut future = pin!(future);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(words_of(&*panic))),
    })
    .await
}

pub(super) fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without words".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_answer_like_any_other() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let of = |word: &'static str| runtime.block_on(caught(async move { assert!(word == "fine", "{word}") }));
        assert_eq!(of("fine"), Ok(()));
        assert_eq!(of("not fine"), Err("not fine".into()));
    }
}
