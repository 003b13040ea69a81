//! Answers many prompts, without losing finished answers.
//!
//! [`source`] finds prompts, [`request_line`] parses a line, [`plan`] makes requests. [`work`] runs them as slots
//! become free, on one device or on several [`replica`]s, and stores each finished answer in [`records`]. [`answers`]
//! writes all answers at the end, in the order of the prompts. A [`shard`] is a part of the prompts. A prompt takes
//! only a few numbers of memory.

pub mod answers;
pub(crate) mod energy;
mod pattern;
pub mod plan;
pub mod prompter;
pub mod records;
pub mod replica;
pub mod request_line;
pub mod shard;
pub mod source;
pub mod work;

use std::fmt;

use ::replica::ReplicaError;
use engine::EngineError;
use hint::Hint;

/// A prompt's number and place: ``2 (`prompts.txt`, line 3)``.
#[derive(Debug)]
pub struct Place(String);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Errors of answering prompts.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// The prompts cannot be read.
    #[error(transparent)]
    Source(#[from] source::SourceError),
    #[error("could not run prompt {place}")]
    Line {
        place: Place,
        #[source]
        source: Box<request_line::LineError>,
    },
    /// Two lines of a batch file have the same `custom_id`, so their answers could not be distinguished.
    #[error("could not run prompt {place}: prompt {first} has its `custom_id`, `{id}`, too")]
    SameId { id: String, first: Place, place: Place },
    /// An answer is recorded, to something else than what stands there now.
    #[error("could not go on: the recorded answer to prompt {place} is for another prompt or other settings")]
    Changed { place: Place },
    /// Answers cannot be kept.
    #[error(transparent)]
    Records(#[from] records::RecordsError),
    /// One of several processes does not go on.
    #[error("could not go on after {n_done} of {n} answers")]
    Replica {
        /// Answers that were kept.
        n_done: usize,
        n: usize,
        #[source]
        source: ReplicaError,
    },
    #[error("could not go on after {n_done} of {n} answers")]
    Engine {
        /// Answers that were kept.
        n_done: usize,
        n: usize,
        #[source]
        source: EngineError,
    },
}

impl Hint for BatchError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Source(error) => error.hint(),
            Self::Records(error) => error.hint(),
            Self::SameId { .. } => Some("give each line a `custom_id` of its own".to_owned()),
            Self::Changed { .. } => Some(records::RESTART_HINT.to_owned()),
            Self::Line { source, .. } => Some(source.hint().unwrap_or_else(|| {
                "correct the line, or record its error as its answer with `--out-format batch`".to_owned()
            })),
            Self::Engine { source, .. } => source.hint(),
            Self::Replica { source, .. } => {
                let goes_on = "run the same command again to continue from the finished answers";
                Some(source.hint().unwrap_or_else(|| goes_on.to_owned()))
            }
        }
    }
}
