//! The masks of a replica's requests, made by a thread of their own: a large schema takes seconds to compile, and
//! meanwhile other requests need their tokens.

use std::io;
use std::mem;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::prompt::Timed;
use chat::grammar::{Grammars, TokenLimits};
use engine::scheduler::Request;
use hint::chain;
use replica::WireRequest;

/// Times of masks since the last look, in nanoseconds.
pub(super) type Times = Arc<Mutex<Vec<u64>>>;

/// Where requests go whose masks are to be made.
pub(super) type Wanted = Sender<(u64, Box<WireRequest>)>;

/// Starts the thread, which tells `made` each request with its mask, or why there is none.
pub(super) fn start(
    grammars: Option<Grammars>,
    times: Times,
    made: impl Fn(u64, Result<Request, String>) + Send + 'static,
) -> io::Result<Wanted> {
    let (wanted, asked) = channel::<(u64, Box<WireRequest>)>();
    let make = move || {
        // What is wrong with the vocabulary is told with the first request that needs it.
        let _ = grammars.as_ref().map(Grammars::warm);
        for (key, mut asked) in asked {
            let text = asked.grammar.take().unwrap_or_default();
            let mut request = Request::from(*asked);
            let mask = TokenLimits::mask_of(text, grammars.as_ref()).map_err(|error| chain(&error));
            made(
                key,
                mask.map(|mask| {
                    let times = Arc::clone(&times);
                    request.changes.mask = Some(Timed::boxed(mask, move |took| note(&times, took)));
                    request
                }),
            );
        }
    };
    thread::Builder::new().name("masks".into()).spawn(make)?;
    Ok(wanted)
}

fn note(times: &Times, took: Duration) {
    let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    times.lock().unwrap_or_else(PoisonError::into_inner).push(took);
}

pub(super) fn taken(times: &Times) -> Vec<u64> {
    mem::take(&mut times.lock().unwrap_or_else(PoisonError::into_inner))
}
