//! Signals that end a run after its current step, so that it can report what is kept. A second one ends it at once.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

/// Signals with which people and systems end programs.
#[cfg(unix)]
pub(crate) const ENDING: [i32; 3] = [SIGINT, SIGTERM, signal_hook::consts::SIGHUP];
#[cfg(not(unix))]
pub(crate) const ENDING: [i32; 2] = [SIGINT, SIGTERM];

/// Signals of a terminal, which go to all processes at it.
#[cfg(unix)]
pub(crate) const OF_TERMINALS: [i32; 2] = [SIGINT, signal_hook::consts::SIGHUP];
#[cfg(not(unix))]
pub(crate) const OF_TERMINALS: [i32; 1] = [SIGINT];

pub(super) struct Signals(Arc<AtomicUsize>);

impl Signals {
    /// Watches from here on.
    pub(super) fn watch() -> io::Result<Self> {
        let (came, is_second) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        for signal in heeded() {
            // First that it came: a signal between two of these must not be lost.
            signal_hook::flag::register_usize(signal, came.clone(), signal as usize)?;
            signal_hook::flag::register_conditional_default(signal, is_second.clone())?;
            signal_hook::flag::register(signal, is_second.clone())?;
        }
        Ok(Self(came))
    }

    /// The one that came last.
    pub(super) fn came(&self) -> Option<i32> {
        Some(self.0.load(Ordering::Relaxed) as i32).filter(|signal| *signal != 0)
    }
}

/// Has signals that go to several processes, as those of a terminal to all at it, not end this one: the one that
/// started it hears them, and ends it.
pub(crate) fn leave_to_the_parent(signals: &[i32]) -> io::Result<()> {
    for signal in signals {
        signal_hook::flag::register(*signal, Arc::default())?;
    }
    Ok(())
}

/// The signals with which people and systems end programs. Signals that the parent made this process ignore, as `nohup`
/// does, stay ignored.
pub(crate) fn heeded() -> impl Iterator<Item = i32> {
    let ignored = ignored();
    ENDING.into_iter().filter(move |signal| ignored >> (signal - 1) & 1 == 0)
}

/// A bit for each signal, that of number 1 the lowest.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or_default();
    u64::from_str_radix(mask.trim(), 16).unwrap_or(0)
}
