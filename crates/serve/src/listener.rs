//! Connections: admission, time limits, and shutdown.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use system::os::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::error::ApiError;
use super::ids::Ids;
use super::request_log::REQUEST_ID;
use super::watched_body::{Watched, Watcher};

/// From the first byte of a head to its last.
const HEAD: Duration = Duration::from_secs(10);

/// For a client that sends nothing between two requests.
const IDLE: Duration = Duration::from_secs(75);

/// For a client that takes nothing of what is sent.
const WRITE: Duration = Duration::from_secs(60);

/// File descriptors for everything but connections.
const RESERVE: u64 = 64;

/// Takes connections; they are answered with 503 until there is a model.
pub struct Listener {
    router: OnceLock<Router>,
    ids: Ids,
    /// A permit for every connection.
    places: Arc<Semaphore>,
    n_places: u32,
    is_closing: watch::Sender<bool>,
}

impl Default for Listener {
    fn default() -> Self {
        let n_places = places();
        Self {
            router: OnceLock::new(),
            ids: Ids::default(),
            places: Arc::new(Semaphore::new(n_places as usize)),
            n_places,
            is_closing: watch::Sender::new(false),
        }
    }
}

/// Most connections, however many files may be open.
const MAX_PLACES: u64 = 1 << 14;

/// As many connections as there are file descriptors, less a reserve.
fn places() -> u32 {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    limit.saturating_sub(RESERVE).clamp(16, MAX_PLACES) as u32
}

/// Lets this process have as many files open as all connections need, if the system allows it: by itself it is 1,024
/// on most systems, where a process may ask for many more.
pub fn raise_limit_of_files() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(u64::MAX).min(MAX_PLACES + RESERVE);
    if limit.current.is_some_and(|current| current < wanted) {
        // With fewer, there are fewer connections.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit });
    }
}

impl Listener {
    /// From here on requests are answered.
    pub fn open(&self, router: Router) {
        let _ = self.router.set(router); // the first one stays
    }

    /// Takes connections for ever.
    pub async fn accept(self: Arc<Self>, tcp: TcpListener) {
        let (mut no_places, mut not_accepted) = (RareWarning::default(), RareWarning::default());
        loop {
            if self.places.available_permits() == 0 {
                let n = self.n_places;
                let cure = if u64::from(n) < MAX_PLACES {
                    "; a higher hard limit of open files (`ulimit -Hn`) allows more"
                } else {
                    ""
                };
                no_places.tell(format_args!("all {n} connections are taken: others wait until one ends{cure}"));
            }
            let Ok(place) = self.places.clone().acquire_owned().await else { return };
            match tcp.accept().await {
                Ok((stream, _)) => {
                    let listener = self.clone();
                    tokio::spawn(async move {
                        listener.connection(stream).await;
                        drop(place);
                    });
                }
                // The peer has gone again: nothing is wrong here.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    not_accepted.tell(format_args!("could not accept a connection: {error}"));
                    sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    /// Has connections end after what they are sending, and waits for that.
    pub async fn close(&self, patience: Duration) {
        self.is_closing.send_replace(true);
        let _ = timeout(patience, self.places.acquire_many(self.n_places - 1)).await; // one is held by `accept`
    }

    async fn connection(&self, stream: TcpStream) {
        let _ = stream.set_nodelay(true); // slower without, and right all the same
        let is_busy = Arc::new(AtomicBool::new(false));
        let io = TokioIo::new(TimedStream::new(stream, is_busy.clone()));
        let service = service_fn(|request: hyper::Request<Incoming>| {
            is_busy.store(true, Ordering::Relaxed);
            let idle_again = IdleAgain(is_busy.clone());
            let answer = self.answer(request);
            async move { Ok::<_, Infallible>(answer.await.map(|body| Watched::new(body, idle_again))) }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(IDLE);
        builder.writev(false); // an event is too short to be worth a list of pieces
        let mut connection = pin!(builder.serve_connection(io, service));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.closing() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!("a connection ended: {error}");
        }
    }

    async fn closing(&self) {
        let _ = self.is_closing.subscribe().wait_for(|is_closing| *is_closing).await; // the sender is here
    }

    async fn answer(&self, request: hyper::Request<Incoming>) -> Response {
        let Some(router) = self.router.get() else {
            let wait = Some(Duration::from_secs(1));
            let mut response = ApiError::unavailable("loading", "the model is being loaded", wait).into_response();
            if let Ok(id) = HeaderValue::from_str(&self.ids.next("req_")) {
                response.headers_mut().insert(REQUEST_ID, id);
            }
            return response;
        };
        let request: Request = request.map(Body::new);
        let Ok(response) = TowerToHyperService::new(router.clone()).call(request).await;
        response
    }
}

/// A warning that is logged once a minute at most, however often its cause occurs.
#[derive(Default)]
struct RareWarning {
    last: Option<Instant>,
}

impl RareWarning {
    const PAUSE: Duration = Duration::from_secs(60);

    fn tell(&mut self, what: std::fmt::Arguments<'_>) {
        if self.last.is_none_or(|last| last.elapsed() > Self::PAUSE) {
            tracing::warn!("{what}");
            self.last = Some(Instant::now());
        }
    }
}

/// The connection is busy until its body is sent.
struct IdleAgain(Arc<AtomicBool>);

impl Drop for IdleAgain {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Watcher for IdleAgain {}

/// A connection that breaks where its peer is too slow.
struct TimedStream {
    stream: TcpStream,
    /// Whether a request is being answered: what is read then is its body, which has a time of its own.
    is_busy: Arc<AtomicBool>,
    head: Option<Pin<Box<Sleep>>>,
    write: Option<Pin<Box<Sleep>>>,
    ids: Ids,
    /// What is sent for an answer that came from below the router, and how much of it was.
    instead: Option<(Vec<u8>, usize)>,
}

/// The body for an answer that is not the router's: a head without a body, for bytes that are not a request. It gets
/// the form of errors, and an id.
fn with_body(head: &[u8], id: &str) -> Option<Vec<u8>> {
    let head = str::from_utf8(head).ok()?.strip_suffix("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.lines().next()?;
    let is_empty = head.lines().any(|line| line.eq_ignore_ascii_case("content-length: 0"));
    let (code, what) = match status.get(..3)? {
        "400" => ("invalid_request", "the request is not valid HTTP"),
        "408" => ("request_timeout", "the head of the request took too long"),
        "414" => ("uri_too_long", "the path of the request is too long"),
        "431" => ("headers_too_large", "the request has too many or too long headers"),
        _ => return None,
    };
    if !is_empty {
        return None;
    }
    let body = ApiError::bad_request(code, what).body().to_string();
    let length = body.len();
    Some(
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{REQUEST_ID}: {id}\r\n\
             connection: close\r\n\r\n{body}"
        )
        .into_bytes(),
    )
}

impl TimedStream {
    fn new(stream: TcpStream, is_busy: Arc<AtomicBool>) -> Self {
        Self { stream, is_busy, head: None, write: None, ids: Ids::default(), instead: None }
    }

    /// What a write gave, unless it is pending for too long.
    fn written(&mut self, context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.write = None;
            return written;
        }
        let deadline = self.write.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + WRITE)));
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes nothing")))
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let n_before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if self.is_busy.load(Ordering::Relaxed) {
            self.head = None;
            return read;
        }
        if read.is_ready() {
            if buffer.filled().len() > n_before && self.head.is_none() {
                self.head = Some(Box::pin(tokio::time::sleep_until(Instant::now() + HEAD)));
            }
            return read;
        }
        let Some(deadline) = &mut self.head else { return Poll::Pending };
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the head of a request takes too long")))
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.instead.is_none() && bytes.starts_with(b"HTTP/1.1 4") {
            self.instead = with_body(bytes, &self.ids.next("req_")).map(|instead| (instead, 0));
        }
        while let Some((instead, sent)) = self.instead.take() {
            let written = Pin::new(&mut self.stream).poll_write(context, &instead[sent..]);
            let written = self.written(context, written);
            let n = match written {
                Poll::Ready(Ok(n)) => n,
                other => {
                    self.instead = Some((instead, sent));
                    return other;
                }
            };
            if sent + n == instead.len() {
                return Poll::Ready(Ok(bytes.len()));
            }
            self.instead = Some((instead, sent + n));
        }
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_from_below_the_router_has_the_form_of_errors() {
        let head = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        let sent = String::from_utf8(with_body(head, "req_1").expect("it is none of the router's")).expect("text");
        let (head, body) = sent.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 431 ") && head.contains("x-request-id: req_1"), "{head}");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
        let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(body["error"]["code"], "headers_too_large");
        for other in
            ["HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}", "HTTP/1.1 404 x\r\ncontent-length: 0\r\n\r\n"]
        {
            assert_eq!(with_body(other.as_bytes(), "req_1"), None);
        }
    }
}
