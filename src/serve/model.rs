//! The backend of a server: an engine on its thread, or a script.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use sha2::{Digest, Sha256};

use super::Args;
use super::loading::Loading;
use crate::args::Room;
use crate::args::chat_template::ChatTemplateArgs;
use crate::output::Output;
use crate::replicas;
use chat::chat_format::specials::Specials;
use chat::chat_format::{Besides, ChatFormat, ChatFormatError, Has, Prompts, Word, choose};
use engine::graph::kv_cache::{KvGroup, KvLayout, KvRequest};
use engine::{Engine, Sizes};
use model::checkpoint::{Checkpoint, Elements};
use model::tokenizer::Tokenizer;
use serve::backend::Backend;
use serve::engine_thread::EngineThread;
use serve::failing::Failing;
use serve::intake::IntakeLimits;
use serve::metrics::{KvCacheFacts, Metrics};
use serve::replay::{Replay, Scripts};
use serve::replica::{Replicas, ServeReplicaReady};
use system::bounded_process::this_program;
use system::units::counted;

/// A backend and what belongs to it.
pub(super) struct Served {
    pub(crate) backend: Arc<dyn Backend>,
    /// Whether it has failed, if it can.
    pub(crate) failing: Option<Arc<Failing>>,
    /// Whether it computes on the cores that serve.
    pub(crate) shares_cores: bool,
    pub(crate) tokenizer: Tokenizer,
    /// The tokens that end a sequence.
    pub(crate) ends: Vec<u32>,
    /// How chats are written and read, if the model has a way.
    pub(crate) chat: Result<Arc<dyn ChatFormat>, ChatFormatError>,
    /// The default name of the model.
    pub(crate) own_name: String,
    pub(crate) sizes: String,
    /// What computes, for people.
    pub(crate) device: String,
}

/// Sequences at a time on a processor, where more make each of them slower, and on a GPU.
const CPU_SLOTS: usize = 8;
const GPU_SLOTS: usize = 256;

/// The context of gpt-oss: of a script without a model.
const REPLAY_CONTEXT: usize = 131_072;

impl Served {
    /// Loads the model, or reads the script.
    pub(crate) fn load(args: &Args, metrics: Metrics, output: &Output) -> anyhow::Result<Self> {
        match (&args.replay, args.ranks.unwrap_or(1) as usize) {
            (Some(path), _) => Self::script(args, path, metrics, output),
            (None, 1) => Self::engine(args, metrics, output),
            (None, n) => Self::replicas(args, n, metrics, output),
        }
    }

    fn engine(args: &Args, metrics: Metrics, output: &Output) -> anyhow::Result<Self> {
        let checkpoint = args.model.open(output)?;
        let Spoken { tokenizer, ends, chat } = args.spoken(&checkpoint)?;
        let (loaded, unloading) = Loading::new(args, &checkpoint, output).load(args)?;
        let engine = &loaded.engine;
        let (shares_cores, device) = (shares_cores(engine), engine.executor().pipeline().driver().describe());
        let (n_slots, context_tokens) = (engine.kv_layout().n_slots, engine.kv_layout().capacity_tokens);
        let limits = args.limits(n_slots, context_tokens, engine.config().vocab_size);
        metrics.cache_is(cache_facts(engine));
        let facts = limits.facts(fingerprint(&checkpoint, engine), serve::now());
        let thread = EngineThread::start(loaded, unloading, facts, limits, metrics);
        let thread = thread.context("could not start the engine's thread")?;
        let failing = Some(thread.failing());
        let sizes = format!("{} at a time, of {context_tokens} tokens", counted(n_slots, "sequence"));
        let own_name = own_name(args);
        let backend = Arc::new(thread);
        Ok(Self { backend, failing, shares_cores, tokenizer, ends, chat, own_name, sizes, device })
    }

    fn replicas(args: &Args, n: usize, metrics: Metrics, output: &Output) -> anyhow::Result<Self> {
        let checkpoint = args.model.open(output)?;
        let Spoken { tokenizer, ends, chat } = args.spoken(&checkpoint)?;
        let starts = replicas::starts(&args.device, &checkpoint, n, &["--replica".into()])?;
        let device = starts.iter().map(|start| start.device.as_str()).collect::<Vec<_>>().join(", ");
        let limits = |ready: &[ServeReplicaReady]| {
            let n_slots = ready.iter().map(|one| one.n_slots).sum();
            let least = |of: fn(&ServeReplicaReady) -> usize| ready.iter().map(of).min().unwrap_or_default();
            args.limits(n_slots, least(|one| one.context_tokens), least(|one| one.vocab_size))
        };
        let (mut sizes, mut shares_cores) = (String::new(), false);
        let limits = |ready: &[ServeReplicaReady]| {
            let limits = limits(ready);
            shares_cores = ready.iter().any(|one| one.shares_cores);
            let ServeReplicaReady { block_tokens, ref kv_dtype, .. } = ready[0];
            let n_blocks = ready.iter().map(|one| one.n_blocks).sum();
            metrics.cache_is(KvCacheFacts { block_tokens, n_blocks, dtype: kv_dtype.clone() });
            let IntakeLimits { n_slots, context_tokens, .. } = limits;
            sizes = format!("{} at a time, of {context_tokens} tokens", counted(n_slots, "sequence"));
            limits
        };
        let backend = Replicas::start(starts, serve::now(), limits, metrics.clone())?;
        let (failing, own_name) = (Some(backend.failing()), own_name(args));
        let backend = Arc::new(backend);
        Ok(Self { backend, failing, shares_cores, tokenizer, ends, chat, own_name, sizes, device })
    }

    fn script(args: &Args, path: &Path, metrics: Metrics, output: &Output) -> anyhow::Result<Self> {
        let (spoken, longest, own_name) = if args.model.is_built_in() {
            let tokenizer = args.tokenizer.of_model(None, None)?;
            let specials = Specials::of_names(&tokenizer);
            (Spoken::new(tokenizer, specials, None, None, Besides::default()), REPLAY_CONTEXT, "replay".to_owned())
        } else {
            let checkpoint = args.model.open(output)?;
            let tokenizer = args.model.tokenizer(&args.tokenizer, &checkpoint)?;
            let spoken = Spoken::from_checkpoint(&checkpoint, tokenizer, &args.chat_template)?;
            (spoken, checkpoint.config.max_seq_len, own_name(args))
        };
        let Spoken { tokenizer, ends, chat } = spoken;
        let scripts = Scripts::read(path, &tokenizer)?;
        let context_tokens = args.context.map_or(longest, |n| n as usize);
        let n_slots = args.batch.map_or(GPU_SLOTS, |n| n as usize);
        let limits = args.limits(n_slots, context_tokens, tokenizer.vocab_size());
        let digest = Sha256::digest(std::fs::read(path).unwrap_or_default());
        let facts = limits.facts(serve::fingerprint(&digest), serve::now());
        let backend = Arc::new(Replay::new(scripts, tokenizer.clone(), facts, limits, metrics));
        let sizes = format!("by the script `{}`", path.display());
        let (failing, shares_cores, device) = (None, false, "no device".to_owned());
        Ok(Self { backend, failing, shares_cores, tokenizer, ends, chat, own_name, sizes, device })
    }
}

/// What a model speaks.
pub(super) struct Spoken {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) ends: Vec<u32>,
    pub(crate) chat: Result<Arc<dyn ChatFormat>, ChatFormatError>,
}

impl Spoken {
    fn from_checkpoint(checkpoint: &Checkpoint, tokenizer: Tokenizer, args: &ChatTemplateArgs) -> anyhow::Result<Self> {
        let specials = Specials::read(checkpoint, &tokenizer)?;
        let word = Word::of_family(checkpoint.config.family);
        let (template, besides) = (checkpoint.origin.chat_template.as_deref(), args.besides(checkpoint));
        Ok(Self::new(tokenizer, specials, word, template, besides))
    }

    fn new(
        tokenizer: Tokenizer,
        specials: Specials,
        word: Option<Word>,
        template: Option<&str>,
        besides: Besides<'_>,
    ) -> Self {
        let has = Has { tokenizer: &tokenizer, specials: &specials, template, program: &this_program(), besides };
        let chat = choose(word, Prompts::Format, &has);
        Self { ends: specials.ends, tokenizer, chat }
    }
}

impl Args {
    /// What a model speaks.
    pub(super) fn spoken(&self, checkpoint: &Checkpoint) -> anyhow::Result<Spoken> {
        let tokenizer = self.model.tokenizer(&self.tokenizer, checkpoint)?;
        tokenizer.check_model(checkpoint.config.vocab_size)?;
        Spoken::from_checkpoint(checkpoint, tokenizer, &self.chat_template)
    }

    pub(crate) fn engine(&self, checkpoint: &Checkpoint, output: &Output) -> anyhow::Result<Engine> {
        Ok(self.device.load_sized(checkpoint, &self.cache, |room| sizes(self, room), output)?.0)
    }

    fn limits(&self, n_slots: usize, context_tokens: usize, vocab_size: usize) -> IntakeLimits {
        let (max_queue, max_queued_tokens) = (self.max_queue, self.max_queued_tokens);
        IntakeLimits { n_slots, max_queue, max_queued_tokens, context_tokens, vocab_size }
    }
}

/// What an engine's cache is made of.
pub(super) fn cache_facts(engine: &Engine) -> KvCacheFacts {
    let (layout, n_blocks) = (engine.kv_layout(), engine.figures().blocks);
    KvCacheFacts { block_tokens: layout.block_tokens, n_blocks, dtype: layout.dtypes.all.to_string() }
}

/// Whether an engine computes on the cores of this machine.
pub(super) fn shares_cores(engine: &Engine) -> bool {
    let target = engine.executor().pipeline().target();
    !target.is_gpu() || target.is_simulated
}

/// The id that a model was asked for by, or the name of its file or folder.
fn own_name(args: &Args) -> String {
    match &args.model.model {
        Some(path) if path.exists() => {
            let named = path.canonicalize().unwrap_or_else(|_| path.clone());
            let name = if named.is_dir() { named.file_name() } else { named.file_stem() };
            name.map_or_else(|| args.model.name(), |name| name.to_string_lossy().into_owned())
        }
        None if args.model.is_built_in() => "tiny".into(),
        _ => args.model.name(),
    }
}

/// As many sequences as were asked for, else as many as leave most of the cache to what they share; as long as was
/// asked for, else as long as the cache holds one.
pub(super) fn sizes(args: &Args, room: &Room<'_>) -> Sizes {
    let (config, kv_request) = (room.config(), room.kv_request());
    let asked = args.context.map_or(config.max_seq_len, |n| (n as usize).min(config.max_seq_len));
    let most = if room.is_gpu() { GPU_SLOTS } else { CPU_SLOTS };
    let layout = |n_slots: usize, n_tokens: usize, budget_bytes: usize| {
        let Sizes { capacity_tokens, .. } = Sizes::for_tokens(n_slots, n_tokens, n_slots);
        KvLayout::new(config, &KvRequest { n_slots, capacity_tokens, budget_bytes, ..kv_request })
    };
    let mut n_slots = args.batch.map_or(most, |n| n as usize);
    while args.batch.is_none() && n_slots > 1 {
        let rings = layout(n_slots, asked, usize::MAX).map_or(usize::MAX, |layout| ring_bytes(&layout));
        if rings <= kv_request.budget_bytes / RINGS_SHARE {
            break;
        }
        n_slots /= 2;
    }
    let mut n_tokens = asked;
    while args.context.is_none()
        && n_tokens > LEAST_CONTEXT
        && layout(n_slots, n_tokens, kv_request.budget_bytes).is_err()
    {
        n_tokens /= 2;
    }
    Sizes::for_tokens(n_slots, n_tokens, n_slots.max(LOGIT_ROWS))
}

/// Rows of a step that give logits, if few sequences run: a prompt whose log-probabilities are requested is computed in
/// chunks of this many rows, each of which takes 4 bytes for every token of the vocabulary.
const LOGIT_ROWS: usize = 64;

/// The rings of all slots take a quarter of the cache at most.
const RINGS_SHARE: usize = 4;

/// The shortest context without a request for less; if it does not fit, that is an error.
const LEAST_CONTEXT: usize = 1024;

fn ring_bytes(layout: &KvLayout) -> usize {
    layout.groups().iter().filter(|group| group.window.is_some()).map(KvGroup::len_bytes).sum()
}

/// A digest of what text depends on: the weights (their names, types and shapes, and the ends of each), the kernels'
/// sources, the device and the type of keys and values.
pub(super) fn fingerprint(checkpoint: &Checkpoint, engine: &Engine) -> String {
    serve::fingerprint(&digest(checkpoint, engine))
}

pub(super) fn digest(checkpoint: &Checkpoint, engine: &Engine) -> [u8; 32] {
    let mut hasher = Sha256::new();
    let mut field = |bytes: &[u8]| {
        hasher.update((bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    field(&digest_of_weights(checkpoint));
    for (label, kernel) in engine.executor().kernels() {
        field(label.as_bytes());
        field(kernel.rendered.source.as_bytes());
    }
    field(engine.executor().memory_plan().device.as_bytes());
    field(engine.kv_layout().dtypes.all.name().as_bytes());
    hasher.finalize().into()
}

/// What a checkpoint is known by: its dimensions, and of all that its tensors are made of [`PLACES`] places, so that
/// models of 60 GB need not be read once more; small ones are looked at whole.
fn digest_of_weights(checkpoint: &Checkpoint) -> [u8; 32] {
    let mut hasher = Sha256::new();
    let mut field = |bytes: &[u8]| {
        hasher.update((bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    field(format!("{:?}", checkpoint.config).as_bytes());
    for (name, tensor) in &checkpoint.tensors {
        field(format!("{name} {} {:?}", tensor.dtype, tensor.shape).as_bytes());
        if let Elements::Random(numbers) = &tensor.elements {
            field(format!("{numbers:?}").as_bytes());
        }
        for source in tensor.sources() {
            let step = (source.len() / PLACES).max(PLACE_BYTES);
            let places = (0..source.len()).step_by(step).map(|at| &source[at..source.len().min(at + PLACE_BYTES)]);
            places.for_each(&mut field);
            field(&source[source.len().saturating_sub(PLACE_BYTES)..]);
        }
    }
    hasher.finalize().into()
}

/// Places of a slice that are looked at, evenly far apart.
const PLACES: usize = 128;
/// Bytes that are looked at there.
const PLACE_BYTES: usize = 128;

#[cfg(test)]
mod tests;
