//! What the examples have in common: a model on a device.

use std::error::Error;
use std::path::PathBuf;

use engine::blueprint::{ModelOptions, PrefixCache};
use engine::device::auto;
use engine::graph::placement::EmbeddingPlace;
use engine::{Engine, EngineOptions, Sizes};
use format::Dtype;
use kernel::object::store::Store;
use kernel::pipeline::Pipeline;
use kernel::template::Precision;
use kernel::template::library::Library;
use kernel::tuning::TuningTables;
use model::checkpoint::Checkpoint;
use model::checkpoint::layout::Layout;
use model::tokenizer::Tokenizer;

/// A model that is ready to step, and its tokenizer.
pub struct Loaded {
    pub engine: Engine,
    pub tokenizer: Tokenizer,
}

/// The tiny model, or one of a file with a `tokenizer.bin` beside it, for so many sequences at a time of so many
/// tokens each: on a GPU if there is one, else on this machine's cores.
pub fn load(model: Option<String>, n_slots: usize, n_tokens: usize) -> Result<Loaded, Box<dyn Error>> {
    let model =
        PathBuf::from(model.as_deref().unwrap_or(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/tiny/model.bin")));
    let checkpoint = Checkpoint::open(&model, Layout::Auto)?;
    let tokenizer = model.with_file_name("tokenizer.bin");
    let tokenizer = Tokenizer::from_file(&tokenizer, Some(checkpoint.config.vocab_size), None)?;

    let library = Library::load(&Library::default_search(None))?;
    let tables = TuningTables::load(&TuningTables::default_search(None))?;
    let opened = auto::choose(&tables, auto::Wanted::default()).open(&tables, 0)?;
    let pipeline = Pipeline::new(library, tables, opened.target, Store::from_env()?, opened.driver)?;
    let sizes = Sizes::for_tokens(n_slots, n_tokens, n_slots);
    let options = ModelOptions {
        precision: Precision::F32,
        kv_dtype: Dtype::F32,
        n_slots: sizes.n_slots,
        capacity_tokens: sizes.capacity_tokens,
        max_rows: 512,
        max_logit_rows: sizes.max_logit_rows,
        odd_window: None,
        kv_budget_bytes: 1 << 30,
        max_prompt_rows: None,
        prefix_cache: PrefixCache::OFF,
        drafts: None,
        embedding: EmbeddingPlace::AsNeeded,
    };
    let options = EngineOptions { pipeline, peers: vec![], host: None, model: options, watchdog: None };
    Ok(Loaded { engine: Engine::load(&checkpoint, options, &())?, tokenizer })
}
