//! Loads an engine by a model's name, as `run` does, with fewer choices: one device, which has the whole model.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::available_parallelism;

use bytes::Bytes;
use serde_json::Map;

use crate::error::Error;
use chat::chat_format::specials::{Specials, begin_of_texts};
use chat::chat_format::{Besides, ChatFormat, Conversation, Has, Prompt, Prompts, Thinking, Word, choose};
use chat::{Reasoning, Turn, today};
use engine::blueprint::{ModelOptions, PrefixCache, precision_for};
use engine::device::Device;
use engine::device::auto::{self, Opened, Wanted};
use engine::graph::placement::EmbeddingPlace;
use engine::scheduler::DraftOptions;
use engine::{Engine, EngineOptions, Sizes};
use hint::chain;
use kernel::object::store::Store;
use kernel::pipeline::Pipeline;
use kernel::template::Precision;
use kernel::template::library::Library;
use kernel::tuning::TuningTables;
use model::built_in::BuiltInFile;
use model::checkpoint::Checkpoint;
use model::checkpoint::kept::StoredWeights;
use model::checkpoint::layout::Layout;
use model::family::known;
use model::hub;
use model::tokenizer::Tokenizer;
use model::tokenizer::limit::Limit;
use system::bounded_process::{this_program, work_is_done_by};

/// Most sequences at a time.
const MOST_SLOTS: usize = 1024;
/// Most threads for each core.
const MOST_THREADS: usize = 4;
/// Default length of a sequence, in tokens.
const CONTEXT: usize = 4096;
/// Most rows of a step.
const CHUNK: usize = 512;
/// Ends of prompts that are kept, for those that begin alike: in a chat each begins as the last one did.
const SNAPSHOTS: usize = 4;

/// What Python says of how a model is to be loaded.
pub(crate) struct LoadOptions<'a> {
    pub(crate) program: PathBuf,
    pub(crate) model: Option<PathBuf>,
    pub(crate) device: &'a str,
    pub(crate) slots: usize,
    pub(crate) context: Option<usize>,
    pub(crate) precision: Option<&'a str>,
    pub(crate) threads: usize,
}

/// What is known of a loaded model besides its engine.
pub(crate) struct Loaded {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) ends: Vec<u32>,
    pub(crate) device: String,
    pub(crate) slots: usize,
    pub(crate) context: usize,
    pub(crate) vocab_size: usize,
    /// From the cache or a bundle, and compiled.
    pub(crate) kernels: (usize, usize),
    chat: Result<Arc<dyn ChatFormat>, String>,
}

impl Loaded {
    /// The model's chat format.
    ///
    /// # Errors
    /// [`Error::NoChat`].
    pub(crate) fn chat(&self) -> Result<&dyn ChatFormat, Error> {
        self.chat.as_deref().map_err(|why| Error::NoChat { why: why.clone() })
    }

    /// The prompt for the assistant's next words.
    ///
    /// # Errors
    /// There is no format, or it cannot say that.
    pub(crate) fn chat_prompt(&self, turns: &[Turn], reasoning: Option<Reasoning>) -> Result<Prompt, Error> {
        let conversation = Conversation {
            current_date: Some(today()),
            thinking: Thinking::from(reasoning),
            tools: &[],
            may_call: false,
            format: None,
            turns,
            goes_on: false,
            words: Map::new(),
        };
        Ok(self.chat()?.prompt(&conversation, &Limit::NONE)?)
    }
}

/// Loads a model.
///
/// # Errors
/// An option that cannot be; a model or a device that cannot be had.
pub(crate) fn load(options: LoadOptions<'_>) -> Result<(Loaded, Engine), Error> {
    let asked = options.precision.map(precision).transpose()?;
    if !(1..=MOST_SLOTS).contains(&options.slots) {
        return Err(Error::Slots { found: options.slots, most: MOST_SLOTS });
    }
    let most_threads = MOST_THREADS * available_parallelism().map_or(1, usize::from);
    if options.threads > most_threads {
        return Err(Error::Threads { found: options.threads, most: most_threads });
    }
    work_is_done_by(options.program);
    known::read(&[], known::folder().as_deref())?;

    let checkpoint = match &options.model {
        Some(model) => Checkpoint::open(&hub::locate(model)?, Layout::Auto)?,
        None => Checkpoint::from_bytes(built_in(BuiltInFile::Model)?, Layout::Auto)?,
    };
    let tokenizer = match &options.model {
        Some(_) => Tokenizer::of_checkpoint(&checkpoint, None)?,
        None => Tokenizer::from_bin(built_in(BuiltInFile::Tokenizer)?, Some(checkpoint.config.vocab_size), None)?,
    };
    let begin = begin_of_texts(&checkpoint, &tokenizer)?;
    let tokenizer = tokenizer.with_begin(begin);
    tokenizer.check_model(checkpoint.config.vocab_size)?;
    let specials = Specials::read(&checkpoint, &tokenizer)?;
    let chat = chat_format(&checkpoint, &tokenizer, &specials, options.model.is_none());

    let (precision, checkpoint) = precision_for(&checkpoint, asked, StoredWeights::default());
    let weights = usize::try_from(checkpoint.tensor_bytes()).unwrap_or(usize::MAX);
    let pipeline = pipeline(&options.device.parse()?, weights, options.threads)?;
    let device = pipeline.driver().describe();
    let left = pipeline.memory()?.map(|memory| memory.free_bytes.saturating_sub(weights));
    let context = options.context.unwrap_or(CONTEXT).clamp(1, checkpoint.config.max_seq_len);
    let sizes = Sizes::for_tokens(options.slots, context, options.slots);
    let model = ModelOptions {
        precision,
        kv_dtype: precision.activation(),
        n_slots: sizes.n_slots,
        capacity_tokens: sizes.capacity_tokens,
        max_rows: CHUNK.max(sizes.n_slots),
        max_logit_rows: sizes.max_logit_rows,
        odd_window: None,
        kv_budget_bytes: left.map_or(usize::MAX, |left| left / 2),
        max_prompt_rows: None,
        prefix_cache: PrefixCache::new(SNAPSHOTS),
        drafts: DraftOptions::usual_on(pipeline.target(), precision),
        embedding: EmbeddingPlace::AsNeeded,
    };
    let options = EngineOptions { pipeline, peers: vec![], host: None, model, watchdog: None };
    let engine = Engine::load(&checkpoint, options, &())?;
    let stats = engine.executor().pipeline().store().stats();
    let loaded = Loaded {
        tokenizer,
        ends: specials.ends,
        device,
        slots: engine.kv_layout().n_slots,
        context: engine.kv_layout().capacity_tokens,
        vocab_size: checkpoint.config.vocab_size,
        kernels: (stats.from_cache + stats.from_bundles, stats.compiled),
        chat: chat.map_err(|error| chain(&error)),
    };
    Ok((loaded, engine))
}

/// A file of the tiny model, which is used where none is named: the program contains it, so that a wheel has it once.
///
/// # Errors
/// [`Error::BuiltIn`].
fn built_in(file: BuiltInFile) -> Result<Bytes, Error> {
    file.ask(&this_program()).map_err(|source| Error::BuiltIn { source })
}

/// The format of a model's chats, if it has one: as `run -m chat` chooses it.
fn chat_format(
    checkpoint: &Checkpoint,
    tokenizer: &Tokenizer,
    specials: &Specials,
    is_built_in: bool,
) -> Result<Arc<dyn ChatFormat>, chat::chat_format::ChatFormatError> {
    let template = checkpoint.origin.chat_template.as_deref();
    let prompts = match template {
        Some(_) => Prompts::Checkpoint,
        None if is_built_in => Prompts::Plain,
        None => Prompts::Format,
    };
    let besides = Besides { tool_template: checkpoint.origin.tool_template.as_deref(), ..Besides::default() };
    let has = Has { tokenizer, specials, template, program: &this_program(), besides };
    choose(Word::of_family(checkpoint.config.family), prompts, &has)
}

/// Kernels for a device, from the usual places.
fn pipeline(device: &Device, model_bytes: usize, n_threads: usize) -> Result<Pipeline, Error> {
    let library = Library::load(&Library::default_search(None))?.with_program(this_program());
    let tables = TuningTables::load(&TuningTables::default_search(None))?;
    let (target, driver) = if *device == Device::Auto {
        let wanted = Wanted { model_bytes, least_bytes: model_bytes, most_bytes: usize::MAX };
        let Opened { target, driver, .. } = auto::choose(&tables, wanted).open(&tables, n_threads)?;
        (target, driver)
    } else {
        device.open(&tables, n_threads)?
    };
    Ok(Pipeline::new(library, tables, target, Store::from_env()?, driver)?)
}

/// # Errors
/// [`Error::Precision`].
fn precision(word: &str) -> Result<Precision, Error> {
    match word {
        "bf16" => Ok(Precision::Bf16),
        "f32" => Ok(Precision::F32),
        _ => Err(Error::Precision { word: word.to_owned() }),
    }
}
