//! The ways in which a kernel can be wrong.

use std::fmt;
use std::sync::Arc;

use gpu::GpuError;

use super::compare::Difference;
use super::memory::Side;
use super::parent::Death;
use super::rounding::Rounding;
use data::Place;
use expression::ExpressionError;
use kernel::object::resources::ObjectError;
use kernel::object::store::StoreError;
use kernel::template::render::RenderError;
use reference::ReferenceError;

/// A case that went wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The shape, types, parameters and placement.
    pub case: String,
    pub wrong: Wrong,
    /// Further kernels of the template that the compiler refuses in the same words.
    pub(crate) n_more: usize,
}

/// What can be wrong with a kernel in one case.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Wrong {
    /// No test of the contract fits the template.
    #[error("no test in op.toml fits the template, so nothing of it is checked")]
    NoTest,
    /// It cannot be rendered.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// It cannot be compiled.
    #[error("{error}{}", places.iter().map(|(line, place)| format!("\n  line {line} comes from {place}")).collect::<String>())]
    Compile {
        /// The compiler's output.
        error: StoreError,
        /// Lines of the rendered source that it calls wrong, and where they come from.
        places: Vec<(usize, Place)>,
    },
    /// The object is not what its contract says, or uses more than its template allows.
    #[error("the object for {target}: {error}{}", if error.is_of_arguments() { "\n  `{{ signature }}` writes the kernel's head from the contract" } else { "" })]
    Object { target: String, error: Arc<ObjectError> },
    /// A shape or a launch expression does not evaluate.
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    /// The device refuses it.
    #[error("the device refuses it: {0}")]
    Device(Arc<GpuError>),
    /// What watches it stopped it.
    #[error("{error}{}\n  `{show}` prints it", of_places(places))]
    Fault {
        error: Arc<GpuError>,
        /// The rendered text's lines, that of the fault and those that called it, and where in templates they are.
        places: Vec<(u32, Place)>,
        /// What prints the rendered text.
        show: String,
    },
    /// The case cannot be computed on the host.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// Contract and reference disagree on what there is.
    #[error("`{argument}` has {contract} elements by the contract and {reference} by the reference")]
    Length {
        argument: String,
        /// By `op.toml`.
        contract: usize,
        /// By `crates/reference`.
        reference: usize,
    },
    /// An output is too far from the reference.
    #[error(transparent)]
    Different(#[from] Difference),
    /// bf16 precision costs more than rounding the activations explains.
    #[error(
        "`{argument}` is {:.1e} of its norm off, {:.1} times what rounding the activations to bf16 does; allowed: 2^-7 and 3 times",
        rounding.relative, rounding.times()
    )]
    Rounding { argument: String, rounding: Rounding },
    /// Memory next to an argument was written.
    #[error("it writes outside of `{argument}`: byte {offset_bytes} {side} it changed")]
    OutOfBounds {
        argument: String,
        side: Side,
        /// Bytes from the argument's nearest edge.
        offset_bytes: usize,
    },
    /// Workspace that is to be left zero was not.
    #[error(
        "it leaves the workspace `{argument}` other than zero, from byte {offset_bytes} on; `zeroed` asks every launch to leave it zero"
    )]
    NotZero {
        argument: String,
        /// The first byte that is not zero.
        offset_bytes: usize,
    },
    /// An argument is longer than a test's can be.
    #[error("`{argument}` {shape} has {len_bytes} bytes, expected at most 2^30 in a test")]
    TooLarge {
        argument: String,
        shape: String,
        /// In bytes.
        len_bytes: usize,
    },
    /// It does not end, and where it is.
    #[error("{text}")]
    Hangs { text: String },
    /// The process that ran it ended.
    #[error("{0}")]
    Died(Death),
    /// The process that was to run it ended before it ran any: nothing is known of the kernel.
    #[error("{0}")]
    Unstarted(Death),
    /// The process that was to run it ended too often.
    #[error("they were not run: {}", ended(*n_deaths))]
    NotRun { n_deaths: usize },
    /// A child's report about a kernel.
    #[error("{text}")]
    Told {
        text: String,
        /// Whether an output is too far from the reference.
        is_different: bool,
        /// [`Wrong::compilers_words`].
        words: Option<String>,
    },
    /// An argument that is only read was written.
    #[error("it writes to `{argument}`, which its contract only reads")]
    ReadOnly { argument: String },
}

fn of_places(places: &[(u32, Place)]) -> String {
    let first = places.first().map(|(_, place)| format!("\n  the line comes from {place}"));
    let others = places.iter().skip(1).map(|(line, place)| format!("\n  line {line} comes from {place}"));
    first.into_iter().chain(others).collect()
}

/// How often a template ended the process that ran it.
fn ended(n_deaths: usize) -> String {
    match n_deaths {
        1 => "a kernel of the template ended the process that ran it".into(),
        n => format!("{n} kernels of the template ended the process that ran them"),
    }
}

impl Wrong {
    /// No object, and nothing known of the lines.
    pub(crate) const fn compile(error: StoreError) -> Self {
        Self::Compile { error, places: Vec::new() }
    }

    /// What the compiler calls an error, without where: the same mistake in another kernel has the same words.
    pub(super) fn compilers_words(&self) -> Option<&str> {
        if let Self::Told { words, .. } = self {
            return words.as_deref();
        }
        let Self::Compile { error, .. } = self else { return None };
        let log = error.log();
        log.lines().find_map(|line| Some(&line[line.find("error")?..])).or(Some(log))
    }
}

impl Wrong {
    /// Whether the kernel was tried and is wrong. Of one that did not compile, that no test fits, or that had too
    /// little time, nothing is known.
    pub fn is_of_the_kernel(&self) -> bool {
        !matches!(
            self,
            Self::NoTest
                | Self::NotRun { .. }
                | Self::Unstarted(_)
                | Self::Compile { .. }
                | Self::Device(_)
                | Self::Told { words: Some(_), .. }
                | Self::Hangs { .. }
                | Self::Died(Death::TimedOut { .. } | Death::Garbage | Death::Stopped)
        )
    }

    /// Whether an output is too far from the reference.
    pub fn is_different(&self) -> bool {
        matches!(self, Self::Different(_) | Self::Told { is_different: true, .. })
    }
}

impl From<GpuError> for Wrong {
    fn from(error: GpuError) -> Self {
        Self::Device(Arc::new(error))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.case, self.wrong)?;
        match self.n_more {
            0 => Ok(()),
            1 => write!(f, "\n  and one more kernel in the same words"),
            n => write!(f, "\n  and {n} more kernels in the same words"),
        }
    }
}
