//! `gptoss-jit man`: manual pages of the program and of each command.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap_mangen::Man;

use super::output::Output;

/// Write manual pages, `gptoss-jit.1` and one for each command, into a folder
///
/// `gptoss-jit man ~/.local/share/man/man1` puts them where `man gptoss-jit-run` finds them. Prints the path of each.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder; created if missing
    dir: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// A page cannot be written.
pub(crate) fn run(args: &Args, program: clap::Command, output: &Output) -> anyhow::Result<()> {
    fs::create_dir_all(&args.dir).with_context(|| format!("could not make the folder `{}`", args.dir.display()))?;
    let mut program = program.disable_help_subcommand(true); // `help` has no page: the pages are it
    program.build();
    write(program, &args.dir, output)
}

/// The page of a command, and those of its own commands.
fn write(command: clap::Command, folder: &Path, output: &Output) -> anyhow::Result<()> {
    let within: Vec<clap::Command> = command.get_subcommands().cloned().collect();
    let path = Man::new(command).generate_to(folder);
    let path = path.with_context(|| format!("could not write a page into `{}`", folder.display()))?;
    output.line(&path.display().to_string())?;
    within.into_iter().try_for_each(|command| write(command, folder, output))
}
