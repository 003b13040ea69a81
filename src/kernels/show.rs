//! `kernels show`: a template as the compiler gets it, for a problem that it fits.
//!
//! Without flags for the problem, it is the first one of gpt-oss-20b's forward pass that the template fits, else the
//! first of its op's tests; stderr says which.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use serde::Serialize;

use super::isa;
use crate::args::source::TargetArgs;
use crate::model_problems::{self, InModel};
use crate::output::Output;
use crate::usage::UsageError;
use format::Dtype;
use kernel::choice::Chooser;
use kernel::object::compile::options;
use kernel::step::StepKind;
use kernel::target::{Language, Target};
use kernel::template::contract::TestShape;
use kernel::template::library::Library;
use kernel::template::params::ParamsError;
use kernel::template::render::{Rendered, render};
use kernel::template::{Param, Params, Precision, Problem, Template};
use model::config::NamedShape;

#[derive(clap::Args)]
pub(super) struct ShowArgs {
    /// The template, as `kernels ls` names it: `linear/dot`
    #[arg(value_name = "OP/VARIANT")]
    label: String,

    #[command(flatten)]
    kernel: KernelArgs,

    /// Number the lines, as compilers do in their messages
    #[arg(long)]
    line_numbers: bool,

    /// Show machine code beside the template's lines, and registers, LDS, waves and what limits them (AMD GPUs)
    #[arg(long, conflicts_with = "line_numbers")]
    isa: bool,

    /// Show LLVM IR as it is right before code generation (AMD GPUs)
    #[arg(long, conflicts_with_all = ["line_numbers", "isa"])]
    ir: bool,

    /// Use the parameters that the tuning tables choose at N rows, if they choose this template
    #[arg(long, value_name = "N", conflicts_with = "set", value_parser = clap::value_parser!(u32).range(1..))]
    tokens: Option<u32>,
}

/// For which target, problem and parameters a template is rendered.
#[derive(clap::Args)]
pub(crate) struct KernelArgs {
    #[command(flatten)]
    target: TargetArgs,

    /// The model whose dimensions are used, if the template takes them; else those of its op's tests [default:
    /// gpt-oss-20b]
    #[arg(long, value_enum)]
    shape: Option<NamedShape>,

    /// A dim, constant, flag or dtype of the problem
    #[arg(long = "with", value_name = "NAME=VALUE", value_parser = assignment)]
    with: Vec<(String, String)>,

    /// A parameter of the template; others have their defaults, or the first legal values
    #[arg(long = "set", value_name = "PARAM=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,

    /// Precision [default: the first that the template fits, bf16 before f32]
    #[arg(long, value_enum)]
    precision: Option<Precision>,
}

/// A template, rendered as [`KernelArgs`] say.
pub(crate) struct RenderedFor {
    pub(super) template: Arc<Template>,
    pub(super) chosen: Chosen,
    pub(crate) kernel: Rendered,
    pub(crate) target: Target,
}

/// A problem for a template, and parameters that are legal there.
pub(super) struct Chosen {
    pub(super) problem: Problem,
    pub(super) params: Params,
    /// Where the problem is from: `block.0.attn.qkv of gpt-oss-20b`.
    from: String,
}

pub(super) fn run(args: &ShowArgs, output: &Output) -> anyhow::Result<()> {
    let mut rendered = args.kernel.render(&args.label)?;
    if let Some(tokens) = args.tokens {
        rendered.take_params_of_tables(&args.kernel, tokens)?;
    }
    if args.isa {
        let source = &args.kernel.target.source;
        let unit = source.tables()?.facts(&rendered.target.arch).and_then(|facts| facts.compute_unit);
        return isa::run(&rendered, &source.library()?, unit, output);
    }
    if args.ir {
        return isa::run_ir(&rendered, output);
    }
    let kernel = &rendered.kernel;
    if output.is_json() {
        return Ok(output.json(&Shown::new(&rendered))?);
    }
    output.note(&rendered.about());
    if !args.line_numbers {
        return Ok(output.text(&kernel.source)?);
    }
    let numbered = kernel.source.lines().enumerate().map(|(i, line)| format!("{:>5}  {line}", i + 1));
    Ok(output.text(&numbered.map(|line| format!("{}\n", line.trim_end())).collect::<String>())?)
}

impl KernelArgs {
    /// Whether any of the flags was given.
    pub(crate) fn are_given(&self) -> bool {
        let of_problem = self.shape.is_some() || !self.with.is_empty() || self.precision.is_some();
        self.target.are_given() || of_problem || !self.set.is_empty()
    }

    /// Renders the template of this name.
    pub(crate) fn render(&self, label: &str) -> anyhow::Result<RenderedFor> {
        let library = self.target.source.library()?;
        let target = self.target.target(&self.target.source.tables()?)?;
        let template = match (library.template(label, target.language()), &self.target.arch) {
            (Ok(template), _) => template,
            // Without a target the name may be in the other language: then say which target it needs.
            (Err(_), None) if library.template(label, Language::Hip).is_ok() => {
                let what = format!("`{label}` is for a GPU: add --arch, for example --arch gfx1100");
                return Err(UsageError(what).into());
            }
            (Err(error), _) => return Err(error.into()),
        };
        let chosen = self.choose(template, &library, &target)?;
        let kernel = render(&library, template, &chosen.problem, &chosen.params, &target)?;
        Ok(RenderedFor { template: Arc::clone(template), chosen, kernel, target })
    }

    /// The first problem that the template fits with legal parameters. Where there is none, the first that comes
    /// closest: rendering it says what does not fit.
    fn choose(&self, template: &Template, library: &Library, target: &Target) -> anyhow::Result<Chosen> {
        let set = self.set.iter().map(|(name, value)| Ok((name.clone(), number(name, value)?)));
        let set: Params = set.collect::<anyhow::Result<_>>()?;
        let mut refused: Option<Chosen> = None;
        let mut misfit: Option<Chosen> = None;
        for (from, problem) in self.problems(template, library, target)? {
            let closest = if template.fits(&problem, target).is_ok() {
                if let Some(params) = legal_params(template, &set, &problem, target)? {
                    return Ok(Chosen { problem, params, from });
                }
                &mut refused
            } else {
                &mut misfit
            };
            closest.get_or_insert(Chosen { problem, params: set.clone(), from });
        }
        refused.or(misfit).ok_or_else(|| anyhow!("`{template}` has no test in its op.toml to take the dims from"))
    }

    /// The problems of the template's ops, each with where it is from: those of a model's forward pass, then those of
    /// tests.
    fn problems(
        &self,
        template: &Template,
        library: &Library,
        target: &Target,
    ) -> anyhow::Result<Vec<(String, Problem)>> {
        let precisions = self.precision.map_or(vec![Precision::Bf16, Precision::F32], |precision| vec![precision]);
        let (op, shape) = (template.ops.join("+"), self.shape.unwrap_or_else(NamedShape::gpt_oss_20b));
        let fusions = library.fusions(target);
        let mut all = Vec::new();
        for &precision in &precisions {
            for InModel { label, problem, .. } in
                model_problems::list(&op, shape, precision, target, library, &fusions)?
            {
                // A contract of the user's may have other names.
                if template.signature.check(&problem).is_ok() {
                    all.push((format!("{label} of {}", shape.name()), problem));
                }
            }
        }
        for &precision in &precisions {
            let tests = template.signature.tests().into_iter().enumerate();
            all.extend(tests.map(|(i, test)| (format!("test {} of {op}", i + 1), of_test(template, test, precision))));
        }
        let mut changed = Vec::new();
        for (from, problem) in all {
            for mut problem in with_all_dtypes(problem, template) {
                self.with.iter().try_for_each(|(name, value)| change(&mut problem, name, value))?;
                template.signature.drop_absent_dtypes(&mut problem);
                changed.push((from.clone(), problem));
            }
        }
        Ok(changed)
    }
}

/// Legal parameters with these values: the others at their defaults if that is legal, else the first that are.
fn legal_params(
    template: &Template,
    set: &Params,
    problem: &Problem,
    target: &Target,
) -> Result<Option<Params>, ParamsError> {
    match template.resolve_params(set, problem, target) {
        Ok(params) => Ok(Some(params)),
        // Wrong for any problem.
        Err(error @ (ParamsError::Unknown { .. } | ParamsError::Value { .. })) => Err(error),
        Err(_) => {
            let mut all = with_others(template, set);
            Ok(all.find_map(|params| template.resolve_params(&params, problem, target).ok()))
        }
    }
}

/// These values with every choice of the parameters that they leave open, the last of which changes fastest.
fn with_others<'a>(template: &'a Template, set: &'a Params) -> impl Iterator<Item = Params> + 'a {
    let is_open = |(name, param): &(&String, &Param)| param.is_tunable && !set.contains_key(*name);
    let open: Vec<(&String, &Param)> = template.params.iter().filter(is_open).collect();
    let n_choices: usize = open.iter().map(|(_, param)| param.values.len()).product();
    (0..n_choices).map(move |mut i| {
        let mut params = set.clone();
        for (name, param) in open.iter().rev() {
            params.insert((*name).clone(), param.values[i % param.values.len()]);
            i /= param.values.len();
        }
        params
    })
}

/// A test as a problem, with the first types that the contract allows.
fn of_test(template: &Template, test: TestShape, precision: Precision) -> Problem {
    let dtypes = template.signature.dtypes.iter().map(|(name, allowed)| (name.clone(), allowed[0]));
    Problem {
        ops: template.ops.clone(),
        dims: test.dims,
        constants: test.constants,
        flags: test.flags,
        dtypes: dtypes.collect(),
        precision,
        keeps: template.keeps.clone(),
    }
}

/// The problem as it is, then with all other element types that the template takes; of arguments that it does not have
/// too, which it may get.
fn with_all_dtypes(mut problem: Problem, template: &Template) -> Vec<Problem> {
    for (name, allowed) in &template.signature.dtypes {
        problem.dtypes.entry(name.clone()).or_insert(allowed[0]);
    }
    let mut all = vec![problem];
    for (name, allowed) in &template.signature.dtypes {
        let allowed = template.requires.dtypes.get(name).unwrap_or(allowed);
        let others = all.iter().flat_map(|problem| {
            let others = allowed.iter().filter(|dtype| problem.dtypes.get(name) != Some(dtype));
            others.map(|&dtype| {
                let mut other = problem.clone();
                other.dtypes.insert(name.clone(), dtype);
                other
            })
        });
        let others: Vec<Problem> = others.collect();
        all.extend(others);
    }
    all
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

/// `tile_n=4`.
pub(super) fn assignment_of_number(text: &str) -> Result<(String, u32), String> {
    let (name, value) = assignment(text)?;
    let number = value.parse().map_err(|_| format!("`{value}` is no whole number"))?;
    Ok((name, number))
}

fn assignment(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected name=value")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

impl RenderedFor {
    /// Renders it with the parameters that the tables choose for this many rows.
    fn take_params_of_tables(&mut self, args: &KernelArgs, tokens: u32) -> anyhow::Result<()> {
        let source = &args.target.source;
        let chooser = Chooser::new(source.library()?, source.tables()?, self.target.clone())?;
        let label = self.template.label();
        let choice = StepKind::ALL.into_iter().find_map(|step| {
            let ranking = chooser.ranking(&self.chosen.problem, tokens as usize, step).ok()?;
            ranking.choices.into_iter().next().filter(|choice| choice.template.label() == label)
        });
        let Some(choice) = choice else {
            let what = format!("--tokens {tokens}: `{label}` is not what is chosen there; `kernels plan` says what is");
            return Err(UsageError(what).into());
        };
        self.chosen.params = choice.params;
        let (problem, params) = (&self.chosen.problem, &self.chosen.params);
        self.kernel = render(chooser.library(), &self.template, problem, params, &self.target)?;
        Ok(())
    }

    /// What was rendered, in a line.
    pub(super) fn about(&self) -> String {
        let Chosen { problem, from, .. } = &self.chosen;
        let mut values = listed(&problem.dims);
        values.extend(listed(&problem.constants));
        values.extend(listed(&problem.flags));
        values.extend(listed(&problem.dtypes));
        values.push(format!("precision={}", problem.precision));
        let params = listed(&self.kernel.params);
        let params =
            if params.is_empty() { "no parameters".into() } else { format!("parameters {}", params.join(" ")) };
        let (template, arch) = (&self.kernel.label, &self.target.arch);
        let simulated = if self.target.is_simulated { "sim:" } else { "" };
        format!("{template} for {simulated}{arch}, as in {from}: {}; {params}", values.join(" "))
    }
}

fn listed(values: &BTreeMap<String, impl Display>) -> Vec<String> {
    values.iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// The JSON of `kernels show`.
#[derive(Serialize)]
struct Shown<'a> {
    schema: u32,
    template: &'a str,
    file: String,
    target: String,
    problem: ShownProblem<'a>,
    entry: &'a str,
    abi: String,
    params: &'a Params,
    options: Vec<String>,
    block_size: u32,
    source: &'a str,
}

/// What it was rendered for.
#[derive(Serialize)]
struct ShownProblem<'a> {
    /// A node of a model, or a test of the op.
    from: &'a str,
    dims: &'a BTreeMap<String, u32>,
    constants: &'a BTreeMap<String, f32>,
    flags: &'a BTreeMap<String, bool>,
    dtypes: BTreeMap<&'a str, &'static str>,
    precision: &'static str,
}

impl<'a> Shown<'a> {
    fn new(rendered: &'a RenderedFor) -> Self {
        let RenderedFor { template, chosen, kernel, target } = rendered;
        let problem = &chosen.problem;
        Self {
            schema: 1,
            template: &kernel.label,
            file: template.file.place(0).to_string(),
            target: target.id(),
            problem: ShownProblem {
                from: &chosen.from,
                dims: &problem.dims,
                constants: &problem.constants,
                flags: &problem.flags,
                dtypes: problem.dtypes.iter().map(|(name, dtype)| (name.as_str(), dtype.name())).collect(),
                precision: problem.precision.name(),
            },
            entry: &kernel.entry,
            abi: kernel.abi(),
            params: &kernel.params,
            options: options(kernel, target),
            block_size: kernel.launch.block_size(),
            source: &kernel.source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::source::SourceArgs;
    use kernel::template::library::Layer;

    /// What `kernels show LABEL` renders, with these parameters set.
    fn shown(
        library: &Library,
        template: &Template,
        target: &Target,
        set: &[(&str, &str)],
    ) -> anyhow::Result<Rendered> {
        let source = SourceArgs { templates: None, tuning: None };
        let set = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let target_args = TargetArgs { source, arch: Some(target.arch.clone()) };
        let args = KernelArgs { target: target_args, shape: None, with: Vec::new(), set, precision: None };
        let chosen = args.choose(template, library, target)?;
        Ok(render(library, template, &chosen.problem, &chosen.params, target)?)
    }

    #[test]
    fn every_template_is_shown_for_every_arch_that_it_is_for() {
        let library = Library::from_layers(vec![Layer::built_in()]);
        let mut targets: Vec<Target> =
            kernel::target::built_in().iter().map(|(arch, _)| Target::gpu(arch).expect(arch)).collect();
        // Above all others in what it has: its templates have to be shown on machines that are not like it.
        let most = "x86-64-v4+amx_bf16+avx512bf16+avx512fp16+avx512vnni+avxvnni";
        let levels = ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", most];
        targets.extend(levels.map(|arch| Target::named(arch).expect(arch)));
        for template in library.templates() {
            let fitting: Vec<&Target> = targets.iter().filter(|target| template.fits_target(target).is_ok()).collect();
            assert!(!fitting.is_empty(), "{template} is for no arch");
            for target in fitting {
                let kernel = shown(&library, template, target, &[]);
                let kernel = kernel.unwrap_or_else(|error| panic!("{template} for {}: {error:#}", target.arch));
                assert!(kernel.source.contains(&template.entry()) || !target.is_gpu(), "{template}: {}", kernel.source);
            }
        }
    }

    #[test]
    fn values_that_are_set_are_kept_and_others_give_way() {
        let library = Library::from_layers(vec![Layer::built_in()]);
        let target = Target::gpu("gfx1100").expect("known");
        let template = library.template("linear/matrix", target.language()).expect("built in");
        // Two waves side by side, the default, need 32 tokens.
        for (tile_t, waves_t) in [("64", 2), ("16", 1)] {
            let kernel = shown(&library, template, &target, &[("tile_t", tile_t)]).expect("legal with some others");
            assert_eq!((kernel.params["tile_t"].to_string().as_str(), kernel.params["waves_t"]), (tile_t, waves_t));
        }
        for (set, why) in [
            (&[("tile_t", "33")][..], "tile_t = 33, expected one of"),
            (&[("tile_t", "16"), ("waves_t", "4")], "a wave has whole tiles of 16 rows of x"),
        ] {
            let error = shown(&library, template, &target, set).expect_err("not legal").to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
