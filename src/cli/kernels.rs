//! `kernels ls` and `kernels show`: what there is, what fits, and what is compiled. `kernels check` is in [`check`]
//! and [`speed`].

mod check;
mod speed;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use clap::Subcommand;
use serde::Serialize;

use super::output::Output;
use super::report::UsageError;
use crate::dtype::Dtype;
use crate::object::compile::options;
use crate::target::{Language, Target};
use crate::template::contract::TestShape;
use crate::template::library::Library;
use crate::template::render::{Rendered, render};
use crate::template::{Params, Precision, Problem, Template};
use crate::tuning::TuningTables;

/// Lists kernel templates and shows their rendered source
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lists the templates: where each came from, what it shadows, and whether it fits a target
    Ls(LsArgs),
    /// Prints the rendered source of a template, as the compiler gets it
    Show(ShowArgs),
    /// Renders, compiles and runs templates on their test shapes, and compares with the reference
    Check(check::CheckArgs),
}

/// Where templates and facts about targets come from.
#[derive(clap::Args)]
struct SourceArgs {
    /// Folder of templates, searched before the others
    #[arg(long, value_name = "DIR")]
    templates: Option<PathBuf>,

    /// Folder of tuning tables, searched before the others
    #[arg(long, value_name = "DIR")]
    tuning: Option<PathBuf>,

    /// Target: a GPU (`gfx1100`, `sm_90`), a GPU in the simulator (`sim:gfx1100`), an x86-64 level (`x86-64-v3`); left out: this
    /// machine's cores
    #[arg(long, value_name = "ARCH")]
    arch: Option<String>,
}

#[derive(clap::Args)]
struct LsArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// Only the templates that cover this op
    #[arg(long)]
    op: Option<String>,

    /// Say what each template that does not fit requires
    #[arg(long)]
    why: bool,
}

#[derive(clap::Args)]
struct ShowArgs {
    /// The template, as `kernels ls` names it: `linear/dot`
    #[arg(value_name = "OP/VARIANT")]
    label: String,

    #[command(flatten)]
    kernel: KernelArgs,

    /// Number the lines, as compilers do in their messages
    #[arg(long)]
    line_numbers: bool,
}

/// For which target, problem and parameters a template is rendered.
#[derive(clap::Args)]
pub(super) struct KernelArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// A dim, constant, flag or dtype of the problem; those not given are of the op's first test
    #[arg(long = "with", value_name = "NAME=VALUE", value_parser = assignment)]
    with: Vec<(String, String)>,

    /// A parameter of the template; those not given have their defaults
    #[arg(long = "set", value_name = "PARAM=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,

    /// How exactly sums are done; left out: the first that the template fits, bf16 before f32
    #[arg(long, value_enum)]
    precision: Option<Precision>,
}

/// A template, rendered as [`KernelArgs`] say.
pub(super) struct RenderedFor {
    template: Arc<Template>,
    pub kernel: Rendered,
    pub target: Target,
}

/// Runs the command.
///
/// # Errors
/// If templates cannot be read, or the one asked for cannot be rendered.
pub fn run(args: Args, output: &Output) -> anyhow::Result<()> {
    match args.command {
        Command::Ls(args) => ls(&args, output),
        Command::Show(args) => show(&args, output),
        Command::Check(args) => check::run(&args, output),
    }
}

impl SourceArgs {
    fn library(&self) -> anyhow::Result<Library> {
        Ok(Library::load(&Library::default_search(self.templates.as_deref()))?)
    }

    fn tables(&self) -> anyhow::Result<TuningTables> {
        Ok(TuningTables::load(&TuningTables::default_search(self.tuning.as_deref()))?)
    }

    fn target(&self) -> anyhow::Result<Target> {
        let tables = self.tables()?;
        match self.arch.as_deref() {
            None => Ok(Target::host()),
            Some(arch) if arch.starts_with("gfx") || arch.starts_with("sm_") => Ok(tables.gpu(arch)?),
            Some(arch) if arch.starts_with("sim:") => Ok(tables.gpu(&arch["sim:".len()..])?.simulated()),
            Some(arch) => Ok(Target::named(arch)?),
        }
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
    let (library, target) = (args.source.library()?, args.source.target()?);
    let mut listed: Vec<Listed> = library.templates().iter().map(|template| listed(template, &target)).collect();
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
    output.note(&format!("{} templates, for {}", library.templates().len(), target.id()));
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

impl KernelArgs {
    /// Whether any of the flags was given.
    pub(super) fn are_given(&self) -> bool {
        let SourceArgs { templates, tuning, arch } = &self.source;
        let has_source = templates.is_some() || tuning.is_some() || arch.is_some();
        has_source || !self.with.is_empty() || !self.set.is_empty() || self.precision.is_some()
    }

    /// Renders the template of this name.
    pub(super) fn render(&self, label: &str) -> anyhow::Result<RenderedFor> {
        let library = self.source.library()?;
        let target = self.source.target()?;
        let template = match (library.template(label, target.language()), &self.source.arch) {
            (Ok(template), _) => template,
            // Without a target the name may be in the other language: then say which target it needs.
            (Err(_), None) if library.template(label, Language::Hip).is_ok() => {
                let what = format!("`{label}` is for a GPU: add --arch, for example --arch gfx1100");
                return Err(UsageError(what).into());
            }
            (Err(error), _) => return Err(error.into()),
        };
        let problem = problem(template, self, &target)?;
        let params = self.set.iter().map(|(name, value)| Ok((name.clone(), number(name, value)?)));
        let params: Params = params.collect::<anyhow::Result<_>>()?;
        let kernel = render(&library, template, &problem, &params, &target)?;
        Ok(RenderedFor { template: Arc::clone(template), kernel, target })
    }
}

fn show(args: &ShowArgs, output: &Output) -> anyhow::Result<()> {
    let RenderedFor { template, kernel, target } = args.kernel.render(&args.label)?;
    if output.is_json() {
        return Ok(output.json(&shown(&template, &kernel, &target))?);
    }
    if !args.line_numbers {
        return Ok(output.text(&kernel.source)?);
    }
    let numbered = kernel.source.lines().enumerate().map(|(i, line)| format!("{:>5}  {line}", i + 1));
    Ok(output.text(&numbered.map(|line| format!("{}\n", line.trim_end())).collect::<String>())?)
}

/// The JSON of `kernels show`.
#[derive(Serialize)]
struct Shown<'a> {
    schema: u32,
    template: &'a str,
    file: String,
    target: String,
    entry: &'a str,
    abi: String,
    params: &'a Params,
    options: Vec<String>,
    block_size: u32,
    source: &'a str,
}

fn shown<'a>(template: &Template, kernel: &'a Rendered, target: &Target) -> Shown<'a> {
    Shown {
        schema: 1,
        template: &kernel.label,
        file: template.file.place(0).to_string(),
        target: target.id(),
        entry: &kernel.entry,
        abi: kernel.abi(),
        params: &kernel.params,
        options: options(kernel, target),
        block_size: kernel.launch.block_size(),
        source: &kernel.source,
    }
}

/// The op's first test, changed by `--with`, at the first precision and dtypes that the template takes.
fn problem(template: &Template, args: &KernelArgs, target: &Target) -> anyhow::Result<Problem> {
    let test = template.signature.tests().into_iter().next();
    let test =
        test.ok_or_else(|| anyhow!("`{}` has no test in its op.toml to take the dims from", template.label()))?;
    let precisions = match args.precision {
        Some(precision) => vec![precision],
        None => vec![Precision::Bf16, Precision::F32],
    };
    let mut problems = Vec::new();
    for precision in precisions {
        let mut problem = Problem { precision, ..first_problem(template, &test) };
        args.with.iter().try_for_each(|(name, value)| change(&mut problem, name, value))?;
        problems.push(problem);
    }
    let fitting = problems.iter().find(|problem| template.fits(problem, target).is_ok()).unwrap_or(&problems[0]);
    Ok(fitting.clone())
}

fn first_problem(template: &Template, test: &TestShape) -> Problem {
    let narrowed = &template.requires.dtypes;
    let dtypes: BTreeMap<String, Dtype> = template
        .signature
        .dtypes
        .iter()
        .map(|(name, allowed)| {
            (name.clone(), narrowed.get(name).and_then(|list| list.first()).copied().unwrap_or(allowed[0]))
        })
        .collect();
    Problem {
        ops: template.ops.clone(),
        dims: test.dims.clone(),
        constants: test.constants.clone(),
        flags: test.flags.clone(),
        dtypes,
        precision: Precision::Bf16,
        keeps: template.keeps.clone(),
    }
}

/// Gives one of the problem's values another value.
fn change(problem: &mut Problem, name: &str, value: &str) -> anyhow::Result<()> {
    if let Some(dim) = problem.dims.get_mut(name) {
        *dim = number(name, value)?;
    } else if let Some(constant) = problem.constants.get_mut(name) {
        *constant = value.parse().with_context(|| format!("{name}={value}: expected a number"))?;
    } else if let Some(flag) = problem.flags.get_mut(name) {
        *flag = value.parse().with_context(|| format!("{name}={value}: expected true or false"))?;
    } else if let Some(dtype) = problem.dtypes.get_mut(name) {
        *dtype = Dtype::from_name(value).ok_or_else(|| anyhow!("{name}={value}: expected a dtype"))?;
    } else {
        let names = problem
            .dims
            .keys()
            .chain(problem.constants.keys())
            .chain(problem.flags.keys())
            .chain(problem.dtypes.keys());
        let names: Vec<&str> = names.map(String::as_str).collect();
        return Err(UsageError(format!("--with {name}: expected one of: {}", names.join(", "))).into());
    }
    Ok(())
}

fn number(name: &str, value: &str) -> anyhow::Result<u32> {
    value.parse().with_context(|| format!("{name}={value}: expected a whole number"))
}

fn assignment(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected name=value")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}
