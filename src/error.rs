//! What errors have in common: a hint.

/// What a person can do about an error. Printed once, at the edge, after the message.
pub trait Hint {
    /// One sentence without a full stop; commands and paths in backticks.
    fn hint(&self) -> Option<String>;
}
