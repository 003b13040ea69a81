//! A response body that reports its end: sent whole, or dropped because its client left.

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
    /// Remaining bytes, if known: no end is polled after the last of them.
    left: Option<u64>,
    watcher: W,
}

impl<W: Watcher> Watched<W> {
    pub(crate) fn new(body: Body, watcher: W) -> Self {
        Self { body, left: None, watcher }
    }

    /// - `length`: what the head says of it
    pub(crate) fn of_length(self, length: Option<u64>) -> Self {
        Self { left: length, ..self }
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
        if let (Some(left), Poll::Ready(Some(Ok(frame)))) = (&mut self.left, &polled) {
            *left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.len() as u64));
        }
        if matches!(polled, Poll::Ready(None)) || self.left == Some(0) || self.body.is_end_stream() {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Waker;

    use futures_util::stream;

    use super::*;

    struct Seen(Arc<AtomicBool>);

    impl Watcher for Seen {
        fn is_whole(&self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_body_is_whole_when_all_that_its_head_says_is_there() {
        let parts = stream::iter(["ab", "c"].map(|part| Ok::<_, std::io::Error>(Bytes::from(part))));
        let is_whole = Arc::new(AtomicBool::new(false));
        let mut body = Watched::new(Body::from_stream(parts), Seen(is_whole.clone())).of_length(Some(3));
        for expected in [false, true] {
            let polled = Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Ready(Some(Ok(_)))));
            assert_eq!(is_whole.load(Ordering::Relaxed), expected);
        }
    }
}
