//! Common parts of errors: the chain of causes, what a person can do, and the word that was probably meant.

use std::error::Error;

/// An error and its causes, in a line.
pub fn chain(error: &dyn Error) -> String {
    std::iter::successors(Some(error), |&error| error.source()).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The one of these that a word was probably meant to be: no more than a third of its letters are others.
pub fn meant<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = (word.chars().count() / 3).max(1);
    let near = known.into_iter().map(|one| (strsim::osa_distance(word, one), one));
    // Of several that are as near the one that begins alike.
    let begins = |one: &str| one.chars().zip(word.chars()).take_while(|(one, other)| one == other).count();
    let near = near.filter(|(apart, _)| *apart <= most);
    near.min_by_key(|(apart, one)| (*apart, std::cmp::Reverse(begins(one)))).map(|(_, one)| one)
}

/// What a person can do about an error. Printed once, at the edge, after the message.
pub trait Hint {
    /// One sentence without a full stop; commands and paths in backticks.
    fn hint(&self) -> Option<String>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_meant_by_what_is_near() {
        assert_eq!(meant("gfx110", ["gfx10", "gfx1100", "gfx942"]), Some("gfx1100"));
        assert_eq!(meant("matrx", ["gemv", "matrix"]), Some("matrix"));
        assert_eq!(meant("bf61", ["f32", "bf16"]), Some("bf16")); // two letters in the other order are one mistake
        assert_eq!(meant("attention", ["gemv", "matrix"]), None);
    }
}
