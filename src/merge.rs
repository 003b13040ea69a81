//! `merge`: the answers of all shards of a run, in the order of their prompts.

use super::output::Output;
use super::run;

/// Write the answers of all shards of a run (`run -m getp --shard I/N`), in the order of their prompts
///
/// Takes the flags of the run. Nothing is computed: where an answer is missing, it is an error that says which shard is
/// to be run again.
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
