//! Loads the model: at the start, and again after it was unloaded.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::Args;
use super::model::{digest, sizes};
use crate::args::{DeviceArgs, KvArgs, Room};
use crate::output::Output;
use crate::report;
use crate::usage::UsageError;
use engine::Sizes;
use engine::device::Device;
use engine::prefix_store::{BroughtBack, PrefixStore};
use model::checkpoint::Checkpoint;
use serve::engine_thread::{Loaded, Unloading};
use serve::failing::EngineFailure;
use system::units::human_bytes;

/// All that a model is loaded from. The files stay mapped while it is unloaded: what is loaded again is the same.
#[derive(Clone)]
pub(super) struct Loading {
    device: DeviceArgs,
    cache: KvArgs,
    /// Where prefixes are kept, and how many bytes of them.
    prefixes: Option<(PathBuf, u64)>,
    checkpoint: Checkpoint,
    output: Output,
}

/// Refuses flags that do not go together.
pub(super) fn check(args: &Args) -> Result<(), UsageError> {
    let asked =
        [("--unload-after", args.unload_after.is_some()), ("--prefix-cache-dir", args.prefix_cache_dir.is_some())];
    let (ranks, tp, snapshots) = (args.ranks.unwrap_or(1), args.device.tp, args.cache.snapshots);
    for (flag, _) in asked.iter().filter(|(_, is_asked)| *is_asked) {
        let keeps = *flag == "--prefix-cache-dir";
        let why = match () {
            () if args.replay.is_some() => "`--replay`: a script has no model",
            () if ranks > 1 => "`-g`: each of several processes has a model of its own",
            () if keeps && tp > 1 => "`--tp`: each device has a part of every prefix",
            () if keeps && snapshots == Some(0) => "`--snapshots 0`, which keeps no prefix",
            () => continue,
        };
        return Err(UsageError(format!("`{flag}` does not go with {why}")));
    }
    Ok(())
}

impl Loading {
    pub(crate) fn new(args: &Args, checkpoint: &Checkpoint, output: &Output) -> Self {
        Self {
            device: args.device.clone(),
            cache: args.cache.clone(),
            prefixes: args.prefix_cache_dir.clone().map(|folder| (folder, args.prefix_cache_size)),
            checkpoint: checkpoint.clone(),
            output: output.clone(),
        }
    }

    /// Loads the model in sizes that the device has room for. Also says how it is unloaded, if it is.
    pub(crate) fn load(mut self, args: &Args) -> anyhow::Result<(Loaded, Option<Unloading>)> {
        let mut chosen = None;
        let (loaded, device) = self.load_sized(|room| *chosen.insert(sizes(args, room)))?;
        // What clients were told of the model stays true: it comes back on the same device, in the same sizes.
        self.device.device = device;
        let again = move |sizes: Sizes| {
            self.load_sized(|_| sizes).map(|(loaded, _)| loaded).map_err(|error| {
                let hint = error.chain().find_map(report::hint);
                EngineFailure::new(format!("{error:#}"), hint)
            })
        };
        let unloading = args.unload_after.zip(chosen);
        let unloading = unloading.map(|(after, sizes)| Unloading { after, load: Arc::new(move || again(sizes)) });
        Ok((loaded, unloading))
    }

    fn load_sized(&self, sizes: impl FnMut(&Room<'_>) -> Sizes) -> anyhow::Result<(Loaded, Device)> {
        let Self { device, cache, prefixes, checkpoint, output } = self;
        let (mut engine, device) = device.load_sized(checkpoint, cache, sizes, output)?;
        let Some((folder, most_bytes)) = prefixes else { return Ok((Loaded { engine, prefixes: None }, device)) };
        let start = Instant::now();
        let mut prefixes = PrefixStore::open(folder, digest(checkpoint, &engine), *most_bytes)?;
        let BroughtBack { n_tokens, n_bytes } = prefixes.load_into(&mut engine)?;
        if n_tokens > 0 {
            let (seconds, folder) = (start.elapsed().as_secs_f64(), folder.display());
            let bytes = human_bytes(n_bytes);
            output.note(&format!("{n_tokens} tokens of prompts are back from `{folder}`: {bytes} in {seconds:.2} s"));
        }
        Ok((Loaded { engine, prefixes: Some(prefixes) }, device))
    }
}
