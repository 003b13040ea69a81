//! `gptoss-jit completions`: what a shell needs to complete this program's commands and flags.

use clap_complete::{Shell, generate};

use super::output::Output;

/// Print a shell's completions of commands and flags
///
/// For bash: `gptoss-jit completions bash > ~/.local/share/bash-completion/completions/gptoss-jit`.
/// For zsh: `gptoss-jit completions zsh > DIR/_gptoss-jit`, with DIR in `$fpath`.
/// For fish: `gptoss-jit completions fish > ~/.config/fish/completions/gptoss-jit.fish`.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs the command.
///
/// # Errors
/// What printing gives.
pub fn run(args: &Args, mut program: clap::Command, output: &Output) -> anyhow::Result<()> {
    let name = program.get_name().to_owned();
    let mut script = Vec::new();
    generate(args.shell, &mut program, name, &mut script);
    Ok(output.bytes(&script)?)
}
