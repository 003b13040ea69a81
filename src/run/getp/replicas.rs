//! `-g N`: the model on N devices of this machine, each in its own process of this program.

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;
use std::sync::mpsc;

use super::{Extent, signals, sizes};
use crate::args::kernel_counts;
use crate::output::Output;
use crate::run::Args;
use crate::{replicas, report};
use batch::replica::child::work as work_on;
use batch::replica::{BatchReplicaReady, Replicas};
use engine::Engine;
use model::checkpoint::Checkpoint;
use replica::child;

/// Starts a replica on each of `n` devices.
pub(super) fn start(args: &Args, checkpoint: &Checkpoint, extent: Extent, n: usize) -> anyhow::Result<Replicas> {
    let extent = Extent { n_prompts: extent.n_prompts.div_ceil(n), ..extent };
    let more = ["--replica".into(), OsString::from(extent.to_string())];
    Ok(Replicas::start(&replicas::starts(&args.device, checkpoint, n, &more)?)?)
}

/// Is a replica: loads the model and answers jobs until its parent is gone.
pub(super) fn work(args: &Args, extent: Extent, output: &Output) -> anyhow::Result<()> {
    signals::leave_to_the_parent(&signals::OF_TERMINALS)?;
    let (jobs, received) = mpsc::channel();
    child::begin(move |job| drop(jobs.send(job)))?;
    let answer = || -> anyhow::Result<()> {
        let checkpoint = args.model.checkpoint()?;
        let mut engine = args.load_sized(&checkpoint, |room| sizes(args, room, extent), output)?;
        let ready = ready(&engine);
        Ok(work_on(&received, &mut engine, ready)?)
    };
    if let Err(error) = answer() {
        let message: Vec<String> = error.chain().map(ToString::to_string).collect();
        child::fail(message.join(": "), error.chain().find_map(report::hint));
    }
    Ok(())
}

/// What is to be known of an engine that takes jobs.
pub(super) fn ready(engine: &Engine) -> BatchReplicaReady {
    let layout = engine.kv_layout();
    BatchReplicaReady {
        n_slots: layout.n_slots,
        capacity_tokens: layout.capacity_tokens,
        device: engine.executor().pipeline().driver().describe(),
        kernels: kernel_counts(engine).numbers(),
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
