//! The child's side of a replica: computes.

use std::io::{self, BufRead, Write};
use std::process;
use std::thread;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Line;

/// How often a child says that it is there.
const BEAT: Duration = Duration::from_secs(1);

/// Listens from here on, and reports that it is ready. A thread passes the orders to `on`. When its parent is gone, the
/// process ends. From now on only [`tell`] and [`fail`] may write to stdout.
///
/// # Errors
/// The system has no threads for it.
pub fn begin<T: DeserializeOwned>(on: impl Fn(T) + Send + 'static) -> io::Result<()> {
    let listen = move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            match serde_json::from_str::<T>(&line) {
                Ok(order) => on(order),
                Err(error) => fail(format!("heard no order: {error}"), None),
            }
        }
        process::exit(0);
    };
    thread::Builder::new().name("orders".into()).spawn(listen)?;
    let beat = || {
        loop {
            say(&Line::<()>::Alive);
            thread::sleep(BEAT);
        }
    };
    thread::Builder::new().name("beat".into()).spawn(beat)?;
    Ok(())
}

/// Sends a message to the parent.
pub fn tell<T: Serialize>(what: T) {
    say(&Line::Told(what));
}

/// Says why there will be no more answers.
pub fn fail(message: String, hint: Option<String>) {
    say(&Line::<()>::Failed { message, hint });
}

/// Says something, in a line of its own.
fn say<T: Serialize>(line: &Line<T>) {
    let mut line = serde_json::to_vec(line).expect("numbers and texts");
    line.push(b'\n');
    let mut out = io::stdout().lock();
    if out.write_all(&line).and_then(|()| out.flush()).is_err() {
        process::exit(1); // nobody is left to say it to
    }
}
