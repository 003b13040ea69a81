//! `gptoss-jit completions`: a shell's completions of this program's commands and flags.

use clap_complete::{Shell, generate};

use super::output::Output;

/// Print a shell's completions of commands and flags
///
/// For bash: `gptoss-jit completions bash > ~/.local/share/bash-completion/completions/gptoss-jit`.
/// For zsh: `gptoss-jit completions zsh > DIR/_gptoss-jit`, with DIR in `$fpath`.
/// For fish: `gptoss-jit completions fish > ~/.config/fish/completions/gptoss-jit.fish`.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs the command.
///
/// # Errors
/// What printing gives.
pub(crate) fn run(args: &Args, mut program: clap::Command, output: &Output) -> anyhow::Result<()> {
    let name = program.get_name().to_owned();
    let mut script = Vec::new();
    generate(args.shell, &mut program, &name, &mut script);
    if args.shell == Shell::Bash {
        script = with_one_spelling(&script, &name);
    }
    Ok(output.bytes(&script)?)
}

/// clap_complete 4.6 spells the states of its script for bash in two ways if the program has a hyphen in its name, so
/// that no flag of any command is completed: one where a state is entered, another where it is left for what completes
/// it.
fn with_one_spelling(script: &[u8], name: &str) -> Vec<u8> {
    let [left, entered] = ["__subcmd__", "__"].map(|separator| name.replace('-', separator));
    String::from_utf8_lossy(script).replace(&left, &entered).into_bytes()
}
