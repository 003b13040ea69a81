//! Errors, as Python sees them.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use chat::chat_format::ChatFormatError;
use chat::chat_format::specials::SpecialsError;
use engine::EngineError;
use engine::device::{DeviceError, UnknownName};
use gpu::GpuError;
use hint::{Hint, chain};
use kernel::object::store::StoreError;
use kernel::pipeline::PipelineError;
use kernel::template::library_error::LibraryError;
use kernel::tuning::TuningError;
use model::checkpoint::CheckpointError;
use model::family::FamilyError;
use model::hub::NotInHub;
use model::tokenizer::TokenizerError;
use system::bounded_process::BoundedError;

pyo3::create_exception!(
    gptoss_jit,
    GptossError,
    PyRuntimeError,
    "What went wrong, with its causes. `hint` says what to do about it, or is None."
);

/// Why a call from Python failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Chat(#[from] ChatFormatError),
    /// The program is of this version, and yet another build.
    #[error("the program did not give its built-in model")]
    BuiltIn {
        #[source]
        source: BoundedError,
    },
    /// The model has no way of writing chats.
    #[error("the model has no chat format: {why}")]
    NoChat { why: String },
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Family(#[from] FamilyError),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    Library(#[from] LibraryError),
    #[error(transparent)]
    NotInHub(#[from] NotInHub),
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    #[error(transparent)]
    Specials(#[from] SpecialsError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Tuning(#[from] TuningError),
    #[error(transparent)]
    UnknownDevice(#[from] UnknownName),
    /// A number that chooses tokens is beyond its range.
    #[error("`{name}` is {found}, expected {least} to {most}")]
    Field { name: &'static str, found: f64, least: f32, most: f32 },
    #[error("`precision` is `{word}`, expected `bf16` or `f32`")]
    Precision { word: String },
    #[error("`reasoning` is `{word}`, expected `low`, `medium` or `high`")]
    Reasoning { word: String },
    #[error("`role` is `{role}`, expected `system`, `developer`, `user` or `assistant`")]
    Role { role: String },
    #[error("`slots` is {found}, expected 1 to {most}")]
    Slots { found: usize, most: usize },
    #[error("`threads` is {found}, expected at most {most}, four for every core")]
    Threads { found: usize, most: usize },
    /// It has ended, was cancelled, or went with a step that failed.
    #[error("there is no request {request}: it ended, or a step failed and all requests with it")]
    NoRequest { request: usize },
    /// Logits are computed between requests.
    #[error("logits were asked for while {n} requests run")]
    Busy { n: usize },
}

impl Hint for Error {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Chat(error) => error.hint(),
            Self::Checkpoint(error) => error.hint(),
            Self::Device(error) => error.hint(),
            Self::Engine(error) => error.hint(),
            Self::Family(error) => error.hint(),
            Self::Gpu(error) => error.hint(),
            Self::Library(error) => error.hint(),
            Self::NotInHub(error) => error.hint(),
            Self::Pipeline(error) => error.hint(),
            Self::Specials(error) => error.hint(),
            Self::Store(error) => error.hint(),
            Self::Tokenizer(error) => error.hint(),
            Self::Tuning(error) => error.hint(),
            Self::BuiltIn { .. } => Some("install the program and the module from one package".to_owned()),
            Self::Busy { .. } => Some("finish or close the generations that run".to_owned()),
            _ => None,
        }
    }
}

/// The same as an exception, with what to do about it in `hint`.
pub(crate) fn raised(error: Error) -> PyErr {
    let raised = GptossError::new_err(chain(&error));
    Python::attach(|py| {
        // An exception without a hint is better than none.
        let _ = raised.value(py).setattr("hint", error.hint());
    });
    raised
}
