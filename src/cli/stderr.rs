//! stderr, where everything goes that is only a message.
//!
//! A message never ends or changes an answer. Writing one cannot fail: if stderr is full, closed or a pipe without a
//! reader, the message is lost and nothing else. A server must not wait either, for a reader that has stopped reading:
//! its messages go through a queue to a thread that writes them, and those that find the queue full are dropped and
//! counted.

use std::io::{self, Write};
use std::panic;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use anstream::AutoStream;

/// Messages that wait for a slow stderr.
const QUEUE: usize = 4096;

/// How long the end of the program waits for messages to be written.
const PATIENCE: Duration = Duration::from_millis(500);

static QUEUED: OnceLock<Queue> = OnceLock::new();

/// Writes to stderr. It always succeeds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match QUEUED.get() {
            Some(queue) => queue.push(bytes),
            None => drop(io::stderr().lock().write_all(bytes)),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        drop(io::stderr().flush());
        Ok(())
    }
}

/// Writes a text; its colours are left out where they are not wanted.
pub(super) fn write(text: &str) {
    let mut colored = AutoStream::new(Vec::new(), AutoStream::choice(&io::stderr()));
    drop(colored.write_all(text.as_bytes())); // into memory
    drop(Stderr.write_all(&colored.into_inner()));
}

/// From here on nobody waits for stderr.
pub(super) fn never_wait() {
    if QUEUED.get().is_some() {
        return;
    }
    let (queue, written) = Queue::new(QUEUE);
    // Without a thread messages are written by those who have them, as before.
    if thread::Builder::new().name("stderr".into()).spawn(move || written.to(io::stderr())).is_ok() {
        drop(QUEUED.set(queue));
        // The usual hook would wait.
        panic::set_hook(Box::new(|panic| write(&format!("{panic}\n"))));
    }
}

/// Waits, though not for ever, until all messages are written: the process is about to end.
pub(super) fn finish() {
    if let Some(queue) = QUEUED.get() {
        queue.finish(PATIENCE);
    }
}

enum Item {
    Message(Vec<u8>),
    /// Answered when everything before it is written.
    Mark(SyncSender<()>),
}

struct Queue {
    items: SyncSender<Item>,
    n_lost: Arc<AtomicUsize>,
}

/// The other end of the queue.
struct Written {
    items: Receiver<Item>,
    n_lost: Arc<AtomicUsize>,
}

impl Queue {
    fn new(n: usize) -> (Self, Written) {
        let (sender, items) = mpsc::sync_channel(n);
        let n_lost = Arc::default();
        (Self { items: sender, n_lost: Arc::clone(&n_lost) }, Written { items, n_lost })
    }

    fn push(&self, message: &[u8]) {
        if let Err(TrySendError::Full(_)) = self.items.try_send(Item::Message(message.to_vec())) {
            self.n_lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn finish(&self, patience: Duration) {
        let (mark, written) = mpsc::sync_channel(1);
        if self.items.try_send(Item::Mark(mark)).is_ok() {
            let _ = written.recv_timeout(patience); // late or not, the program ends
        }
    }
}

impl Written {
    /// Writes what comes, until nobody is left to send it.
    fn to(self, mut stream: impl Write) {
        for item in &self.items {
            match item {
                Item::Message(message) => drop(stream.write_all(&message)),
                Item::Mark(mark) => drop(mark.send(())),
            }
            let n_lost = self.n_lost.swap(0, Ordering::Relaxed);
            if n_lost > 0 {
                drop(writeln!(stream, "warning: {n_lost} messages were lost here: stderr was not read in time"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A stream that nobody reads until `gate` is unlocked, and that keeps what it got.
    struct Slow {
        gate: Arc<Mutex<()>>,
        got: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            drop(self.gate.lock().unwrap());
            self.got.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn nobody_waits_for_a_stream_that_is_not_read_and_what_is_lost_is_counted() {
        let (queue, written) = Queue::new(2);
        let (gate, got) = (Arc::new(Mutex::new(())), Arc::new(Mutex::new(Vec::new())));
        let closed = gate.lock().unwrap();
        let slow = Slow { gate: Arc::clone(&gate), got: Arc::clone(&got) };
        let writer = thread::spawn(move || written.to(slow));
        for i in 0..10 {
            queue.push(format!("{i}\n").as_bytes());
        }
        queue.finish(Duration::from_millis(1));
        drop(closed);
        queue.push(b"last\n"); // may come while the queue is still full
        drop(queue);
        writer.join().unwrap();
        let text = String::from_utf8(got.lock().unwrap().clone()).unwrap();
        assert!(text.starts_with("0\n"), "{text}");
        let said =
            |line: &str| line.strip_prefix("warning: ").and_then(|rest| rest.split(' ').next()?.parse::<usize>().ok());
        let n_lost: usize = text.lines().filter_map(said).sum();
        let n_written = text.lines().filter(|line| said(line).is_none()).count();
        assert_eq!(n_lost + n_written, 11, "{text}");
        assert!(n_lost >= 7, "{text}");
    }

    #[test]
    fn a_stream_that_fails_ends_nothing() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Err(io::ErrorKind::StorageFull.into())
            }
        }
        let (queue, written) = Queue::new(8);
        let writer = thread::spawn(move || written.to(Full));
        queue.push(b"one");
        queue.finish(Duration::from_secs(60));
        queue.push(b"two");
        drop(queue);
        writer.join().unwrap();
    }
}
