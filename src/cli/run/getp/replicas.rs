//! `-g N`: the model on N devices of this machine, each in a process of its own, which is this program again.

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;

use super::{Extent, devices, signals, sizes};
use crate::batch::replica::child::Child;
use crate::batch::replica::{Ready, Replicas};
use crate::bounded_process::this_program;
use crate::checkpoint::Checkpoint;
use crate::cli::model::kernel_counts;
use crate::cli::output::Output;
use crate::cli::report;
use crate::cli::run::Args;
use crate::device::Device;
use crate::engine::Engine;
use crate::error::Hint;

/// There are fewer GPUs than replicas.
#[derive(Debug, thiserror::Error)]
#[error("could not run on {asked} GPUs: {} there: {}", if here.len() == 1 { "one is" } else { "these are" }, here.join(", "))]
pub(in crate::cli) struct TooFewDevices {
    asked: usize,
    here: Vec<String>,
}

impl Hint for TooFewDevices {
    fn hint(&self) -> Option<String> {
        Some(format!("`-g {}` uses all of them; `gptoss-jit devices` lists what there is", self.here.len()))
    }
}

/// Starts a replica on each of `n` devices.
pub(super) fn start(args: &Args, checkpoint: &Checkpoint, extent: Extent, n: usize) -> anyhow::Result<Replicas> {
    let mut here = devices::here(&args.device, checkpoint)?;
    let n_threads = match &here[..] {
        // Cores are shared out.
        [only @ (Device::Cpu | Device::Sim(_))] => {
            here = vec![only.clone(); n];
            let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
            let n_threads = if args.device.threads == 0 { n_cores } else { args.device.threads as usize };
            (n_threads / n).max(1)
        }
        _ => args.device.threads as usize,
    };
    if here.len() < n {
        return Err(TooFewDevices { asked: n, here: here.iter().map(ToString::to_string).collect() }.into());
    }
    let extent = Extent { n_prompts: extent.n_prompts.div_ceil(n), ..extent };
    let words = |device: &Device| {
        let more = [
            ("--replica", extent.to_string()),
            ("--device", device.to_string()),
            ("--threads", n_threads.to_string()),
            ("--ranks", "1".to_owned()),
        ];
        let more = more.into_iter().flat_map(|(name, value)| [name.into(), OsString::from(value)]);
        // The last of two flags counts, and what stands behind `--` is none.
        let mut words: Vec<OsString> = std::env::args_os().skip(1).collect();
        let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
        words.splice(end..end, more);
        words
    };
    let devices = here.iter().take(n).enumerate().map(|(i, device)| (format!("{device} ({i} of {n})"), words(device)));
    Ok(Replicas::start(&this_program(), devices.collect())?)
}

/// Is a replica: loads the model and answers jobs until nobody is left to ask.
pub(super) fn work(args: &Args, extent: Extent, output: &Output) -> anyhow::Result<()> {
    signals::leave_to_the_parent()?;
    let child = Child::begin()?;
    let answer = || -> anyhow::Result<()> {
        let checkpoint = args.model.checkpoint()?;
        let mut engine = args.load_sized(&checkpoint, |room| sizes(args, room, extent), output)?;
        let ready = ready(&engine);
        Ok(child.work(&mut engine, ready)?)
    };
    if let Err(error) = answer() {
        let message: Vec<String> = error.chain().map(ToString::to_string).collect();
        Child::fail(message.join(": "), error.chain().find_map(report::hint));
    }
    Ok(())
}

/// What is to be known of an engine that takes jobs.
pub(super) fn ready(engine: &Engine) -> Ready {
    let layout = engine.kv_layout();
    Ready {
        n_slots: layout.n_slots,
        capacity_tokens: layout.capacity_tokens,
        device: engine.executor().pipeline().driver().describe(),
        kernels: kernel_counts(engine),
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { longest, mean, n_prompts } = self;
        write!(f, "{longest}/{mean}/{n_prompts}")
    }
}

impl FromStr for Extent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Vec<usize> = text.split('/').filter_map(|number| number.parse().ok()).collect();
        match numbers[..] {
            [longest, mean, n_prompts] => Ok(Self { longest, mean, n_prompts }),
            _ => Err("expected LONGEST/MEAN/PROMPTS".to_owned()),
        }
    }
}
