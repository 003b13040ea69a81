//! `kernels ls`: the templates, and which of them fit. `kernels show` is in [`show`] and [`isa`], `kernels plan` in
//! [`plan`], `kernels check` in [`check`], [`speed`] and [`watch`], `kernels predict` in [`predict`], `kernels replay`
//! in [`replay`], `kernels compare` in [`compare`]. [`beside`] compares a template with the one that runs today,
//! [`quick`] checks one template.

mod beside;
mod check;
mod compare;
mod isa;
mod memory;
mod none;
mod plan;
mod predict;
mod quick;
mod replay;
pub(super) mod show;
mod slowest;
mod speed;
mod watch;

use clap::Subcommand;
use serde::Serialize;

use super::output::Output;
use crate::args::source::TargetArgs;
use crate::usage::UsageError;
use kernel::target::Target;
use kernel::template::Template;

/// List, show, check and compare kernel templates, and explain what runs where
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the templates: origin, what they shadow, and whether they fit a target
    Ls(LsArgs),
    /// Print the rendered source of a template, as the compiler gets it
    Show(show::ShowArgs),
    /// Show which template runs for each node of a model and each row count, and what decided that; no GPU needed
    #[command(after_help = plan::COLUMNS)]
    Plan(Box<plan::PlanArgs>),
    /// Render, compile and run templates on their test shapes, and compare with the reference
    Check(check::CheckArgs),
    /// Compare predicted kernel times with measured ones, from a journal of `tune`; no GPU needed
    Predict(predict::PredictArgs),
    /// Replay a launch of a real step, from `run --capture-launch`, on any device and by any kernel that fits; checks
    /// the outputs and measures the time
    Replay(replay::ReplayArgs),
    /// Compare two kernels at a model's shapes, or two folders of tuning tables in whole steps: correctness, registers,
    /// times
    Compare(compare::CompareArgs),
}

#[derive(clap::Args)]
struct LsArgs {
    #[command(flatten)]
    target: TargetArgs,

    /// Only the templates that cover this op
    #[arg(long)]
    op: Option<String>,

    /// Say what templates that do not fit require
    #[arg(long)]
    why: bool,
}

/// Runs the command.
///
/// # Errors
/// If templates cannot be read, or the one asked for cannot be rendered.
pub(crate) fn run(args: Args, output: &Output) -> anyhow::Result<()> {
    match args.command {
        Command::Ls(args) => ls(&args, output),
        Command::Show(args) => show::run(&args, output),
        Command::Plan(args) => plan::run(&args, output),
        Command::Check(args) => check::run(&args, output),
        Command::Predict(args) => predict::run(&args, output),
        Command::Replay(args) => replay::run(&args, output),
        Command::Compare(args) => compare::run(&args, output),
    }
}

/// Does this command's work that kernels may crash, in a separate process.
///
/// # Errors
/// If the command is not one that runs kernels, or what it needs is not there.
pub(crate) fn work(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        Command::Check(args) => check::work(args),
        _ => anyhow::bail!("only `kernels check` runs kernels in processes of their own"),
    }
}

/// A line of `kernels ls`, and an object of its JSON.
#[derive(Serialize)]
struct Listed {
    op: String,
    variant: String,
    language: &'static str,
    origin: String,
    shadows: Vec<String>,
    fits: bool,
    /// Why it does not fit, or what is wrong with it.
    reason: Option<String>,
}

fn ls(args: &LsArgs, output: &Output) -> anyhow::Result<()> {
    let source = &args.target.source;
    let (library, target) = (source.library()?, args.target.target(&source.tables()?)?);
    let mut listed: Vec<Listed> = library.templates().map(|template| listed(template, &target)).collect();
    listed.extend(library.broken().iter().map(|broken| {
        let (op, file) = broken.name.split_once('/').unwrap_or(("", &broken.name));
        Listed {
            op: op.to_owned(),
            variant: file.to_owned(),
            language: "-",
            origin: broken.origin.to_string(),
            shadows: Vec::new(),
            fits: false,
            reason: Some(format!("broken: {}", broken.error)),
        }
    }));
    if let Some(op) = &args.op {
        listed.retain(|row| row.op.split('+').any(|covered| covered == op));
    }
    if let Some(op) = args.op.as_ref().filter(|_| listed.is_empty()) {
        let templates = library.templates().flat_map(|template| template.ops.iter().map(String::as_str));
        let meant = hint::meant(op, templates).map_or(String::new(), |meant| format!(": did you mean `{meant}`?"));
        return Err(UsageError(format!("no template covers an op `{op}`{meant}")).into());
    }
    if output.is_json() {
        #[derive(Serialize)]
        struct Report {
            schema: u32,
            target: String,
            templates: Vec<Listed>,
        }
        return Ok(output.json(&Report { schema: 1, target: target.id(), templates: listed })?);
    }
    let rows: Vec<Vec<String>> = listed.iter().map(|row| row.cells(args.why)).collect();
    output.table(&["op", "variant", "language", "origin", "shadows", "fits"], &rows, &[])?;
    output.note(&format!("{} templates, for {}", library.templates().count(), target.id()));
    for broken in library.broken() {
        output.warning(&broken.error.to_string());
    }
    Ok(())
}

fn listed(template: &Template, target: &Target) -> Listed {
    let reason = template.fits_target(target).err().map(|misfit| misfit.to_string());
    Listed {
        op: template.ops.join("+"),
        variant: template.variant.clone(),
        language: template.language.name(),
        origin: template.file.origin.to_string(),
        shadows: template.shadows.iter().map(ToString::to_string).collect(),
        fits: reason.is_none(),
        reason,
    }
}

impl Listed {
    fn cells(&self, why: bool) -> Vec<String> {
        let fits = match &self.reason {
            None => "yes".to_owned(),
            Some(reason) if reason.starts_with("broken") => "broken".to_owned(),
            Some(reason) if why => format!("no: {reason}"),
            Some(_) => "no".to_owned(),
        };
        let shadows = if self.shadows.is_empty() { "-".to_owned() } else { self.shadows.join(", ") };
        let (op, variant) = (self.op.clone(), self.variant.clone());
        vec![op, variant, self.language.to_owned(), self.origin.clone(), shadows, fits]
    }
}
