//! Messages on stderr.
//!
//! A message never ends or changes an answer. Writing one cannot fail: if stderr is full, closed or a pipe without a
//! reader, only the message is lost. A server must not wait for a reader either: its messages go through a queue to a
//! thread that writes them, and those for which the queue has no room are dropped and counted.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, Write};
use std::panic;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anstream::AutoStream;

/// Messages that wait for a slow stderr.
const MAX_MESSAGES: usize = 4096;

/// Their bytes; a single message may have more.
const MAX_BYTES: usize = 16 << 20;

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

    /// Nothing is kept back.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a text; its colours are left out where they are not wanted.
pub(super) fn write(text: &str) {
    let mut colored = AutoStream::new(Vec::new(), AutoStream::choice(&io::stderr()));
    drop(colored.write_all(text.as_bytes())); // into memory
    drop(Stderr.write_all(&colored.into_inner()));
}

/// Sends messages through the queue from here on, so that no thread waits for stderr.
pub(super) fn never_wait() {
    let (queue, writer) = Queue::new(MAX_MESSAGES);
    // Without that thread, each thread goes on writing its own messages.
    if thread::Builder::new().name("stderr".into()).spawn(move || writer.write_to(io::stderr())).is_ok() {
        drop(QUEUED.set(queue));
        // The usual hook waits for stderr. This one does where the process ends with the panic, and not for long.
        panic::set_hook(Box::new(|panic| {
            let thread = thread::current();
            let mut text = format!("thread `{}`: {panic}\n", thread.name().unwrap_or("without a name"));
            let backtrace = Backtrace::capture();
            if backtrace.status() == BacktraceStatus::Captured {
                text += &format!("{backtrace}\n"); // RUST_BACKTRACE asks for it
            }
            write(&text);
            if thread.name() == Some("main") {
                finish();
            }
        }));
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
    counts: Arc<Counts>,
}

/// The other end of the queue.
struct Writer {
    items: Receiver<Item>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Bytes of messages that wait.
    n_bytes: AtomicUsize,
    /// Messages that were dropped and not counted in a message yet.
    n_lost: AtomicUsize,
}

impl Queue {
    fn new(n: usize) -> (Self, Writer) {
        let (sender, items) = mpsc::sync_channel(n);
        let counts = Arc::<Counts>::default();
        (Self { items: sender, counts: Arc::clone(&counts) }, Writer { items, counts })
    }

    fn push(&self, message: &[u8]) {
        let with = |n: usize| (n == 0 || n + message.len() <= MAX_BYTES).then_some(n + message.len());
        let has_room = self.counts.n_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with).is_ok();
        if has_room && self.items.try_send(Item::Message(message.to_vec())).is_ok() {
            return;
        }
        if has_room {
            self.counts.n_bytes.fetch_sub(message.len(), Ordering::Relaxed);
        }
        self.counts.n_lost.fetch_add(1, Ordering::Relaxed);
    }

    fn finish(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let (mark, written) = mpsc::sync_channel(1);
        while let Err(TrySendError::Full(_)) = self.items.try_send(Item::Mark(mark.clone())) {
            if Instant::now() >= deadline {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        drop(mark); // a writer that is gone answers nothing
        let _ = written.recv_timeout(deadline.saturating_duration_since(Instant::now())); // late or not, the program ends
    }
}

impl Writer {
    /// Writes messages until all senders are gone.
    fn write_to(self, mut stream: impl Write) {
        for item in &self.items {
            match item {
                Item::Message(message) => {
                    drop(stream.write_all(&message));
                    self.counts.n_bytes.fetch_sub(message.len(), Ordering::Relaxed);
                    self.tell_losses(&mut stream);
                }
                Item::Mark(mark) => {
                    self.tell_losses(&mut stream);
                    let _ = mark.send(()); // or it was too late
                }
            }
        }
        self.tell_losses(&mut stream);
    }

    fn tell_losses(&self, stream: &mut impl Write) {
        let n_lost = self.counts.n_lost.swap(0, Ordering::Relaxed);
        if n_lost > 0 {
            drop(writeln!(stream, "warning: {n_lost} messages were lost: stderr was not read in time"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A stream without a reader until `gate` is unlocked; it keeps what it got.
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
        let (queue, writer) = Queue::new(2);
        let (gate, got) = (Arc::new(Mutex::new(())), Arc::new(Mutex::new(Vec::new())));
        let closed = gate.lock().unwrap();
        let slow = Slow { gate: Arc::clone(&gate), got: Arc::clone(&got) };
        let thread = thread::spawn(move || writer.write_to(slow));
        for i in 0..10 {
            queue.push(format!("{i}\n").as_bytes());
        }
        queue.finish(Duration::from_millis(1));
        drop(closed);
        queue.push(b"last\n"); // may come while the queue is still full
        drop(queue);
        thread.join().unwrap();
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
    fn messages_that_wait_have_a_bound_of_bytes_too() {
        let (queue, writer) = Queue::new(8);
        queue.push(&vec![b'x'; 2 * MAX_BYTES]);
        queue.push(b"lost\n");
        let mut got = Vec::new();
        drop(queue);
        writer.write_to(&mut got);
        assert_eq!(got.len(), 2 * MAX_BYTES + "warning: 1 messages were lost: stderr was not read in time\n".len());
    }

    #[test]
    fn a_stream_that_fails_ends_nothing() {
        struct Full(Arc<AtomicUsize>);
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                self.0.fetch_add(1, Ordering::Relaxed);
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Err(io::ErrorKind::StorageFull.into())
            }
        }
        let (queue, writer) = Queue::new(8);
        let n_tried = Arc::<AtomicUsize>::default();
        let full = Full(Arc::clone(&n_tried));
        let thread = thread::spawn(move || writer.write_to(full));
        queue.push(b"one");
        queue.finish(Duration::from_secs(60));
        queue.push(b"two");
        drop(queue);
        thread.join().unwrap();
        assert_eq!(n_tried.load(Ordering::Relaxed), 2);
    }
}
