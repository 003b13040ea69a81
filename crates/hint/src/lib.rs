//! What errors have in common: causes, and what a person can do.

use std::error::Error;

/// An error and its causes, in a line.
pub fn chain(error: &dyn Error) -> String {
    std::iter::successors(Some(error), |&error| error.source()).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// What a person can do about an error. Printed once, at the edge, after the message.
pub trait Hint {
    /// One sentence without a full stop; commands and paths in backticks.
    fn hint(&self) -> Option<String>;
}
