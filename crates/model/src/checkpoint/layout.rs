//! Known defects of some `.bin` files: detected where possible, otherwise chosen by a flag.

use std::fmt;

use serde::Serialize;

use super::CheckpointError;

/// How the tensors of a `.bin` file are laid out.
///
/// Two defects cannot be seen in the file, since shapes and sizes agree:
///
/// - The exporters of gpt-oss-amd put the embedding and the unembedding in an order that depends on Python's hash
///   seed, so that many files have them swapped. Nothing in the file tells which is which: both are `(vocab_size,
///   hidden_size)`, and no statistic of the weights is known to us that has been verified to tell them apart. A model
///   whose output is noise from the first token on is worth a try with `swapped`.
/// - The exporter of the gfx11 fork writes the router and the second expert matrix transposed. Its files can be
///   guessed by `max_seq_len` being 131072, where the other exporters write 2048.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Layout {
    /// As documented, and `fork` if the header's seq_len is 131072
    #[default]
    Auto,
    /// As documented
    Plain,
    /// The unembedding lies before the embedding
    Swapped,
    /// The router and the second expert matrix are transposed
    Fork,
    /// Both
    SwappedFork,
}

/// The header's `seq_len` in files of the gfx11 fork.
pub(super) const FORK_SEQ_LEN: usize = 131_072;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decided {
    pub(crate) swapped: bool,
    pub(crate) transposed: bool,
}

impl Layout {
    /// Refuses a layout that was chosen for a kind of file that has none.
    pub(super) fn expect_none(self, found: &'static str) -> Result<(), CheckpointError> {
        match self {
            Self::Auto | Self::Plain => Ok(()),
            Self::Swapped | Self::Fork | Self::SwappedFork => Err(CheckpointError::Layout { found }),
        }
    }

    /// Decides for a file whose header says `max_seq_len`, and reports what was done other than plainly reading.
    pub(super) fn decide(self, max_seq_len: usize, findings: &mut Vec<LayoutFinding>) -> Decided {
        let looks_like_fork = max_seq_len == FORK_SEQ_LEN;
        let decided = Decided {
            swapped: matches!(self, Self::Swapped | Self::SwappedFork),
            transposed: matches!(self, Self::Fork | Self::SwappedFork) || (self == Self::Auto && looks_like_fork),
        };
        if decided.swapped {
            findings.push(LayoutFinding::SwappedEmbeddings);
        }
        if decided.transposed {
            findings.push(LayoutFinding::ForkTransposes { guessed: self == Self::Auto });
        } else if looks_like_fork {
            findings.push(LayoutFinding::ForkNotTransposed);
        }
        decided
    }
}

/// Something wrong or unusual in a file, and what was done about it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LayoutFinding {
    /// An integer field holds the bits of a float: files of the fork's older exporter.
    FloatInInteger {
        /// The field, under our name.
        field: &'static str,
        /// Where it lies in the file, in bytes.
        offset: usize,
        value: usize,
    },
    /// A float field holds the bits of an integer: the exporters pack by the type they find in config.json.
    IntegerInFloat {
        /// The field, under our name.
        field: &'static str,
        /// Where it lies in the file, in bytes.
        offset: usize,
        value: f32,
    },
    /// The router and the second expert matrix were taken as transposed.
    ForkTransposes {
        /// By the header, not by the user.
        guessed: bool,
    },
    /// The header looks like the fork's, but the user said that nothing is transposed.
    ForkNotTransposed,
    /// The user said that embedding and unembedding are swapped.
    SwappedEmbeddings,
}

impl fmt::Display for LayoutFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FloatInInteger { field, offset, value } => {
                write!(f, "`{field}` at offset {offset} was written as a float; read as {value}")
            }
            Self::IntegerInFloat { field, offset, value } => {
                write!(f, "`{field}` at offset {offset} was written as an integer; read as {value:?}")
            }
            Self::ForkTransposes { guessed: true } => write!(
                f,
                "seq_len is {FORK_SEQ_LEN}, as in files of the gfx11 fork, which stores the router and mlp2 transposed; \
                 they are transposed back (`--layout plain` if that is wrong)"
            ),
            Self::ForkTransposes { guessed: false } => {
                write!(f, "the router and mlp2 are transposed back, as `--layout` says")
            }
            Self::ForkNotTransposed => write!(
                f,
                "seq_len is {FORK_SEQ_LEN}, as in files of the gfx11 fork, which stores the router and mlp2 transposed; \
                 they are read as they are, as `--layout` says"
            ),
            Self::SwappedEmbeddings => write!(f, "embedding and unembedding are swapped, as `--layout` says"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_guesses_the_fork_by_its_seq_len_and_a_choice_overrules_it() {
        let decide = |layout: Layout, seq_len| {
            let mut findings = Vec::new();
            let decided = layout.decide(seq_len, &mut findings);
            (decided.swapped, decided.transposed, findings)
        };
        assert_eq!(decide(Layout::Auto, 2048), (false, false, vec![]));
        assert_eq!(decide(Layout::Auto, 131_072), (false, true, vec![LayoutFinding::ForkTransposes { guessed: true }]));
        assert_eq!(decide(Layout::Plain, 131_072), (false, false, vec![LayoutFinding::ForkNotTransposed]));
        assert_eq!(
            decide(Layout::SwappedFork, 64),
            (true, true, vec![LayoutFinding::SwappedEmbeddings, LayoutFinding::ForkTransposes { guessed: false }])
        );
    }
}
