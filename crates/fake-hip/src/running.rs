//! Runs the work of streams in the thread that waits for it. While a kernel runs, other threads may call, and other
//! devices' streams continue, because the kernel may wait for them.

use std::ffi::c_int;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::thread;

use crate::kernel::Launch;
use crate::state::{State, Stream, StreamWork, status};

/// Told whenever a kernel has ended.
static ENDED: Condvar = Condvar::new();

/// The state, in the hands of one thread at a time.
pub struct Held(Option<MutexGuard<'static, State>>);

impl Held {
    pub fn lock() -> Self {
        Self(Some(State::the_one().lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Does what is on a stream, up to an event if one is named.
    pub fn drain(&mut self, handle: u64, until: Option<u64>) -> c_int {
        while let Some(stream) = self.streams.get_mut(&handle) {
            if until.is_some_and(|event| !stream.comes_to(event)) {
                break;
            }
            if stream.is_busy {
                self.wait();
            } else if let Some(&StreamWork::Wait { mark }) = stream.queue.front() {
                self.drain_to_mark(mark);
                if let Some(stream) = self.streams.get_mut(&handle) {
                    stream.queue.pop_front();
                }
            } else if let Some(work) = stream.queue.pop_front() {
                self.perform(handle, work);
                self.hurry();
            } else {
                break;
            }
        }
        self.set_others_going(); // they wait for nobody who would do what is left here
        self.sticky
    }

    /// Does what is on the stream that has a mark, up to it.
    fn drain_to_mark(&mut self, mark: u64) {
        while let Some(other) = self.streams.iter().find(|(_, s)| s.comes_to_mark(mark)).map(|(other, _)| *other) {
            let front = self.streams.get_mut(&other).expect("just found");
            match front.queue.front() {
                _ if front.is_busy => self.wait(),
                Some(&StreamWork::Wait { mark: before }) => {
                    self.drain_to_mark(before);
                    self.streams.get_mut(&other).map(|stream| stream.queue.pop_front());
                }
                _ => {
                    if let Some(work) = front.queue.pop_front() {
                        self.perform(other, work);
                    }
                }
            }
        }
    }

    /// Has streams beside the first of a device do what waits for nothing, if that is ordered.
    pub fn hurry(&mut self) {
        if !self.orders.is_early {
            return;
        }
        let is_first = |handle: &u64| {
            let device = self.streams[handle].device;
            self.streams.iter().all(|(other, stream)| stream.device != device || other >= handle)
        };
        let beside: Vec<u64> = self.streams.keys().copied().filter(|handle| !is_first(handle)).collect();
        for handle in beside {
            while let Some(front) = self.streams[&handle].queue.front() {
                let is_free = match front {
                    StreamWork::Launch(_) => false,
                    StreamWork::Wait { mark } => !self.streams.values().any(|stream| stream.comes_to_mark(*mark)),
                    _ => true,
                };
                let Some(work) = self.streams.get_mut(&handle).filter(|_| is_free).and_then(|s| s.queue.pop_front())
                else {
                    break;
                };
                if !matches!(work, StreamWork::Wait { .. }) {
                    self.perform_at_once(work);
                }
            }
        }
    }

    pub fn drain_all(&mut self) -> c_int {
        let streams: Vec<u64> = self.streams.keys().copied().collect();
        for stream in streams {
            self.drain(stream, None);
        }
        self.sticky
    }

    /// Has a thread do what is on a stream where a kernel of another device runs.
    pub fn set_others_going(&self) {
        for (&handle, _) in self.streams.iter().filter(|(_, stream)| self.goes_on(stream)) {
            thread::spawn(move || {
                let mut state = Self::lock();
                while let Some(work) = state.next_of_those_that_go_on(handle) {
                    state.perform(handle, work);
                }
            });
        }
    }

    fn goes_on(&self, stream: &Stream) -> bool {
        let runs = self.streams.values().any(|other| other.is_busy && other.device != stream.device);
        runs && !stream.is_busy && !stream.queue.is_empty()
    }

    fn next_of_those_that_go_on(&mut self, handle: u64) -> Option<StreamWork> {
        self.streams.get(&handle).filter(|stream| self.goes_on(stream))?;
        let queue = &mut self.streams.get_mut(&handle)?.queue;
        let waits = matches!(queue.front(), Some(StreamWork::Wait { .. }));
        if waits { None } else { queue.pop_front() }
    }

    fn perform(&mut self, handle: u64, work: StreamWork) {
        match work {
            StreamWork::Launch(launch) if self.sticky == status::SUCCESS => self.run(handle, &launch),
            work => self.perform_at_once(work),
        }
    }

    fn run(&mut self, handle: u64, launch: &Launch) {
        let hangs = self.orders.hangs();
        let prepared = match self.orders.failure("kernel") {
            Some(failure) => Err(failure),
            None => launch.prepare(self),
        };
        let execution = match prepared {
            Ok(execution) => execution,
            Err(code) => return self.sticky = code,
        };
        self.set_busy(handle, true);
        self.set_others_going();
        self.0 = None;
        // Whoever waits for it waits for ever.
        if hangs {
            loop {
                thread::park();
            }
        }
        let ran = execution.map_or(Ok(()), |execution| execution.run());
        *self = Self::lock();
        self.set_busy(handle, false);
        ENDED.notify_all();
        if let Err(why) = ran {
            self.orders.tell(&format!("kernel failed: {why}"));
            self.sticky = status::LAUNCH_FAILURE;
        }
    }

    fn set_busy(&mut self, handle: u64, is_busy: bool) {
        if let Some(stream) = self.streams.get_mut(&handle) {
            stream.is_busy = is_busy;
        }
    }

    fn wait(&mut self) {
        let state = self.0.take().expect("held but while a kernel runs");
        self.0 = Some(ENDED.wait(state).unwrap_or_else(PoisonError::into_inner));
    }
}

impl Deref for Held {
    type Target = State;

    fn deref(&self) -> &State {
        self.0.as_ref().expect("held but while a kernel runs")
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("held but while a kernel runs")
    }
}
