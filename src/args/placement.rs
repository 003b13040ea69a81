//! Which parts of a model stay in main memory: experts for the processor, and the embedding table.

use std::time::{Duration, Instant};

use clap::Args;
use engine::HostShare;
use engine::device::Device;
use engine::graph::placement::{EmbeddingPlace, HostLayers, Streaming};
use engine::plan::memory::weight_bytes;
use gpu::{Driver, PREFETCHES};
use kernel::object::cache::parse_size;
use kernel::object::store::Store;
use kernel::pipeline::Pipeline;
use model::checkpoint::Checkpoint;
use serde::Serialize;
use system::units::human_bytes;
use workbench::bench::limits;

use super::source::SourceArgs;
use super::{DeviceArgs, desktop};
use crate::usage::UsageError;

/// How a model is shared out between a device and the processor beside it.
#[derive(Args, Clone, Debug)]
pub(crate) struct PlacementArgs {
    /// Keep the experts of the last N layers in main memory, where the processor computes them; auto: as few layers as
    /// needed for the rest to fit the GPU [default: auto]
    #[arg(long, value_name = "N|auto", value_parser = host_layers)]
    pub(crate) n_cpu_moe: Option<HostLayers>,

    /// From this many tokens on, a step with prompts copies experts from main memory to the GPU: faster for many
    /// tokens, takes GPU memory for two layers. auto: as measured when the model is loaded [default: auto]
    #[arg(long, value_name = "ROWS|auto|off", value_parser = streaming)]
    pub(crate) stream_experts: Option<Streaming>,

    /// Where the embedding table is. host: in main memory, where the GPU reads a row for each token; auto: there if the
    /// rest would not fit the GPU otherwise, before any experts go [default: auto]
    #[arg(long, value_name = "device|host|auto", value_parser = embedding)]
    pub(crate) embedding: Option<EmbeddingPlace>,

    /// Most memory to use on the device, such as 12GB or 12GiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) memory: Option<usize>,
}

/// What of a model lies on a device that has not room for all of it, as far as that is known before it is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    /// Bytes of weights that the device is sure to have.
    pub(crate) weights: usize,
    /// Bytes that these leave free; `None` if unknown, or if they do not fit.
    pub(crate) left: Option<usize>,
    /// Whether experts make room for whatever else needs it.
    pub(crate) yields: bool,
}

/// Experts leave the device where other weights would leave less than this part of it free.
const LEAST_LEFT: usize = 16;

/// Weights and the KV cache that is asked for leave enough for the rest where they take no more than this percentage
/// of what is free.
const SURE_PERCENT: usize = 60;

fn host_layers(text: &str) -> Result<HostLayers, String> {
    match text.parse() {
        Ok(n) => Ok(HostLayers::Last(n)),
        Err(_) if text == "auto" => Ok(HostLayers::AsNeeded),
        Err(_) => Err("expected a number of layers, or `auto`".into()),
    }
}

fn streaming(text: &str) -> Result<Streaming, String> {
    match (text, text.parse()) {
        ("auto", _) => Ok(Streaming::Measured),
        ("off", _) => Ok(Streaming::Never),
        (_, Ok(n_rows)) if n_rows > 0 => Ok(Streaming::From(n_rows)),
        _ => Err("expected a number of tokens, `auto` or `off`".into()),
    }
}

fn embedding(text: &str) -> Result<EmbeddingPlace, String> {
    match text {
        "device" => Ok(EmbeddingPlace::Device),
        "host" => Ok(EmbeddingPlace::Host),
        "auto" => Ok(EmbeddingPlace::AsNeeded),
        _ => Err("expected `device`, `host` or `auto`".into()),
    }
}

fn size(text: &str) -> Result<usize, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    usize::try_from(bytes).ok().filter(|bytes| *bytes > 0).ok_or_else(|| "expected some bytes".into())
}

impl PlacementArgs {
    /// Bytes of a device's memory that may be used by a flag.
    pub(crate) fn most_bytes(&self) -> usize {
        self.memory.unwrap_or(usize::MAX)
    }

    /// Bytes of a device's memory that may be used: as asked, else all but what a desktop on it needs.
    pub(super) fn most_bytes_of(&self, driver: &dyn Driver) -> anyhow::Result<usize> {
        self.memory.map_or_else(|| desktop::most_bytes(driver), Ok)
    }

    /// Which steps bring experts of main memory to the device.
    fn streaming(&self) -> Streaming {
        self.stream_experts.unwrap_or(Streaming::Measured)
    }

    /// Where the table is that tokens are looked up in.
    pub(super) fn embedding(&self) -> EmbeddingPlace {
        self.embedding.unwrap_or(EmbeddingPlace::AsNeeded)
    }

    /// Layers that a flag has the processor compute.
    pub(crate) fn asked_layers(&self) -> usize {
        match self.n_cpu_moe {
            Some(HostLayers::Last(n)) => n,
            Some(HostLayers::AsNeeded) | None => 0,
        }
    }
}

impl DeviceArgs {
    /// Bytes of the weights of a model, and of those that a device must have at least.
    pub(super) fn weights_of_device(&self, checkpoint: &Checkpoint) -> [usize; 2] {
        let experts = checkpoint.expert_bytes();
        let all = checkpoint.tensor_bytes() as usize / self.tp as usize;
        let host = match self.placement.n_cpu_moe {
            _ if self.tp > 1 => 0,
            Some(HostLayers::Last(n)) => experts.values().rev().take(n).sum(),
            Some(HostLayers::AsNeeded) | None => experts.values().sum(),
        };
        let table = checkpoint.looked_up_bytes();
        let [always, at_least] = match self.placement.embedding() {
            EmbeddingPlace::Device => [0, 0],
            EmbeddingPlace::Host => [table, table],
            EmbeddingPlace::AsNeeded => [0, table],
        };
        // Where a number is asked for, the device has all else.
        let wanted = if self.placement.asked_layers() > 0 { all - host } else { all };
        [wanted.saturating_sub(always), (all - host).saturating_sub(at_least)]
    }

    /// The processor beside a device, where it has or may have a part of a model.
    pub(super) fn host_share(
        &self,
        checkpoint: &Checkpoint,
        pipeline: &Pipeline,
        kv_bytes: usize,
    ) -> anyhow::Result<Option<HostShare>> {
        let asked = self.placement.n_cpu_moe;
        let has_experts = !checkpoint.expert_bytes().is_empty();
        if self.placement.asked_layers() > 0 {
            if self.tp > 1 {
                let why = "devices that compute a model together compute all of it";
                return Err(UsageError(format!("`--n-cpu-moe` does not go with `--tp`: {why}")).into());
            }
            if !has_experts {
                return Err(UsageError("`--n-cpu-moe`: the model has no experts".into()).into());
            }
            if !pipeline.target().is_gpu() {
                let why = "the processor computes everything on this device";
                return Err(UsageError(format!("`--n-cpu-moe`: {why}")).into());
            }
        }
        let may_share = has_experts && self.tp == 1 && pipeline.target().is_gpu();
        if !may_share || asked == Some(HostLayers::Last(0)) {
            return Ok(None);
        }
        let layers = asked.unwrap_or(HostLayers::AsNeeded);
        if asked.is_none() {
            let [weights, _] = weight_bytes(checkpoint, pipeline.driver());
            let is_tight = |free: usize| weights.saturating_add(kv_bytes) > free / 100 * SURE_PERCENT;
            if !pipeline.memory()?.is_some_and(|memory| is_tight(memory.free_bytes)) {
                return Ok(None);
            }
        }
        let tables = self.source.tables()?;
        let (target, driver) = Device::Cpu.open(&tables, self.threads as usize)?;
        let pipeline = Pipeline::new(self.source.library()?, tables, target, Store::from_env()?, driver)?;
        Ok(Some(HostShare { pipeline, layers, streaming: self.placement.streaming() }))
    }
}

impl Shares {
    /// Those of a model on a device, beside which the processor computes so many layers' experts.
    ///
    /// - `embedding`: where the table is that tokens are looked up in
    pub(crate) fn new(
        checkpoint: &Checkpoint,
        pipeline: &Pipeline,
        host: Option<&HostShare>,
        embedding: EmbeddingPlace,
    ) -> anyhow::Result<Self> {
        let [mut all, mut dense] = weight_bytes(checkpoint, pipeline.driver());
        let free = pipeline.memory()?.map(|memory| memory.free_bytes);
        let left = |weights: usize| free.and_then(|free| free.checked_sub(weights)).filter(|left| *left > 0);
        let is_tight = |weights: usize| left(weights) < free.map(|free| free / LEAST_LEFT);
        if embedding == EmbeddingPlace::Host || embedding == EmbeddingPlace::AsNeeded && is_tight(all) {
            let table = if pipeline.driver().copies_uploads() { checkpoint.looked_up_bytes() } else { 0 };
            (all, dense) = (all.saturating_sub(table), dense.saturating_sub(table));
        }
        let experts = checkpoint.expert_bytes();
        // Room for a layer's experts while another one's are used is kept where there is any.
        let with_places = |weights: usize, n_layers: usize| {
            let is_streamed = host.is_some_and(|host| host.streaming != Streaming::Never);
            let layer = experts.values().max().copied().filter(|_| is_streamed).unwrap_or(0);
            let with = weights + layer * n_layers.min(PREFETCHES);
            if left(with).is_some() { with } else { weights }
        };
        Ok(match host.map(|host| host.layers) {
            Some(HostLayers::Last(n)) => {
                let weights = with_places(all - experts.values().rev().take(n).sum::<usize>(), n);
                Self { weights, left: left(weights), yields: false }
            }
            Some(HostLayers::AsNeeded) if is_tight(all) => {
                let weights = with_places(dense, experts.len());
                Self { weights, left: left(weights), yields: true }
            }
            Some(HostLayers::AsNeeded) | None => Self { weights: all, left: left(all), yields: false },
        })
    }
}

/// Who would compute what of a model, and what that allows.
#[derive(Debug, Serialize)]
pub(crate) struct Placement {
    device: String,
    /// Layers whose experts the processor would compute, of those that have any.
    host_layers: [usize; 2],
    /// Bytes of weights on the device, and in main memory for the processor.
    weights: [u64; 2],
    /// Bytes of the table that tokens are looked up in, if it is in main memory for the device.
    embedding_in_main_memory: u64,
    /// Bytes of weights that a step for one token reads, of each.
    bytes_per_token: [u64; 2],
    /// Bytes that each reads in a second, where that was measured: not of a simulator.
    bytes_per_s: [Option<f64>; 2],
    /// What these allow, one after the other.
    limit_tok_per_s: Option<f64>,
    /// Bytes that come from main memory to the device in a second, where that was measured and experts may.
    copied_bytes_per_s: Option<f64>,
}

impl Placement {
    /// Of a model on a device. Where the number of layers is not given, it is what the weights leave room for, with an
    /// eighth of the rest for all else; loading the model knows the rest.
    ///
    /// # Errors
    /// If the device cannot be opened.
    pub(crate) fn new(checkpoint: &Checkpoint, device: &Device, args: &PlacementArgs) -> anyhow::Result<Self> {
        let source = SourceArgs { templates: None, tuning: None };
        let pipeline = |device: &Device| -> anyhow::Result<Pipeline> {
            let tables = source.tables()?;
            let (target, driver) = device.open(&tables, 0)?;
            Ok(Pipeline::new(source.library()?, tables, target, Store::from_env()?, driver)?)
        };
        let on_device = pipeline(device)?;
        let most_bytes = args.most_bytes_of(on_device.driver())?;
        let on_device = on_device.with_memory(most_bytes);
        let experts = checkpoint.expert_bytes();
        let [all, dense] = weight_bytes(checkpoint, on_device.driver());
        let room = || -> anyhow::Result<usize> {
            let free = on_device.memory()?.map_or(usize::MAX, |memory| memory.free_bytes);
            Ok(free.saturating_sub(free.saturating_sub(dense) / 8))
        };
        let stays = match args.embedding() {
            _ if !on_device.target().is_gpu() => false,
            EmbeddingPlace::Device => false,
            EmbeddingPlace::Host => true,
            EmbeddingPlace::AsNeeded => all > room()?,
        };
        let table = if stays { checkpoint.looked_up_bytes() } else { 0 };
        let n_layers = match args.n_cpu_moe {
            _ if !on_device.target().is_gpu() => 0,
            Some(HostLayers::Last(n)) => n.min(experts.len()),
            Some(HostLayers::AsNeeded) | None => {
                let (all, room) = (all.saturating_sub(table), room()?);
                let fits = |n: &usize| all - experts.values().rev().take(*n).sum::<usize>() <= room;
                (0..experts.len()).find(fits).unwrap_or(experts.len())
            }
        };
        let of_host = experts.values().rev().take(n_layers).sum::<usize>() as u64;
        let read_by_host = checkpoint.bytes_per_token_of_last_experts(n_layers);
        let bytes_per_token = [checkpoint.bytes_per_token() - read_by_host, read_by_host];
        let speed = |pipeline: &Pipeline| -> anyhow::Result<Option<f64>> {
            let is_real = !pipeline.target().is_simulated;
            let limits = is_real.then(|| limits::measure(pipeline, limits::Care::Little)).transpose()?;
            Ok(limits.map(|limits| limits.memory_bytes_per_s()))
        };
        let is_streamed = n_layers > 0 && args.streaming() != Streaming::Never && !on_device.target().is_simulated;
        let copied_bytes_per_s = is_streamed.then(|| copy_speed(on_device.driver())).transpose()?;
        let host_speed = if n_layers > 0 { speed(&pipeline(&Device::Cpu)?)? } else { None };
        let bytes_per_s = [speed(&on_device)?, host_speed];
        let seconds = bytes_per_token.iter().zip(bytes_per_s).filter(|(bytes, _)| **bytes > 0);
        let seconds: Option<f64> = seconds.map(|(bytes, speed)| Some(*bytes as f64 / speed?)).sum();
        Ok(Self {
            device: on_device.driver().describe(),
            host_layers: [n_layers, experts.len()],
            weights: [checkpoint.tensor_bytes() - of_host - table as u64, of_host],
            embedding_in_main_memory: table as u64,
            bytes_per_token,
            bytes_per_s,
            limit_tok_per_s: seconds.map(f64::recip),
            copied_bytes_per_s,
        })
    }

    /// The same for people.
    pub(crate) fn lines(&self) -> Vec<String> {
        let line = |i: usize, who: &str| {
            let [weights, read] = [self.weights[i], self.bytes_per_token[i]].map(human_bytes);
            let speed = self.bytes_per_s[i].map_or(String::new(), |speed| format!(" at {:.0} GB/s", speed / 1e9));
            format!("{who}: {weights} of weights, of which a token reads {read}{speed}")
        };
        let mut lines = vec![String::new(), line(0, &self.device)];
        if self.embedding_in_main_memory > 0 {
            let table = human_bytes(self.embedding_in_main_memory);
            lines.push(format!(
                "the embedding, {table}, is in main memory: the device reads a row of it for each token"
            ));
        }
        let [n, all] = self.host_layers;
        if n > 0 {
            lines.push(line(1, &format!("the processor, the experts of the last {n} of {all} layers")));
        }
        lines.extend(self.limit_tok_per_s.map(|limit| format!("so at most {limit:.1} tokens a second, one at a time")));
        lines.extend(self.copied_bytes_per_s.map(|speed| {
            let seconds = self.weights[1] as f64 / speed;
            let gbps = speed / 1e9;
            format!("steps of many tokens bring these experts to the device, in {seconds:.2} s ({gbps:.1} GB/s)")
        }));
        lines
    }
}

/// Bytes that a device copies from pinned memory in a second.
fn copy_speed(driver: &dyn Driver) -> anyhow::Result<f64> {
    const LEN_BYTES: usize = 256 << 20;
    let copies = [(driver.staging(LEN_BYTES)?.view(), driver.allocate(LEN_BYTES)?.view())];
    let mut took = Duration::MAX;
    for _ in 0..3 {
        let begin = Instant::now();
        driver.prefetch(0, &copies)?;
        driver.begin_use(0)?;
        driver.end_use(0)?;
        driver.wait()?;
        took = took.min(begin.elapsed());
    }
    Ok(LEN_BYTES as f64 / took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_a_number_or_auto_and_sizes_have_units() {
        assert_eq!(host_layers("12"), Ok(HostLayers::Last(12)));
        assert_eq!(host_layers("auto"), Ok(HostLayers::AsNeeded));
        assert_eq!(streaming("512"), Ok(Streaming::From(512)));
        assert_eq!((streaming("auto"), streaming("off")), (Ok(Streaming::Measured), Ok(Streaming::Never)));
        assert!(streaming("0").is_err() && streaming("many").is_err());
        assert!(host_layers("-1").is_err() && host_layers("all").is_err());
        assert_eq!(embedding("host"), Ok(EmbeddingPlace::Host));
        assert_eq!(
            (embedding("auto"), embedding("device")),
            (Ok(EmbeddingPlace::AsNeeded), Ok(EmbeddingPlace::Device))
        );
        assert!(embedding("cpu").is_err());
        assert_eq!(size("12GB"), Ok(12_000_000_000));
        assert!(size("0").is_err() && size("much").is_err());
    }
}
