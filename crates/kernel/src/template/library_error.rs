//! Errors of the template library.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Misfit, Problem};
use crate::target::Target;
use data::Place;
use expression::ExpressionError;
use hint::Hint;

/// What is wrong with a file of the library, or with what was asked of it. Kept with the file until it is needed,
/// so it can be cloned.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LibraryError {
    /// A folder or a file could not be read.
    #[error("could not read `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: Arc<io::Error>,
    },
    /// A file lies where it would be ignored: a misspelt extension, a bad name.
    #[error("{place}: not a kernel, expected {expected}")]
    StrayFile {
        place: Place,
        /// What files may be called there.
        expected: &'static str,
    },
    /// The TOML is wrong, has an unknown key, or lacks one.
    #[error("{place}: could not read the {what}: {message}")]
    Toml {
        place: Place,
        /// `contract` or `front matter`.
        what: &'static str,
        /// The TOML parser's message.
        message: String,
    },
    /// A template does not begin with a comment.
    #[error("{place}: no front matter, expected the file to begin with a comment: {{# … #}}")]
    NoFrontMatter { place: Place },
    /// Something declared is not as it must be.
    #[error("{place}: {item}: expected {expected}, found {found}")]
    Declaration { place: Place, item: String, expected: String, found: String },
    /// An invalid expression.
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    /// The body is not a template.
    #[error("{place}: {message}")]
    Syntax {
        place: Place,
        /// The template engine's message.
        message: String,
    },
    /// A name is used that nothing declares.
    #[error("{place}: `{name}` is not declared, expected one of {}", known.join(", "))]
    UnknownName {
        place: Place,
        name: String,
        /// The names that could have been meant.
        known: Vec<String>,
    },
    /// A parameter or a fact is declared that nothing uses.
    #[error("{place}: the {what} `{name}` is declared and never used")]
    Unused {
        place: Place,
        /// `parameter` or `fact`.
        what: &'static str,
        name: String,
    },
    /// What may be declared once is declared twice, in one file or in those that a template uses.
    #[error("{place}: {item} is declared a second time, first in {first}")]
    Twice {
        /// The later line.
        place: Place,
        /// As messages name it: the parameter `tile_n`.
        item: String,
        /// The earlier line.
        first: Place,
    },
    /// Front matter uses a file that is nowhere.
    #[error("{place}: uses `{name}`, which is in the `lib/` of none of the template folders")]
    NoUse { place: Place, name: String },
    /// A template includes a file that is nowhere.
    #[error("{place}: includes `{name}`, which is in none of the template folders")]
    NoInclude { place: Place, name: String },
    /// A file of the library is included where a name that it takes is not there yet.
    #[error("{place}: includes `{file}`, which takes the {language} name `{name}`: nothing before this line gives it")]
    NotGiven {
        /// The line of the include.
        place: Place,
        /// The file that is included.
        file: String,
        name: String,
        /// `C` or `Jinja`.
        language: &'static str,
    },
    /// A file of the library uses a name that its header does not list.
    #[error("{place}: `{name}` is used, and the file's header does not list it in `takes.jinja`")]
    Unlisted { place: Place, name: String },
    /// A header lists a name that is not in its file.
    #[error("{place}: the header lists `{name}`, which the file does not have")]
    StaleName { place: Place, name: String },
    /// An op has no contract.
    #[error("the op `{op}` has no contract: `{op}/op.toml` is in none of the template folders ({})", searched.join(", "))]
    NoContract {
        op: String,
        /// Where it was looked for.
        searched: Vec<String>,
    },
    /// Ops that cannot be fused.
    #[error("{place}: could not fuse {first} and {second}: {why}")]
    Fusion {
        /// A template, or the second op's contract.
        place: Place,
        first: String,
        second: String,
        /// The rule that is broken.
        why: String,
    },
    /// A broken file stands where it could be chosen; what it shadows is not used in its place.
    #[error("the template `{name}` is broken")]
    Broken {
        /// The file's path below its folder.
        name: String,
        #[source]
        source: Arc<LibraryError>,
    },
    /// No template of an op fits.
    #[error("no template of `{op}` fits {target} at precision {precision}{}", reasons.iter().map(|reason| format!("\n  {reason}")).collect::<String>())]
    NoneFits {
        /// The op, or ops joined by `+`.
        op: String,
        target: String,
        /// The precision asked for.
        precision: &'static str,
        /// Each template with the requirement that does not hold.
        reasons: Vec<String>,
    },
    /// A template was asked for by a name that none has.
    #[error("there is no template `{label}`")]
    NoTemplate {
        /// `op/variant`.
        label: String,
    },
}

impl LibraryError {
    /// No template is to be had for a problem, each for its reason.
    pub(crate) fn none_fits(problem: &Problem, target: &Target, misfits: &[(Arc<str>, Misfit)]) -> Self {
        Self::NoneFits {
            op: problem.ops.join("+"),
            target: target.arch.clone(),
            precision: problem.precision.name(),
            reasons: misfits.iter().map(|(template, misfit)| format!("{template} {misfit}")).collect(),
        }
    }
}

impl Hint for LibraryError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Broken { source, .. } => source
                .hint()
                .or(Some("correct or remove the file; a broken file is never replaced by the one it shadows".into())),
            Self::NoneFits { .. } => Some("`gptoss-jit kernels ls --why` shows what each template needs".into()),
            Self::NoTemplate { .. } => Some("`gptoss-jit kernels ls` lists them".into()),
            Self::StrayFile { .. } => Some("rename the file, or take it out of the folder".into()),
            Self::Expression(error) => error.hint(),
            Self::UnknownName { .. } => Some(
                "names come from the op's `op.toml`, from the template's `[params]`, and from `templates/README.md`"
                    .into(),
            ),
            Self::Twice { .. } | Self::NoUse { .. } => Some("`templates/README.md` describes `uses`".into()),
            Self::NotGiven { .. } | Self::Unlisted { .. } | Self::StaleName { .. } => {
                Some("`templates/README.md` describes the header of a file in `lib/`".into())
            }
            _ => None,
        }
    }
}
