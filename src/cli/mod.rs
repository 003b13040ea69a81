//! The command line: one file per command, each with its `Args` and a `run(args, &Output)`.
//!
//! stdout is the result, stderr is everything else. Exit codes: 0 done, 1 failed, 2 wrong usage. This is the
//! only part of the program that prints, and the only one that uses `anyhow`.

mod kernels;
pub mod output;
mod report;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use output::{ColorChoice, Output};

/// gpt-oss on AMD GPUs, with kernels that are data.
#[derive(Parser)]
#[command(name = "gptoss-jit", version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// One documented JSON object on stdout instead of text (one per line when streaming)
    #[arg(long, global = true)]
    json: bool,

    /// Nothing on stderr but warnings and errors
    #[arg(long, global = true)]
    quiet: bool,

    /// More on stderr: what was chosen, compiled and planned
    #[arg(long, global = true)]
    verbose: bool,

    /// When to colour stderr
    #[arg(long, global = true, value_enum, default_value_t = ColorChoice::Auto)]
    color: ColorChoice,
}

#[derive(Subcommand)]
enum Command {
    Kernels(kernels::Args),
}

/// Runs the program.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    let output = Output::new(cli.json, cli.quiet, cli.verbose, cli.color);
    let result: anyhow::Result<()> = dispatch(cli.command, &output);
    report::exit_code(result, &output)
}

fn dispatch(command: Command, output: &Output) -> anyhow::Result<()> {
    match command {
        Command::Kernels(args) => kernels::run(args, output),
    }
}
