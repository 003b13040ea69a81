//! `merge`: the answers of all shards of a run, in the order of their prompts.

use super::output::Output;
use super::run;

/// Write the answers of all shards of a run (`run -m getp --shard I/N`), in the order of their prompts
///
/// Takes the flags of the run. Computes nothing: if an answer is missing, an error says which shard to run again.
#[derive(clap::Args, Debug)]
#[group(skip)]
#[command(args_override_self = true)]
pub(crate) struct Args {
    #[command(flatten)]
    run: run::Args,
}

pub(crate) fn run(args: &Args, output: &Output) -> anyhow::Result<()> {
    run::merge(&args.run, output)
}
