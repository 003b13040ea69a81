//! Kinds of steps, on which choices depend.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What the rows of a step are to each other: what attention's choice depends on besides their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepKind {
    /// Every row is alone in its slot: each sequence gets one token further.
    Decode,
    /// A slot has several rows: a prompt is taken in.
    Mixed,
}

impl StepKind {
    /// Every kind of step.
    pub const ALL: [Self; 2] = [Self::Decode, Self::Mixed];

    /// The name in tables and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Mixed => "mixed",
        }
    }

    /// The fewest rows that such a step has.
    pub const fn fewest_rows(self) -> u32 {
        match self {
            Self::Decode => 1,
            Self::Mixed => 2,
        }
    }
}

impl fmt::Display for StepKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
