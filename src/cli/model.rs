//! What the commands that run a model have in common: which model, on what, how exactly, from which kernels.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use clap::Args;

use gpu::{DeviceMemory, Driver};

use super::compile_progress::CompileProgress;
use super::hub;
use super::output::Output;
use super::shapes::ShapeArgs;
use super::source::SourceArgs;
use super::step_timeout;
use super::tokenizer::TokenizerArgs;
use crate::checkpoint::layout::Layout;
use crate::checkpoint::tensor_parallel::TpRank;
use crate::checkpoint::{Checkpoint, Tensor};
use crate::config::ModelConfig;
use crate::device::Device;
use crate::device::auto::{self, Opened, Reason};
use crate::dtype::Dtype;
use crate::engine::blueprint::{self, ModelOptions, PrefixCache};
use crate::engine::{Engine, EngineOptions, Sizes};
use crate::graph::kv_cache::{BLOCK_TOKENS, KvLayout, KvRequest, KvTooLarge};
use crate::graph::memory::weight_bytes;
use crate::object::store::Store;
use crate::pipeline::Pipeline;
use crate::scheduler::DraftOptions;
use crate::target::Target;
use crate::template::Precision;
use crate::tokenizer::Tokenizer;

/// The tiny model in `examples/tiny`, embedded: it runs from any folder.
const TINY_MODEL: &[u8] = include_bytes!("../../examples/tiny/model.bin");
const TINY_TOKENIZER: &[u8] = include_bytes!("../../examples/tiny/tokenizer.bin");

/// Which model, and which tokenizer.
#[derive(Args, Debug)]
pub struct ModelArgs {
    /// A checkpoint: a folder or file of safetensors (Hugging Face's or OpenAI's), a GGUF or a `.bin` file; or the id
    /// of a model that Hugging Face's cache has, such as openai/gpt-oss-20b; without it the tiny model that comes with
    /// the program
    pub model: Option<PathBuf>,

    /// How the tensors of a `.bin` file are stored: what its exporter got wrong
    #[arg(long, value_enum, default_value_t = Layout::Auto)]
    pub layout: Layout,

    #[command(flatten)]
    pub shape: ShapeArgs,
}

/// On what, how exactly, and from which kernels.
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// Where to run: auto (of the GPUs that the model fits on, the one with the most compute; else the cpu), cpu, hip:N
    /// (an AMD GPU; hip:N@ARCH compiles for ARCH instead of what it says it is), cuda:N (an NVIDIA GPU), sim:ARCH (a
    /// GPU's kernels, executed and watched by this machine's cores); N may be left out
    #[arg(long, default_value = "auto", value_name = "D")]
    pub device: Device,

    /// Threads of the cpu and sim devices, at most four for every core; 0 means one for every core
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = threads)]
    pub threads: u32,

    /// Devices that compute the model together, each with a part of it (tensor parallel): a number that divides the
    /// model's key and value heads. GPUs are the one of `--device` and those behind it, of one kind
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub tp: u32,

    /// How exactly sums are done [default: f32 for checkpoints that store f32, else bf16]
    #[arg(long, value_enum)]
    pub precision: Option<Precision>,

    /// Keep weights in memory as the file has them: those in blocks (Q8_0, Q4_1) are not widened to bf16 or f32. Takes
    /// less memory; few kernels read blocks yet, and these are slower
    #[arg(long)]
    pub stored_weights: bool,

    #[command(flatten)]
    pub source: SourceArgs,
}

/// A number of threads, 0 included. More than a few for every core are slower than one, and each takes memory.
fn threads(text: &str) -> Result<u32, String> {
    const MOST_FOR_A_CORE: usize = 4;
    let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
    let most = u32::try_from(MOST_FOR_A_CORE * n_cores).unwrap_or(u32::MAX);
    let n = text.parse::<u32>().map_err(|error| error.to_string())?;
    if n > most { Err(format!("this machine has {n_cores} cores: at most {most}")) } else { Ok(n) }
}

/// How much memory the KV cache takes, and what it holds.
#[derive(Args, Clone, Debug)]
pub struct KvArgs {
    /// Keep keys and values in bf16 [default with `--precision bf16`]
    #[arg(long, conflicts_with = "kv32")]
    pub kv16: bool,

    /// Keep keys and values in f32 [default with `--precision f32`]
    #[arg(long)]
    pub kv32: bool,

    /// Memory for keys and values, in MiB [default: half of what the weights leave free]
    #[arg(long, value_name = "MIB")]
    pub kv_memory: Option<usize>,

    /// Window of the odd layers, in tokens; 0 means all
    #[arg(long = "odd-win", alias = "odd_win", default_value_t = 0, value_name = "N")]
    pub odd_window: usize,

    /// Keep what prompts begin with for those that begin alike, with so many snapshots of the window layers; 0 keeps
    /// nothing [default: 128 to serve, 4 to chat, else 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=65_536))]
    pub snapshots: Option<u32>,

    /// Sequences of full length that blocks are kept for besides those of the slots, as far as memory goes.
    #[arg(skip)]
    pub n_kept: u32,

    /// Most rows of prompts in a step in which others generate [default: as many as fit]
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub prompt_rows: Option<u32>,

    /// Most rows of one step: how long a chunk of a prompt is [default: 512; on a GPU of 64 GiB or more 2048]
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub chunk: Option<u32>,

    /// While at most four sequences run, try what followed the last tokens where they stood before: a text that repeats
    /// itself or its prompt takes fewer steps, and every text is the same. On a GPU such steps are not launched ahead
    /// of the last one's tokens [default: auto to run and to serve, else off]
    #[arg(long, value_enum, value_name = "WHERE")]
    pub speculate: Option<Speculate>,
}

/// Whether tokens are drafted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Speculate {
    /// On the cpu
    Auto,
    /// On any device
    On,
    /// Nowhere
    Off,
}

/// Rows of a step where nobody says how many: rings for windows grow with them, and so does the time that a prompt's
/// part of a step keeps the others waiting.
const CHUNK: u32 = 512;

/// The same on a GPU with [`LARGE_MEMORY`]. With 256 sequences of 512 + 256 tokens an H200 made 12,209 tok/s so, and
/// 9,330 with 512 rows: half of these were the sequences' own.
const LARGE_CHUNK: u32 = 2048;

const LARGE_MEMORY: usize = 64 << 30;

impl ModelArgs {
    /// Opens the checkpoint, and says what was found in it.
    pub fn open(&self, output: &Output) -> anyhow::Result<Checkpoint> {
        if self.is_built_in() {
            output.detail("model: the built-in tiny one (examples/tiny)");
        }
        let checkpoint = self.checkpoint()?;
        for finding in &checkpoint.findings {
            output.note(&format!("note: {finding}"));
        }
        Ok(checkpoint)
    }

    /// The checkpoint, without a word.
    pub fn checkpoint(&self) -> anyhow::Result<Checkpoint> {
        match (&self.model, self.shape.checkpoint()) {
            (Some(model), _) => Ok(Checkpoint::open(&hub::locate(model)?, self.layout)?),
            (None, Some(random)) => Ok(random?),
            (None, None) => Checkpoint::from_bytes(TINY_MODEL.into(), self.layout).context("the built-in tiny model"),
        }
    }

    /// What to call it.
    pub fn name(&self) -> String {
        match (&self.model, self.shape.shape) {
            (Some(path), _) => path.display().to_string(),
            (None, Some(shape)) => shape.name().to_owned(),
            (None, None) => "the built-in tiny model".to_owned(),
        }
    }

    /// Whether this is the tiny model that comes with the program.
    pub fn is_built_in(&self) -> bool {
        self.model.is_none() && self.shape.shape.is_none()
    }

    /// The tokenizer for this model.
    pub fn tokenizer(&self, args: &TokenizerArgs, checkpoint: &Checkpoint) -> anyhow::Result<Tokenizer> {
        if self.is_built_in() && args.tokenizer.is_none() {
            return Ok(Tokenizer::from_bin(TINY_TOKENIZER.into(), Some(checkpoint.config.vocab_size), args.split)?);
        }
        args.for_checkpoint(checkpoint)
    }
}

impl DeviceArgs {
    /// The precision for a checkpoint, and the checkpoint as that computes with it: at bf16, weights that are wider
    /// than it only because of how they are stored are rounded.
    pub fn precision(&self, checkpoint: &Checkpoint) -> (Precision, Checkpoint) {
        let (precision, checkpoint) = precision_for(checkpoint, self.precision);
        (precision, if self.stored_weights { checkpoint.as_stored() } else { checkpoint })
    }

    /// Templates, tables, cache, compiler and device: one that the model fits on, if it is this program that chooses
    /// it. Also gives that device's name, for those who open it again.
    pub fn pipeline(&self, checkpoint: &Checkpoint, output: &Output) -> anyhow::Result<(Pipeline, Device)> {
        let (library, tables) = (self.source.library()?, self.source.tables()?);
        let n_threads = self.threads_of_one();
        let opened = if self.device == Device::Auto {
            let weights: usize = checkpoint.tensors.values().map(Tensor::len_bytes).sum();
            auto::choose(&tables, weights / self.tp as usize).open(&tables, n_threads)?
        } else {
            let (target, driver) = self.device.open(&tables, n_threads)?;
            Opened { device: self.device.clone(), target, driver, reason: None }
        };
        if let Some(Reason { text, is_of_several }) = opened.reason {
            if is_of_several { output.note(&text) } else { output.detail(&text) }
        }
        let pipeline = Pipeline::new(library, tables, opened.target, Store::from_env()?, opened.driver)?;
        Ok((pipeline, opened.device))
    }

    /// What the first device has of a model.
    fn part(&self) -> TpRank {
        TpRank { rank: 0, size: self.tp as usize }
    }

    /// Threads of each of the devices that are made of this machine's cores.
    pub fn threads_of_one(&self) -> usize {
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        match (self.tp as usize, self.threads as usize) {
            (1, n_threads) => n_threads,
            (tp, 0) => (n_cores / tp).max(1),
            (tp, n_threads) => (n_threads / tp).max(1),
        }
    }

    /// Loads a model: compiles what is missing and allocates everything, telling how it goes.
    pub fn load(
        &self,
        checkpoint: &Checkpoint,
        cache: &KvArgs,
        sizes: Sizes,
        output: &Output,
    ) -> anyhow::Result<Engine> {
        self.load_sized(checkpoint, cache, |_| sizes, output)
    }

    /// The same, in sizes that depend on what the device has room for.
    pub fn load_sized(
        &self,
        checkpoint: &Checkpoint,
        cache: &KvArgs,
        sizes: impl FnOnce(&Room<'_>) -> Sizes,
        output: &Output,
    ) -> anyhow::Result<Engine> {
        let (precision, checkpoint) = self.precision(checkpoint);
        let (pipeline, device) = self.pipeline(&checkpoint, output)?;
        let peers = self.peers(&device, pipeline.target())?;
        let part = checkpoint.part(self.part())?;
        let (chunk, speculate) = (Some(cache.chunk_on(&pipeline)?), Some(cache.speculate_on(pipeline.target())));
        let cache = &KvArgs { chunk, speculate, ..cache.clone() };
        let kv_budget_bytes = cache.budget_bytes(&part, pipeline.driver())?;
        let free_bytes = pipeline.driver().memory()?.map(|memory| memory.free_bytes);
        let weights = weight_bytes(&part, pipeline.driver());
        let room = Room {
            checkpoint: &part,
            target: pipeline.target(),
            cache,
            precision,
            kv_budget_bytes,
            spare_bytes: free_bytes.map(|free| free.saturating_sub(weights)),
        };
        let model = cache.model_options(precision, sizes(&room), kv_budget_bytes);
        let start = Instant::now();
        let watchdog = step_timeout::watchdog(&device, output)?;
        let options = EngineOptions { pipeline, peers, model, watchdog };
        let engine = Engine::load(&checkpoint, options, &CompileProgress::new(output))?;
        let layout = engine.kv_layout();
        output.detail(&format!(
            "loaded in {:.2} s, {:.2} s of it for the weights: {}, precision {precision}, KV cache {} for {} \
             slots of {} tokens",
            start.elapsed().as_secs_f64(),
            engine.executor().weights_time().as_secs_f64(),
            checkpoint.weights(),
            layout.dtype,
            layout.n_slots,
            layout.capacity_tokens,
        ));
        Ok(engine)
    }
}

/// What a device has room for, before a model is loaded.
pub struct Room<'a> {
    /// Of the model what one device has.
    checkpoint: &'a Checkpoint,
    target: &'a Target,
    cache: &'a KvArgs,
    precision: Precision,
    kv_budget_bytes: usize,
    /// What the weights leave free, where the device tells.
    spare_bytes: Option<usize>,
}

impl Room<'_> {
    /// Whether this is a GPU that executes kernels itself.
    pub fn is_gpu(&self) -> bool {
        self.target.is_gpu() && !self.target.is_simulated
    }

    /// The model's dimensions.
    pub fn config(&self) -> &ModelConfig {
        &self.checkpoint.config
    }

    /// What the KV cache of one short sequence is sized for.
    pub fn kv_request(&self) -> KvRequest {
        self.cache.request(self.precision, self.target, self.kv_budget_bytes)
    }

    /// What the weights leave free, in bytes, where the device tells.
    pub fn spare_bytes(&self) -> Option<usize> {
        self.spare_bytes
    }

    /// Whether keys and values of sequences in these sizes are within what they may take.
    pub fn holds(&self, sizes: Sizes) -> bool {
        self.layout(sizes, usize::MAX).is_ok_and(|layout| layout.total_bytes() <= self.kv_budget_bytes)
    }

    /// Whether one of the sequences in these sizes finds room beside what every slot keeps for itself.
    pub fn has_pool_for_one(&self, sizes: Sizes) -> bool {
        self.layout(sizes, self.kv_budget_bytes).is_ok()
    }

    fn layout(&self, sizes: Sizes, kv_budget_bytes: usize) -> Result<KvLayout, KvTooLarge> {
        let options = self.cache.model_options(self.precision, sizes, kv_budget_bytes);
        Ok(blueprint::sizes(&self.checkpoint.config, &options, self.target)?.0)
    }

    /// The largest number up to `most` of which `holds` is true, where it is true of all smaller ones; at least 1.
    pub fn largest(most: usize, holds: impl Fn(usize) -> bool) -> usize {
        if most <= 1 || holds(most) {
            return most.max(1);
        }
        let (mut fits, mut too_many) = (1, most);
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            *(if holds(middle) { &mut fits } else { &mut too_many }) = middle;
        }
        fits
    }
}

/// The precision for a checkpoint, if none is asked for the one that its weights have; and the checkpoint as that
/// computes with it.
pub fn precision_for(checkpoint: &Checkpoint, asked: Option<Precision>) -> (Precision, Checkpoint) {
    let rounded = checkpoint.rounded();
    let natural = if rounded.dense_dtype() == Dtype::F32 { Precision::F32 } else { Precision::Bf16 };
    match asked.unwrap_or(natural) {
        Precision::Bf16 => (Precision::Bf16, rounded),
        Precision::F32 => (Precision::F32, checkpoint.clone()),
    }
}

impl KvArgs {
    /// The element type of keys and values.
    pub fn dtype(&self, precision: Precision) -> Dtype {
        match (self.kv16, self.kv32, precision) {
            (true, _, _) | (false, false, Precision::Bf16) => Dtype::Bf16,
            _ => Dtype::F32,
        }
    }

    /// Most rows of a step of a model that this runs.
    pub fn chunk_on(&self, pipeline: &Pipeline) -> anyhow::Result<u32> {
        let is_gpu = pipeline.target().is_gpu() && !pipeline.target().is_simulated;
        let is_large = |memory: DeviceMemory| memory.total_bytes >= LARGE_MEMORY;
        let usual = if is_gpu && pipeline.driver().memory()?.is_some_and(is_large) { LARGE_CHUNK } else { CHUNK };
        Ok(self.chunk.unwrap_or(usual))
    }

    /// Whether tokens are drafted on a target: on or off.
    fn speculate_on(&self, target: &Target) -> Speculate {
        match self.speculate {
            Some(Speculate::On) => Speculate::On,
            Some(Speculate::Auto) if !target.is_gpu() => Speculate::On,
            _ => Speculate::Off,
        }
    }

    /// What a cache for one short sequence is sized for.
    fn request(&self, precision: Precision, target: &Target, budget_bytes: usize) -> KvRequest {
        KvRequest {
            n_slots: 1,
            n_snapshots: self.snapshots.unwrap_or(0) as usize,
            n_kept: self.n_kept as usize,
            capacity_tokens: BLOCK_TOKENS,
            max_rows: self.chunk.unwrap_or(CHUNK) as usize,
            dtype: self.dtype(precision),
            matrix_layout: target.has_matrix_layout(),
            odd_window: (self.odd_window > 0).then_some(self.odd_window),
            budget_bytes,
        }
    }

    /// How a model is run in these sizes.
    pub fn model_options(&self, precision: Precision, sizes: Sizes, kv_budget_bytes: usize) -> ModelOptions {
        ModelOptions {
            precision,
            kv_dtype: self.dtype(precision),
            n_slots: sizes.n_slots,
            capacity_tokens: sizes.capacity_tokens,
            max_rows: self.chunk.unwrap_or(CHUNK) as usize,
            max_logit_rows: sizes.max_logit_rows,
            odd_window: (self.odd_window > 0).then_some(self.odd_window),
            kv_budget_bytes,
            max_prompt_rows: self.prompt_rows.map(|rows| rows as usize),
            prefix_cache: PrefixCache {
                n_kept: self.n_kept as usize,
                ..PrefixCache::new(self.snapshots.unwrap_or(0) as usize)
            },
            drafts: (self.speculate == Some(Speculate::On)).then_some(DraftOptions::USUAL),
        }
    }

    /// What keys and values may take: as asked, or half of what the weights leave free. Where the weights leave
    /// nothing, it is they that do not fit, which the memory plan will say.
    fn budget_bytes(&self, checkpoint: &Checkpoint, driver: &dyn Driver) -> anyhow::Result<usize> {
        let Some(mib) = self.kv_memory else {
            let weights = weight_bytes(checkpoint, driver);
            let left = |memory: DeviceMemory| memory.free_bytes.checked_sub(weights).filter(|left| *left > 0);
            return Ok(driver.memory()?.and_then(left).map_or(usize::MAX, |left| left / 2));
        };
        Ok(mib.saturating_mul(1 << 20))
    }
}

/// Kernels from the cache and compiled, for the summary at the end of a command.
pub fn kernel_counts(engine: &Engine) -> (usize, usize) {
    let stats = engine.executor().pipeline().store().stats();
    (stats.from_cache, stats.compiled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_number_that_fits_is_found() {
        for most in 0..40 {
            for limit in 0..40 {
                assert_eq!(Room::largest(most, |n| n <= limit), most.min(limit).max(1), "{limit} of {most}");
            }
        }
    }
}
