//! Work that would delay a thread's streams: encoding long texts, compiling new grammars. It runs on other threads, a
//! few tasks at a time, and is abandoned when its client leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;

use tokio::sync::Semaphore;

use super::error::ApiError;

/// Texts above this size are long: encoding one takes a millisecond or more.
pub(crate) const LONG_TEXT_BYTES: usize = 1 << 15;

/// Most tasks at a time, on machines of many cores.
const MAX_PLACES: usize = 8;

/// Threads for encoding long texts and compiling grammars.
#[derive(Debug)]
pub struct LongWork {
    places: Arc<Semaphore>,
}

impl Default for LongWork {
    /// On half of the cores: the others serve, and may compute.
    fn default() -> Self {
        let n_cores = available_parallelism().map_or(1, usize::from);
        Self::with_places((n_cores / 2).clamp(1, MAX_PLACES))
    }
}

impl LongWork {
    /// At most `n` tasks at a time.
    fn with_places(n: usize) -> Self {
        Self { places: Arc::new(Semaphore::new(n)) }
    }

    /// Runs work in its turn, on another thread if it `is_long`. The work can ask whether it is still wanted: it is not
    /// once this future was dropped.
    ///
    /// # Errors
    /// It panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        is_long: bool,
        work: impl FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        if !is_long {
            return Ok(work(&|| true));
        }
        let failed = |error: &dyn std::fmt::Display| ApiError::internal(error.to_string());
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|error| failed(&error))?;
        let waiting = Waiting(Arc::new(AtomicBool::new(true)));
        let is_wanted = Arc::clone(&waiting.0);
        let work = move || {
            let _place = place;
            work(&|| is_wanted.load(Ordering::Relaxed))
        };
        tokio::task::spawn_blocking(work).await.map_err(|error| failed(&error))
    }
}

/// Who waits, until it is dropped.
struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap()
    }

    #[test]
    fn work_whose_client_has_left_is_told_and_makes_room() {
        let (runtime, long_work) = (runtime(), Arc::new(LongWork::with_places(1)));
        let (begun, has_begun) = mpsc::channel();
        let shared = Arc::clone(&long_work);
        let first = runtime.spawn(async move {
            let endless = move |is_wanted: &dyn Fn() -> bool| {
                begun.send(()).unwrap();
                let deadline = Instant::now() + Duration::from_secs(60);
                while is_wanted() && Instant::now() < deadline {
                    std::thread::yield_now();
                }
                is_wanted()
            };
            shared.run(true, endless).await
        });
        has_begun.recv().unwrap();
        first.abort();
        let begin = Instant::now();
        assert_eq!(runtime.block_on(long_work.run(true, |_| 7)), Ok(7));
        assert!(begin.elapsed() < Duration::from_secs(60), "the first was not told");
    }

    #[test]
    fn short_work_waits_for_nobody() {
        let long_work = LongWork::with_places(0);
        assert_eq!(runtime().block_on(long_work.run(false, |is_wanted| is_wanted())), Ok(true));
    }
}
