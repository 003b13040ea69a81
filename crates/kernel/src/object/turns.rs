//! Limits how many compilers run at a time, and decides which is next.

use std::num::NonZeroUsize;
use std::sync::{Condvar, Mutex, PoisonError};

/// So many at a time, the urgent ones first.
#[derive(Debug)]
pub(super) struct Turns {
    /// How many are free, and how many that are urgent wait for one.
    state: Mutex<(usize, usize)>,
    changed: Condvar,
}

/// One of them, given back when it is dropped.
pub(super) struct Turn<'a>(&'a Turns);

impl Turns {
    pub(super) fn new(n: NonZeroUsize) -> Self {
        Self { state: Mutex::new((n.get(), 0)), changed: Condvar::new() }
    }

    pub(super) fn take(&self, is_urgent: bool) -> Turn<'_> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 += usize::from(is_urgent);
        let must_wait = |(n_free, n_urgent): &mut (usize, usize)| *n_free == 0 || (!is_urgent && *n_urgent > 0);
        let mut state = self.changed.wait_while(state, must_wait).unwrap_or_else(PoisonError::into_inner);
        state.0 -= 1;
        state.1 -= usize::from(is_urgent);
        if state.0 > 0 {
            self.changed.notify_all(); // whoever waited for this one to go first
        }
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).0 += 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn who_is_urgent_goes_first_though_another_waited_longer() {
        let turns = Turns::new(NonZeroUsize::MIN);
        let order = Mutex::new(Vec::new());
        let go = |is_urgent| {
            let _turn = turns.take(is_urgent);
            order.lock().expect("whole").push(is_urgent);
        };
        thread::scope(|scope| {
            let held = turns.take(true);
            scope.spawn(|| go(false));
            scope.spawn(|| go(true));
            while turns.state.lock().expect("whole").1 == 0 {
                thread::yield_now();
            }
            drop(held);
        });
        assert_eq!(order.into_inner().expect("whole"), [true, false]);
    }
}
