//! Flags of the device, the precision, the kernels and loading.

use std::time::Instant;

use clap::Args;
use engine::blueprint::{self, precision_for};
use engine::device::Device;
use engine::device::auto::{self, Opened, Reason, Wanted};
use engine::graph::placement::{EmbeddingPlace, Streaming};
use engine::plan::error::PlanError;
use engine::{Engine, EngineError, EngineOptions, Sizes};
use kernel::object::store::Store;
use kernel::pipeline::Pipeline;
use kernel::template::Precision;
use model::checkpoint::Checkpoint;
use model::checkpoint::kept::StoredWeights;
use model::checkpoint::tensor_parallel::TensorParallelError;
use model::config::tensor_parallel::TpRank;

use super::desktop;
use super::kernel_counts::KernelCounts;
use super::kv::{self, KvArgs};
use super::placement::{PlacementArgs, Shares};
use super::quantize::StoredWeightsArgs;
use super::room::Room;
use super::source::SourceArgs;
use crate::compile_progress::CompileProgress;
use crate::output::Output;
use crate::step_timeout;
use crate::usage::UsageError;

/// On what, how exactly, and from which kernels.
#[derive(Args, Clone, Debug)]
pub(crate) struct DeviceArgs {
    /// Where to run: auto (the GPU with the most compute that the model fits on; else the cpu), cpu, hip:N (an AMD GPU;
    /// hip:N@ARCH compiles for ARCH instead of its own), cuda:N (an NVIDIA GPU), sim:ARCH (a GPU's kernels, simulated
    /// and checked on this machine's cores); N may be omitted
    #[arg(long, default_value = "auto", value_name = "D")]
    pub(crate) device: Device,

    /// Threads of the cpu and sim devices, at most four per core; 0 means one per core
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = threads)]
    pub(crate) threads: u32,

    /// Tensor parallelism: split the model over N devices, from `--device` on, all of one kind. N must divide the
    /// number of the model's key and value heads
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) tp: u32,

    /// Precision of activations and sums [default: f32 for checkpoints that store f32, else bf16]
    #[arg(long, value_enum)]
    pub(crate) precision: Option<Precision>,

    #[command(flatten)]
    pub(crate) stored: StoredWeightsArgs,

    #[command(flatten)]
    pub(crate) placement: PlacementArgs,

    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

/// A number of threads, 0 included. More than a few for every core are slower than one, and each takes memory.
fn threads(text: &str) -> Result<u32, String> {
    const MOST_FOR_A_CORE: usize = 4;
    let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
    let most = u32::try_from(MOST_FOR_A_CORE * n_cores).unwrap_or(u32::MAX);
    let n = text.parse::<u32>().map_err(|error| error.to_string())?;
    if n > most { Err(format!("this machine has {n_cores} cores: at most {most}")) } else { Ok(n) }
}

impl DeviceArgs {
    /// The precision for a checkpoint, and the checkpoint as that computes with it: at bf16, weights that are wider
    /// than it only because of how they are stored are rounded. Weights that several devices share are widened if
    /// nobody asked for another type and their blocks cannot be cut.
    pub(crate) fn precision(&self, checkpoint: &Checkpoint) -> (Precision, Checkpoint) {
        let kept = |kept| precision_for(checkpoint, self.precision, kept);
        let (precision, stored) = kept(self.stored.usual());
        match stored.part(self.part()) {
            Err(TensorParallelError::Blocks { .. }) if self.stored.stored_weights.is_none() => {
                kept(StoredWeights::None)
            }
            _ => (precision, stored),
        }
    }

    /// The same for a device that was chosen: weights are widened if that is faster there, nobody asked for another
    /// type, and they then take at most half of the free memory.
    pub(crate) fn precision_on(
        &self,
        checkpoint: &Checkpoint,
        pipeline: &Pipeline,
    ) -> anyhow::Result<(Precision, Checkpoint)> {
        let usual = self.precision(checkpoint);
        let kept = self.stored.on(pipeline.target());
        if kept == self.stored.usual() {
            return Ok(usual);
        }
        let widened = precision_for(checkpoint, self.precision, kept);
        let bytes_each = widened.1.tensor_bytes() / u64::from(self.tp);
        let fits = pipeline.memory()?.is_some_and(|memory| bytes_each <= memory.free_bytes as u64 / 2);
        Ok(if fits { widened } else { usual })
    }

    /// Templates, tables, cache, compiler and device: one that the model fits on, if it is this program that chooses
    /// it. Also gives that device's name, for those who open it again.
    pub(crate) fn pipeline(&self, checkpoint: &Checkpoint, output: &Output) -> anyhow::Result<(Pipeline, Device)> {
        let (library, tables) = (self.source.library()?, self.source.tables()?);
        let n_threads = self.threads_of_one();
        let opened = if self.device == Device::Auto {
            auto::choose(&tables, self.wanted(checkpoint)).open(&tables, n_threads)?
        } else {
            let (target, driver) = self.device.open(&tables, n_threads)?;
            Opened { device: self.device.clone(), target, driver, reason: None }
        };
        if let Some(Reason { text, is_of_several }) = opened.reason {
            if is_of_several { output.note(&text) } else { output.detail(&text) }
        }
        let pipeline = Pipeline::new(library, tables, opened.target, Store::from_env()?, opened.driver)?;
        let most_bytes = self.placement.most_bytes_of(pipeline.driver())?;
        Ok((pipeline.with_memory(most_bytes), opened.device))
    }

    /// What a model wants of a device.
    pub(crate) fn wanted(&self, checkpoint: &Checkpoint) -> Wanted {
        let [model_bytes, least_bytes] = self.weights_of_device(checkpoint);
        Wanted { model_bytes, least_bytes, most_bytes: self.placement.most_bytes() }
    }

    /// What the first device has of a model.
    fn part(&self) -> TpRank {
        TpRank { rank: 0, size: self.tp as usize }
    }

    /// Threads of each of the devices that are made of this machine's cores.
    pub(crate) fn threads_of_one(&self) -> usize {
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        match (self.tp as usize, self.threads as usize) {
            (1, n_threads) => n_threads,
            (tp, 0) => (n_cores / tp).max(1),
            (tp, n_threads) => (n_threads / tp).max(1),
        }
    }

    /// Loads a model: compiles what is missing and allocates everything, telling how it goes.
    pub(crate) fn load(
        &self,
        checkpoint: &Checkpoint,
        cache: &KvArgs,
        sizes: Sizes,
        output: &Output,
    ) -> anyhow::Result<Engine> {
        Ok(self.load_sized(checkpoint, cache, |_| sizes, output)?.0)
    }

    /// The same, in sizes that depend on what the device has room for. Also gives the device's name.
    pub(crate) fn load_sized(
        &self,
        checkpoint: &Checkpoint,
        cache: &KvArgs,
        mut sizes: impl FnMut(&Room<'_>) -> Sizes,
        output: &Output,
    ) -> anyhow::Result<(Engine, Device)> {
        let (mut on, mut tried) = (self.clone(), Vec::new());
        loop {
            let (pipeline, device) = on.pipeline(&on.precision(checkpoint).1, output)?;
            let (precision, rounded) = on.precision_on(checkpoint, &pipeline)?;
            let error = match on.load_on((pipeline, &device), (precision, &rounded), cache, &mut sizes, output) {
                Err(error) if self.device == Device::Auto && does_not_fit(&error) => error,
                loaded => return Ok((loaded?, device)),
            };
            // The weights fit there, and what comes on top of them does not.
            let devices = auto::choose(&self.source.tables()?, self.wanted(&rounded)).candidates();
            let is_new = |one: &Device| *one != device && !tried.contains(one);
            let Some(next) = devices.into_iter().find(is_new) else { return Err(error) };
            output.warning(&format!("{next} is used, and {device} is not: {error}"));
            tried.push(device);
            on.device = next;
        }
    }

    /// Loads a model on a device.
    fn load_on(
        &self,
        (pipeline, device): (Pipeline, &Device),
        (precision, checkpoint): (Precision, &Checkpoint),
        cache: &KvArgs,
        sizes: &mut dyn FnMut(&Room<'_>) -> Sizes,
        output: &Output,
    ) -> anyhow::Result<Engine> {
        let peers = self.peers(device, pipeline.target())?;
        let part = checkpoint.part(self.part())?;
        let host = self.host_share(&part, &pipeline, cache.asked_bytes().unwrap_or(0))?;
        let embedding = self.placement.embedding();
        if embedding == EmbeddingPlace::Host {
            let why = match pipeline.target().is_gpu() {
                false => Some("this device computes in main memory"),
                true if part.looked_up_bytes() == 0 => Some("the model's logits are computed with it as well"),
                true => None,
            };
            if let Some(why) = why {
                return Err(UsageError(format!("`--embedding host`: {why}")).into());
            }
        }
        let shares = Shares::new(&part, &pipeline, host.as_ref(), embedding)?;
        let streams = host.as_ref().is_some_and(|host| host.streaming != Streaming::Never);
        let has_host_layers = self.placement.asked_layers() > 0 || shares.yields;
        let is_chunk_asked = cache.chunk.is_some();
        let chunk = cache.chunk_on(&pipeline, streams && has_host_layers)?;
        let (chunk, speculate) = (Some(chunk), Some(cache.speculate_on(pipeline.target(), precision)));
        let cache = &KvArgs { chunk, speculate, ..cache.clone() };
        let kv_budget_bytes = cache.budget_bytes(shares, kv::is_large(&pipeline)?);
        let spare_bytes = match pipeline.memory()? {
            Some(memory) if !shares.yields => Some(memory.free_bytes.saturating_sub(shares.weights)),
            Some(_) => Some(kv_budget_bytes), // more would take experts off the device
            None => None,
        };
        let room =
            Room { checkpoint: &part, target: pipeline.target(), cache, precision, kv_budget_bytes, spare_bytes };
        let mut model = cache.model_options(precision, sizes(&room), kv_budget_bytes);
        model.embedding = embedding;
        if let Some(said) =
            desktop::spare(&mut model, &part, &pipeline, self.placement.memory.is_some(), is_chunk_asked)?
        {
            output.note(&said);
        }
        if let Ok((layout, _)) = blueprint::sizes(&part.config, &model, pipeline.target()) {
            cache.check(&layout)?; // what does not fit is an error below
        }
        if let Some(Streaming::From(n)) = host.as_ref().map(|host| host.streaming).filter(|_| has_host_layers)
            && n > model.max_rows
        {
            let most = model.max_rows;
            output.warning(&format!("`--stream-experts {n}` has no effect: a step has at most {most} tokens"));
        }
        let start = Instant::now();
        let watchdog = step_timeout::watchdog(device, output)?;
        let options = EngineOptions { pipeline, peers, host, model, watchdog };
        let engine = Engine::load(checkpoint, options, &CompileProgress::new(output))?;
        if let Some(plan) = engine.executor().stream_plan() {
            output.detail(&plan.to_string());
        }
        let layout = engine.kv_layout();
        output.detail(&format!(
            "loaded in {:.2} s, {:.2} s of it for the weights: {}, precision {precision}, KV cache {} for {} \
             slots of {} tokens",
            start.elapsed().as_secs_f64(),
            engine.executor().weights_time().as_secs_f64(),
            checkpoint.weights(),
            layout.dtypes.all,
            layout.n_slots,
            layout.capacity_tokens,
        ));
        Ok(engine)
    }
}

/// Whether a device has no room for what a model takes besides its weights.
fn does_not_fit(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(EngineError::Kv(_) | EngineError::Plan(PlanError::Memory(_))))
}

/// Where the kernels of an engine came from, for the summary at the end of a command.
pub(crate) fn kernel_counts(engine: &Engine) -> KernelCounts {
    let executor = engine.executor();
    let stores = std::iter::once(executor.pipeline()).chain(executor.host_pipeline());
    stores.map(|pipeline| KernelCounts::from(pipeline.store().stats())).sum()
}
