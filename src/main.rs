//! The command line: one file per command, each with its `Args` and a `run(args, &Output)`.
//!
//! stdout is the result, stderr is everything else. Exit codes: 0 done, 1 failed, 2 wrong usage. This is the
//! only part of the program that prints, and the only one that uses `anyhow`.

mod args;
mod bench;
mod bundle;
mod cache;
mod compile_progress;
mod completions;
mod decode;
mod devices;
mod doctor;
mod environment;
mod eval;
mod export;
mod gpu_links;
mod inspect;
mod kernel_table;
mod kernels;
mod known_models;
mod log;
mod logits;
mod man;
mod merge;
mod model_problems;
mod models;
mod output;
mod output_file;
mod peers;
mod planned_steps;
mod replicas;
mod report;
mod rows_plot;
mod run;
mod serve;
mod spans;
mod stderr;
mod step_timeout;
mod svg;
mod text_input;
mod tokenize;
mod tune;
mod usage;

use std::path::PathBuf;
use std::process::{self, ExitCode};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use output::{ColorChoice, Output};

use engine::device::hip;
use engine::kernel_driver::{IGNORED, KernelDriver, OVERRIDE};
use model::built_in;
use model::family::known;
use system::bounded_process::this_program;
use system::os::CommandExt;

/// Runs gpt-oss and other language models on AMD and NVIDIA GPUs and on processors; its kernels are data.
#[derive(Parser)]
#[command(name = "gptoss-jit", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// One documented JSON object on stdout instead of text (one per line when streaming)
    #[arg(long, global = true)]
    json: bool,

    /// Only warnings and errors on stderr
    #[arg(long, global = true)]
    quiet: bool,

    /// More on stderr: what was chosen, compiled and planned
    #[arg(long, global = true)]
    verbose: bool,

    /// A model family's file; overrides the ones of the same name in the config folder and built in; see `models`
    #[arg(long = "model-def", global = true, value_name = "FILE")]
    _model_def: Vec<PathBuf>,

    /// Compile nothing: kernels come from the cache and from bundles; an error lists the missing ones
    #[arg(long, global = true)]
    no_compile: bool,

    /// When to colour stderr
    #[arg(long, global = true, value_enum, default_value_t = ColorChoice::Auto)]
    color: ColorChoice,
}

/// First argument of a process that runs kernels for `kernels check` or `doctor`.
const CHECK_WORKER: &str = "__check-worker";

/// First argument of a process that measures for `tune`.
const TUNE_WORKER: &str = "__tune-worker";

// A command's flags are made when it is the one that was asked for: to make those of all took most of a short command's
// time.
#[derive(Subcommand)]
#[command(defer = true)]
enum Command {
    Run(Box<run::Args>),
    Merge(Box<merge::Args>),
    Serve(Box<serve::Args>),
    Bench(bench::Args),
    Bundle(bundle::Args),
    Eval(Box<eval::Args>),
    Logits(logits::Args),
    Inspect(inspect::Args),
    Export(export::Args),
    Tokenize(tokenize::Args),
    Decode(decode::Args),
    Cache(cache::Args),
    Kernels(kernels::Args),
    Models(models::Args),
    Tune(Box<tune::Args>),
    Devices(devices::Args),
    Doctor(doctor::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// The program's commands and flags. All help ends with the environment variables.
fn command() -> clap::Command {
    let with_variables = |command: clap::Command| command.after_long_help(environment::help());
    with_variables(Cli::command()).mut_subcommands(with_variables)
}

fn main() -> ExitCode {
    // Those are no commands of a person's: they stand in no help and among no suggestions.
    if let Some(done) = chat::worker() {
        log::begin(log::Events::Warnings);
        let output = Output::new(false, false, false, ColorChoice::Auto);
        return ExitCode::from(report::exit_code(done.map_err(Into::into), &output));
    }
    let first = std::env::args_os().nth(1);
    if first.as_ref().is_some_and(|word| word == hip::PROBE) {
        let code = u8::from(hip::probe().is_err());
        gpu::hip::end_process(code); // as every other process leaves it
        return ExitCode::from(code);
    }
    if first.as_ref().is_some_and(|word| word == built_in::COMMAND) {
        return ExitCode::from(u8::from(built_in::answer(args::built_in_file).is_err()));
    }
    start_again_without_overrides();
    let worker = [CHECK_WORKER, TUNE_WORKER].into_iter().find(|name| first.as_ref().is_some_and(|word| word == name));
    let words = std::env::args_os().enumerate().filter(|(i, _)| *i != 1 || worker.is_none()).map(|(_, word)| word);
    let words = match serve::config::expanded(words.collect()) {
        Ok(words) => words,
        Err(error) => {
            return ExitCode::from(report::exit_code(Err(error), &Output::new(false, false, false, ColorChoice::Auto)));
        }
    };
    // Before the words are understood: models of such a file are values of `--shape`.
    let model_defs: Vec<PathBuf> =
        serve::config::values_of("--model-def", &words).into_iter().map(PathBuf::from).collect();
    if let Err(error) = known::read(&model_defs, known::folder().as_deref()) {
        let output = Output::new(false, false, false, ColorChoice::Auto);
        return ExitCode::from(report::exit_code(Err(error.into()), &output));
    }
    let mut commands = command();
    if !serve::config::names_one_of(&commands, &words) {
        commands.build(); // help that lists commands says of each what it does
    }
    let cli = match commands.try_get_matches_from(words).and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    if cli.no_compile {
        kernel::object::store::never_compile();
    }
    if matches!(cli.command, Command::Serve(_)) {
        stderr::never_wait();
    }
    log::begin(match &cli.command {
        Command::Serve(_) if cli.json => log::Events::JsonLines,
        Command::Serve(_) if !cli.quiet => log::Events::Lines,
        _ => log::Events::Warnings,
    });
    let output = Output::new(cli.json, cli.quiet, cli.verbose, cli.color);
    let result = match cli.command {
        Command::Kernels(args) if worker == Some(CHECK_WORKER) => kernels::work(&args),
        Command::Doctor(_) if worker == Some(CHECK_WORKER) => doctor::work(),
        Command::Tune(args) if worker == Some(TUNE_WORKER) => tune::work(&args),
        _ if worker.is_some() => Err(anyhow::anyhow!("only checks and `tune` run kernels in processes of their own")),
        command => dispatch(command, &output),
    };
    let code = report::exit_code(result, &output);
    stderr::finish();
    gpu::hip::end_process(code);
    ExitCode::from(code)
}

/// What makes AMD's runtime take a chip for another one is read by its libraries, before anybody could tell them
/// otherwise: where it is not what the driver says, this process becomes one without it.
fn start_again_without_overrides() {
    let variables =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let overrides: Vec<(String, String)> = variables.filter(|(name, _)| name.starts_with(OVERRIDE)).collect();
    let ignored = if overrides.is_empty() { Vec::new() } else { KernelDriver::here().false_overrides(&overrides) };
    if ignored.is_empty() {
        return;
    }
    let mut again = process::Command::new(this_program());
    again.arg0(std::env::args_os().next().unwrap_or_default()).args(std::env::args_os().skip(1));
    for one in &ignored {
        again.env_remove(one.split('=').next().unwrap_or_default());
    }
    // Where that cannot be done, what follows says what the runtime says.
    drop(again.env(IGNORED, ignored.join(" ")).exec());
}

fn dispatch(command: Command, output: &Output) -> anyhow::Result<()> {
    match command {
        Command::Run(args) => run::run(*args, output),
        Command::Merge(args) => merge::run(&args, output),
        Command::Serve(args) => serve::run(*args, output),
        Command::Bench(args) => bench::run(args, output),
        Command::Bundle(args) => bundle::run(args, output),
        Command::Eval(args) => eval::run(*args, output),
        Command::Logits(args) => logits::run(args, output),
        Command::Inspect(args) => inspect::run(args, output),
        Command::Export(args) => export::run(args, output),
        Command::Tokenize(args) => tokenize::run(args, output),
        Command::Decode(args) => decode::run(args, output),
        Command::Cache(args) => cache::run(args, output),
        Command::Kernels(args) => kernels::run(args, output),
        Command::Models(args) => models::run(args, output),
        Command::Tune(args) => tune::run(&args, output),
        Command::Devices(args) => devices::run(args, output),
        Command::Doctor(args) => doctor::run(args, output),
        Command::Completions(args) => completions::run(&args, self::command(), output),
        Command::Man(args) => man::run(&args, self::command(), output),
    }
}
