//! The engine as a module of Python, `gptoss_jit._engine`: loading, requests and logits. What people call is written in
//! Python above it (`python/gptoss_jit/`).
//!
//! The interpreter's lock is released while a model is loaded and while a step runs, so that other Python threads
//! continue and submit requests; all requests share every step.

mod error;
mod loading;
mod requests;

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};

use chat::{AssistantMessage, MessagePart, Reasoning, Turn};
use engine::scheduler::{Request, Sampling, SamplingWishes, Wish};
use error::{Error, raised};
use loading::{LoadOptions, Loaded};
use requests::Requests;

/// A model on a device.
#[pyclass(frozen, module = "gptoss_jit._engine")]
struct Engine {
    loaded: Loaded,
    requests: Mutex<Requests>,
}

/// How tokens are chosen, as Python says it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Wishes {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    seed: Option<i64>,
}

impl Wishes {
    /// # Errors
    /// [`Error::Field`] where a number is beyond its range.
    fn sampling(&self) -> Result<Sampling, Error> {
        let Self { temperature, top_p, top_k, min_p, seed } = *self;
        let mut wishes = SamplingWishes { temperature, top_p, top_k, min_p, seed, ..SamplingWishes::default() };
        for (name, wish) in wishes.fields() {
            if let Wish::Number(Some(found), range) = wish
                && !range.contains(&*found)
            {
                let (least, most) = range.into_inner();
                return Err(Error::Field { name, found: f64::from(*found), least, most });
            }
        }
        Ok(wishes.sampling(Sampling::GREEDY))
    }
}

impl Engine {
    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Engine {
    /// Loads a model.
    ///
    /// - `program`: `gptoss-jit` of the same version, which is started to compile kernels
    /// - `sizes`: sequences at a time, and tokens of one
    #[new]
    #[pyo3(signature = (program, model, device, sizes, precision, threads))]
    fn new(
        py: Python<'_>,
        program: std::path::PathBuf,
        model: Option<std::path::PathBuf>,
        device: &str,
        sizes: (usize, Option<usize>),
        precision: Option<&str>,
        threads: usize,
    ) -> PyResult<Self> {
        let (slots, context) = sizes;
        let options = LoadOptions { program, model, device, slots, context, precision, threads };
        let (loaded, engine) = py.detach(|| loading::load(options)).map_err(raised)?;
        Ok(Self { loaded, requests: Mutex::new(Requests::new(engine)) })
    }

    /// What the device is called.
    #[getter]
    fn device(&self) -> &str {
        &self.loaded.device
    }

    /// Sequences at a time.
    #[getter]
    fn slots(&self) -> usize {
        self.loaded.slots
    }

    /// Longest sequence, in tokens.
    #[getter]
    fn context(&self) -> usize {
        self.loaded.context
    }

    /// Tokens that the model knows.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.loaded.vocab_size
    }

    /// The ids that end a sequence.
    #[getter]
    fn ends(&self) -> Vec<u32> {
        self.loaded.ends.clone()
    }

    /// Kernels that were found compiled, and those that were compiled here.
    #[getter]
    fn kernels(&self) -> (usize, usize) {
        self.loaded.kernels
    }

    /// The ids of a prompt: those of its text, after the token with which the model's texts begin.
    fn encode(&self, py: Python<'_>, text: &[u8]) -> PyResult<Vec<u32>> {
        let tokenizer = &self.loaded.tokenizer;
        py.detach(|| Ok(tokenizer.begun(tokenizer.encode_prompt(text)?))).map_err(|error: Error| raised(error))
    }

    /// The text of token ids, as bytes: it may begin or end within a character.
    fn decode<'py>(&self, py: Python<'py>, ids: Vec<u32>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.loaded.tokenizer.decode_all(&ids).map_err(|error| raised(error.into()))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// The ids of a chat's prompt, for the assistant's next words.
    fn chat_ids(&self, messages: Vec<(String, String)>, reasoning: Option<&str>) -> PyResult<Vec<u32>> {
        let (turns, reasoning) = (turns(messages).map_err(raised)?, effort(reasoning).map_err(raised)?);
        Ok(self.loaded.chat_prompt(&turns, reasoning).map_err(raised)?.ids)
    }

    /// Submits a prompt of ids. The number that is returned names the request to `take` and `cancel`.
    fn submit(
        &self,
        py: Python<'_>,
        ids: Vec<u32>,
        max_new_tokens: usize,
        stop: Vec<u32>,
        wishes: Wishes,
    ) -> PyResult<usize> {
        let submit = || {
            let text = self.loaded.tokenizer.text_stream();
            let request = Request::new(ids, max_new_tokens, stop, wishes.sampling()?);
            self.requests().submit(request, requests::Reading::Text(text))
        };
        py.detach(submit).map_err(raised)
    }

    /// Submits a chat, as `submit` does a prompt.
    fn submit_chat(
        &self,
        py: Python<'_>,
        messages: Vec<(String, String)>,
        reasoning: Option<&str>,
        max_new_tokens: usize,
        wishes: Wishes,
    ) -> PyResult<usize> {
        let submit = || {
            let prompt = self.loaded.chat_prompt(&turns(messages)?, effort(reasoning)?)?;
            let chat = self.loaded.chat()?;
            let stop = self.loaded.ends.iter().chain(chat.stop_ids()).copied().collect();
            let request = Request::new(prompt.ids, max_new_tokens, stop, wishes.sampling()?);
            self.requests().submit(request, requests::Reading::Chat(chat.answer(prompt.begun, false)))
        };
        py.detach(submit).map_err(raised)
    }

    /// What became of a request since the last call, at least one thing; steps are run until there is one. Each is a
    /// token or none, text, whose text it is (`answer`, `reasoning`, `commentary`), and why the request ended, if it
    /// did. Behind its end a request is forgotten.
    fn take(&self, py: Python<'_>, request: usize) -> PyResult<Vec<requests::Told>> {
        loop {
            let told = py.detach(|| self.requests().take(&self.loaded.tokenizer, request)).map_err(raised)?;
            if !told.is_empty() {
                return Ok(told);
            }
            py.check_signals()?;
        }
    }

    /// Ends a request, which is then forgotten. One that has ended is no error.
    fn cancel(&self, py: Python<'_>, request: usize) {
        py.detach(|| self.requests().cancel(request));
    }

    /// The logits after each of these tokens: f32, (tokens, vocab_size), row-major.
    fn logits<'py>(&self, py: Python<'py>, ids: Vec<u32>) -> PyResult<Bound<'py, PyByteArray>> {
        let logits = py.detach(|| self.requests().logits(&ids)).map_err(raised)?;
        let bytes: Vec<u8> = logits.iter().flat_map(|logit| logit.to_ne_bytes()).collect();
        Ok(PyByteArray::new(py, &bytes))
    }
}

/// What is said, in order.
///
/// # Errors
/// [`Error::Role`].
fn turns(messages: Vec<(String, String)>) -> Result<Vec<Turn>, Error> {
    let turn = |(role, text): (String, String)| match role.as_str() {
        "system" => Ok(Turn::System(text)),
        "developer" => Ok(Turn::Developer(text)),
        "user" => Ok(Turn::User(text)),
        "assistant" => Ok(Turn::Assistant(AssistantMessage::from(MessagePart::answer(text)))),
        _ => Err(Error::Role { role }),
    };
    messages.into_iter().map(turn).collect()
}

/// How long the model is to think.
///
/// # Errors
/// [`Error::Reasoning`].
fn effort(word: Option<&str>) -> Result<Option<Reasoning>, Error> {
    word.map(|word| match word {
        "low" => Ok(Reasoning::Low),
        "medium" => Ok(Reasoning::Medium),
        "high" => Ok(Reasoning::High),
        _ => Err(Error::Reasoning { word: word.to_owned() }),
    })
    .transpose()
}

/// The native part of the Python package `gptoss_jit`.
#[pymodule]
mod _engine {
    #[pymodule_export]
    use super::Engine;
    #[pymodule_export]
    use super::error::GptossError;
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // Warnings go to stderr, as those of the program do.
        let warnings = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).without_time().with_target(false);
        let _ = warnings.with_writer(std::io::stderr).try_init();
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
