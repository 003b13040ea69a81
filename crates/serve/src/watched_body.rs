//! A body that somebody watches: until it is sent, or dropped since its client left.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

/// Who watches; dropped with the body.
pub(crate) trait Watcher: Unpin {
    /// The body has come to its end. May be told more than once.
    fn is_whole(&self) {}
}

/// The body goes first, with the generations in it, which have something to tell the watcher.
pub(crate) struct Watched<W> {
    body: Body,
    watcher: W,
}

impl<W: Watcher> Watched<W> {
    pub(crate) fn new(body: Body, watcher: W) -> Self {
        Self { body, watcher }
    }
}

impl<W: Watcher> HttpBody for Watched<W> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) || self.body.is_end_stream() {
            self.watcher.is_whole();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        let is_over = self.body.is_end_stream();
        if is_over {
            self.watcher.is_whole();
        }
        is_over
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
