//! The command line: one file per command, each with its `Args` and a `run(args, &Output)`.
//!
//! stdout is the result, stderr is everything else. Exit codes: 0 done, 1 failed, 2 wrong usage. This is the
//! only part of the program that prints, and the only one that uses `anyhow`.

mod bench;
mod cache;
mod decode;
mod devices;
mod doctor;
mod export;
mod inspect;
mod kernel_table;
mod kernels;
mod logits;
mod model;
mod model_problems;
mod new_file;
pub mod output;
mod output_file;
mod report;
mod run;
mod shapes;
mod source;
mod tokenize;
mod tokenizer;
mod tune;

use std::path::PathBuf;
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
    Run(Box<run::Args>),
    Bench(bench::Args),
    Logits(logits::Args),
    Inspect(inspect::Args),
    Export(export::Args),
    Tokenize(tokenize::Args),
    Decode(decode::Args),
    /// Look at, check and shrink the cache of compiled kernels
    Cache(cache::Args),
    Kernels(kernels::Args),
    Tune(Box<tune::Args>),
    Devices(devices::Args),
    Doctor(doctor::Args),
    /// Compiles one kernel and leaves; started by this program only
    #[command(name = "__compile-worker", hide = true)]
    CompileWorker {
        /// The folder with the job
        folder: PathBuf,
    },
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
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("GPTOSS_JIT_LOG").unwrap_or_else(|_| "warn".into()),
        )
        .with_writer(std::io::stderr)
        .event_format(output::Warnings)
        .init();
    let output = Output::new(cli.json, cli.quiet, cli.verbose, cli.color);
    let result = dispatch(cli.command, &output);
    report::exit_code(result, &output)
}

fn dispatch(command: Command, output: &Output) -> anyhow::Result<()> {
    match command {
        Command::Run(args) => run::run(*args, output),
        Command::Bench(args) => bench::run(args, output),
        Command::Logits(args) => logits::run(args, output),
        Command::Inspect(args) => inspect::run(args, output),
        Command::Export(args) => export::run(args, output),
        Command::Tokenize(args) => tokenize::run(args, output),
        Command::Decode(args) => decode::run(args, output),
        Command::Cache(args) => cache::run(args, output),
        Command::Kernels(args) => kernels::run(args, output),
        Command::Tune(args) => tune::run(&args, output),
        Command::Devices(args) => devices::run(args, output),
        Command::Doctor(args) => doctor::run(args, output),
        Command::CompileWorker { folder } => Ok(crate::object::compile::run_worker(&folder)?),
    }
}
