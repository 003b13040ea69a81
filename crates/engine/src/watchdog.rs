//! A watchdog for devices that hang. The thread that waits for a device is inside a vendor's library and could wait
//! forever, so another thread measures the time.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use hint::Hint;

/// What each row of a step may take besides: of thousands of rows on a slow device that is minutes.
const PER_ROW: Duration = Duration::from_millis(20);

/// In which a device has to say how far it is.
const ANSWER: Duration = Duration::from_secs(1);

/// A step that takes too long.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{devices} {} not done with {what} after {seconds} s{behind}", if *.several { "are" } else { "is" })]
pub struct Hang {
    /// The devices of that step.
    pub(crate) devices: String,
    several: bool,
    pub(crate) what: String,
    pub(crate) seconds: u64,
    /// The device that others wait for, after a colon; or nothing.
    pub(crate) behind: String,
}

impl Hint for Hang {
    fn hint(&self) -> Option<String> {
        Some(
            "a device that hangs is freed when its processes end; the driver's log (dmesg) may say more. If the device is only slow, raise GPTOSS_JIT_STEP_TIMEOUT"
                .into(),
        )
    }
}

/// Measures time in its own thread, as long as this exists.
#[derive(Clone)]
pub struct Watchdog {
    patience: Duration,
    watched: Arc<Mutex<Option<Watched>>>,
}

/// The wait in progress: for `what`, on `devices`.
struct Watched {
    waited: Duration,
    patience: Duration,
    what: String,
    devices: Vec<String>,
    behind: Option<Arc<Behind>>,
}

/// Says which of several devices the others wait for, if it can.
pub(crate) type Behind = dyn Fn() -> Option<String> + Send + Sync;

/// A wait, until it is dropped.
pub struct Waiting(Arc<Mutex<Option<Watched>>>);

impl Watchdog {
    /// Calls `on_hang` when something takes longer than `patience` and [`PER_ROW`] for each of its rows. The waiting
    /// thread cannot be reached: all that is left is to end the process, without a call to the device.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn new(patience: Duration, on_hang: impl Fn(&Hang) + Send + 'static) -> std::io::Result<Self> {
        let watched = Arc::new(Mutex::new(None));
        let looked_at = Arc::downgrade(&watched);
        thread::Builder::new().name("watchdog".into()).spawn(move || look(&looked_at, patience, on_hang))?;
        Ok(Self { patience, watched })
    }

    /// Begins a wait for devices that work on this many rows.
    pub fn begin(
        &self,
        what: impl Into<String>,
        n_rows: usize,
        devices: &[String],
        behind: Option<&Arc<Behind>>,
    ) -> Waiting {
        let patience = self.patience.max(PER_ROW * u32::try_from(n_rows).unwrap_or(u32::MAX));
        let (what, devices, behind) = (what.into(), devices.to_vec(), behind.cloned());
        let watched = Watched { waited: Duration::ZERO, patience, what, devices, behind };
        *self.watched.lock().unwrap_or_else(PoisonError::into_inner) = Some(watched);
        Waiting(Arc::clone(&self.watched))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchdog").field("patience", &self.patience).finish_non_exhaustive()
    }
}

/// The answer, if it comes in time: asking a device may hang too.
fn asked(behind: Arc<Behind>) -> Option<String> {
    let (said, heard) = mpsc::channel();
    thread::spawn(move || said.send(behind()));
    heard.recv_timeout(ANSWER).ok().flatten()
}

/// Looks periodically while the watchdog exists. Time in which the process was stopped does not count, because the wait
/// may end as soon as it continues.
fn look(watched: &Weak<Mutex<Option<Watched>>>, patience: Duration, on_hang: impl Fn(&Hang)) {
    let pause = (patience / 8).clamp(Duration::from_millis(5), Duration::from_secs(1));
    let mut looked = Instant::now();
    loop {
        thread::sleep(pause);
        let Some(watched) = watched.upgrade() else { return };
        let since = looked.elapsed().min(2 * pause);
        looked = Instant::now();
        let is_late = |watched: &mut Watched| {
            watched.waited += since;
            watched.waited > watched.patience
        };
        let late = watched.lock().unwrap_or_else(PoisonError::into_inner).take_if(is_late);
        if let Some(Watched { waited, what, devices, behind, .. }) = late {
            let seconds = waited.as_secs();
            let behind = behind.and_then(asked).map_or_else(String::new, |behind| format!(": {behind}"));
            let several = devices.len() > 1;
            on_hang(&Hang { devices: devices.join(" and "), several, what, seconds, behind });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_is_told_once_and_what_does_not_never() {
        let (said, heard) = mpsc::channel();
        let watchdog = Watchdog::new(Duration::from_millis(300), move |hang| drop(said.send(hang.to_string())));
        let watchdog = watchdog.expect("a thread");
        let devices = ["a".to_owned(), "b".to_owned()];
        // Done before anybody looks, or with rows that may take a minute.
        drop(watchdog.begin("a short step", 0, &devices, None));
        let many_rows = watchdog.begin("a long step", 3000, &devices, None);
        thread::sleep(Duration::from_millis(500));
        drop(many_rows);
        let behind: Arc<Behind> = Arc::new(|| Some("nobody".to_owned()));
        let hanging = watchdog.begin("a step", 1, &devices, Some(&behind));
        assert_eq!(heard.recv().expect("told"), "a and b are not done with a step after 0 s: nobody");
        thread::sleep(Duration::from_millis(100));
        drop((hanging, watchdog));
        assert!(heard.recv().is_err(), "nobody looks any more, and nothing else was told");
    }
}
