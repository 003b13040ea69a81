//! `kernels compare A B`: two kernels at a model's shapes, or two folders of tuning tables in whole steps:
//! correctness, registers, and times with their noise. [`steps`] has the whole steps.

mod lines;
mod steps;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde_json::{Value, json};

use super::beside::{Beside, Choosers, ShapeArgs, predicted};
use super::quick::{On, Quick};
use super::watch::{Place, wrong};
use crate::args::source::{SourceArgs, named_target};
use crate::compile_progress::CompileProgress;
use crate::output::Output;
use crate::planned_steps::PlannedSteps;
use crate::usage::UsageError;
use engine::blueprint::{Blueprint, ModelOptions, PrefixCache};
use engine::device::{Device, OpenedDevice};
use engine::graph::placement::EmbeddingPlace;
use hint::chain;
use kernel::choice::Chooser;
use kernel::object::compile::Request;
use kernel::object::resources::examine;
use kernel::object::store::Store;
use kernel::pipeline::Pipeline;
use kernel::target::{Platform, Target};
use kernel::template::render::render;
use kernel::template::{Params, Precision, Problem, Resources, Template};
use kernel::tuning::TuningTables;
use lines::{Found, Line};
use model::checkpoint::Checkpoint;
use model::checkpoint::encoding::Encoding;
use model::config::NamedShape;
use steps::Step;
use system::units::counted;
use workbench::check::Wrong;
use workbench::isa::speed::IssueModel;
use workbench::predict::Predictor;
use workbench::predict::step::{StepLaunch, StepTime};
use workbench::timing::{Bench, Candidate, ROUNDS, Setup, Weights};
use workbench::tune::rows::{DOUBT, NOISE};

/// How long the cases of a precision may take.
const WITHIN: Duration = Duration::from_secs(1);

const DEADLINE: Duration = Duration::from_secs(20);

/// What a last cache holds where no table says it, in bytes.
const CACHE_BYTES: usize = 256 << 20;

#[derive(clap::Args)]
pub(super) struct CompareArgs {
    /// A kernel: a template's file or `OP/VARIANT`, optionally with parameters: `linear/gemv:tile_n=4,waves=2`; or
    /// tuning tables: a folder, or `today` for the present ones
    a: String,

    /// The other one, of the same kind
    b: String,

    /// The GPU; if it is not here, times are predicted
    #[arg(long, value_name = "ARCH", required_unless_present = "device")]
    arch: Option<String>,

    /// Run and time both on this device: `cuda`, `hip:1`, `cpu`
    #[arg(long, value_name = "DEVICE", conflicts_with = "arch")]
    device: Option<Device>,

    /// The model whose shapes are used
    #[arg(long, value_enum, default_value = "gpt-oss-20b")]
    model: NamedShape,

    /// Row counts
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_value = "1,32", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    tokens: Vec<u32>,

    /// Rows belong to one prompt, instead of one row per sequence (kernels)
    #[arg(long)]
    prompt: bool,

    /// Positions that the last row of a sequence sees
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=131_072))]
    context: u32,

    /// Also predict whole steps with either kernel instead of today's (kernels)
    #[arg(long, conflicts_with_all = ["prompt", "device"])]
    steps: bool,

    #[command(flatten)]
    source: SourceArgs,
}

/// One of the two kernels, with who chooses where its templates are.
struct Side {
    name: String,
    source: SourceArgs,
    choosers: Choosers,
    template: Arc<Template>,
    params: Params,
}

pub(super) fn run(args: &CompareArgs, output: &Output) -> anyhow::Result<()> {
    let are_tables = [&args.a, &args.b].map(|one| one == "today" || Path::new(one).is_dir());
    match are_tables {
        [true, true] => args.tables(output),
        [false, false] => args.kernels(output),
        _ => Err(UsageError("two kernels or two folders of tables are compared, not one with the other".into()).into()),
    }
}

/// The GPU of this name. Nothing is predicted for processors: the one to compile for is this machine's.
fn predictable(arch: &str, tables: &TuningTables) -> anyhow::Result<Target> {
    let target = named_target(arch, tables)?;
    let instead = match (target.platform, target.is_simulated) {
        (_, true) => format!("the simulator says nothing of speed; use `--arch {}`", target.arch),
        (Platform::Host, _) => "times of processors are measured, not predicted; use `--device cpu`".to_owned(),
        _ => return Ok(target),
    };
    Err(UsageError(format!("--arch {arch}: {instead}")).into())
}

impl CompareArgs {
    fn target(&self) -> anyhow::Result<(Target, Option<OpenedDevice>)> {
        let tables = self.source.tables()?;
        match (&self.device, &self.arch) {
            (Some(device), _) => {
                let opened = device.open(&tables, 0)?;
                if opened.0.is_simulated {
                    return Err(UsageError("the simulator says nothing of speed: `--arch` predicts".into()).into());
                }
                Ok((opened.0.clone(), Some(opened)))
            }
            (None, arch) => Ok((predictable(arch.as_deref().unwrap_or_default(), &tables)?, None)),
        }
    }

    fn shape(&self, tokens: u32) -> ShapeArgs {
        let Self { model, prompt, context, .. } = *self;
        ShapeArgs { model, tokens, prompt, context, dims: Vec::new() }
    }

    fn kernels(&self, output: &Output) -> anyhow::Result<()> {
        let (target, opened) = self.target()?;
        let sides = [self.side(&self.a, &target)?, self.side(&self.b, &target)?];
        if sides[0].template.ops != sides[1].template.ops {
            let [a, b] = [&sides[0], &sides[1]].map(|side| side.template.ops.join("+"));
            return Err(UsageError(format!("one does `{a}` and the other `{b}`")).into());
        }
        let store = Store::from_env()?.without_bundles();
        store.try_compiler(&target)?;
        let rights = sides.each_ref().map(|side| self.right(side, &target, &store));
        let rights = rights.into_iter().collect::<anyhow::Result<Vec<String>>>()?;
        if opened.is_none()
            && let Some(notice) = IssueModel::find(&target.arch).notice()
        {
            output.note(&notice);
        }
        let mut lines = Vec::new();
        for &n_tokens in &self.tokens {
            let shape = self.shape(n_tokens);
            let [of_a, of_b] = sides.each_ref().map(|side| side.choosers.beside(&side.template, &shape));
            let of_b = of_b?;
            for beside in of_a? {
                let Some(other) = of_b.iter().find(|other| other.problem == beside.problem) else { continue };
                let mut both = [Found::default(), Found::default()];
                for ((found, side), beside) in both.iter_mut().zip(&sides).zip([&beside, other]) {
                    let told = self.found(side, beside, &target, opened.as_ref(), &store);
                    *found = told.unwrap_or_else(|error| {
                        let why = format!("{error:#}");
                        Found {
                            kernel: side.name.clone(),
                            why: why.lines().next().map(str::to_owned),
                            ..Found::default()
                        }
                    });
                }
                lines.push(Line { node: beside.label.clone(), n_tokens, both });
            }
        }
        let steps = if self.steps { self.steps_with(&sides, &store, output)? } else { Vec::new() };
        let noise = if opened.is_some() { NOISE } else { DOUBT };
        if output.is_json() {
            return Ok(output.json(&json!({
                "schema": 1, "target": target.id(), "predicted": opened.is_none(), "noise": noise,
                "a": { "kernel": sides[0].name, "right": rights[0] },
                "b": { "kernel": sides[1].name, "right": rights[1] },
                "lines": lines.iter().map(|line| line.json(noise)).collect::<Vec<_>>(),
                "steps": steps.iter().map(|step| step.json(noise)).collect::<Vec<_>>(),
            }))?);
        }
        for (letter, (side, right)) in ["A", "B"].iter().zip(sides.iter().zip(&rights)) {
            output.line(&format!("{letter}, {}: {right}", side.name))?;
        }
        if lines.is_empty() {
            let what = format!("{} has no problem that both fit", self.model.name());
            output.note(&what);
            return Ok(());
        }
        const RIGHT: [&str; 6] = ["rows", "VGPRs", "LDS bytes", "spills", "waves / SIMD", "us"];
        let header = ["node", RIGHT[0], "", "kernel", RIGHT[1], RIGHT[2], RIGHT[3], RIGHT[4], RIGHT[5], "verdict"];
        let rows: Vec<Vec<String>> = lines.iter().flat_map(|line| line.rows(noise)).collect();
        output.table(&header, &rows, &RIGHT)?;
        steps::table(&steps, noise, output)?;
        output.note(&format!(
            "{}; less than {:.0} % is no difference",
            if opened.is_some() { "measured" } else { "predicted, nothing measured" },
            100.0 * noise
        ));
        Ok(())
    }

    /// A kernel by its file or by its name, with its parameters.
    fn side(&self, word: &str, target: &Target) -> anyhow::Result<Side> {
        let (name, params) = match word.rsplit_once(':').filter(|(_, params)| params.contains('=')) {
            Some((name, params)) => (name, params.split(',').map(super::show::assignment_of_number).collect()),
            None => (word, Ok(Params::new())),
        };
        let params: Params = params.map_err(|why| UsageError(format!("{word}: {why}")))?;
        let file = Path::new(name);
        let (templates, label) = if file.is_file() {
            let place = Place::from_path(file)?;
            (Some(place.templates), format!("{}/{}", place.op, place.variant))
        } else {
            (self.source.templates.clone(), name.to_owned())
        };
        let source = SourceArgs { templates, tuning: self.source.tuning.clone() };
        let choosers = Choosers::new(&source, target)?;
        let template = choosers.library().template(&label, target.language()).map(Arc::clone)?;
        template.fits_target(target).map_err(|misfit| anyhow!("{label} is not for {}: it {misfit}", target.id()))?;
        template.complete_params(&params).map_err(|why| UsageError(format!("{word}: {why}")))?;
        Ok(Side { name: word.to_owned(), source, choosers, template, params })
    }

    /// Whether it is right, in words.
    fn right(&self, side: &Side, target: &Target, store: &Store) -> anyhow::Result<String> {
        let on = match &self.device {
            Some(device) => On::Device(device.to_string()),
            None => On::Simulator,
        };
        let op = side.template.ops.join("+");
        let quick = Quick {
            templates: side.source.templates.as_deref(),
            op: &op,
            variant: &side.template.variant,
            params: side.params.clone(),
            within: WITHIN,
            deadline: DEADLINE,
            stop: &Arc::default(),
        };
        let checked = quick.check(target, &on, store, side.choosers.library())?;
        let mut failures = checked.iter().flat_map(|one| &one.failures).peekable();
        if failures.peek().is_some() && failures.all(|failure| matches!(failure.wrong, Wrong::NoTest)) {
            return Ok("not run: no test of the op fits the kernel at these parameters".to_owned());
        }
        if let Some(wrong) = wrong(&checked) {
            return Ok(wrong);
        }
        if let Some(why) = checked.iter().find_map(|one| one.unknown.clone()) {
            return Ok(format!("not run: {}", why.text));
        }
        let n_cases: usize = checked.iter().map(|one| one.n_cases).sum();
        let worst = checked.iter().map(|one| one.worst).fold(0.0, f64::max);
        let unseen = checked.iter().find_map(|one| one.unseen.told());
        let unseen = unseen.map_or(String::new(), |why| format!("; not all of it ran: {why}"));
        Ok(match n_cases {
            0 => "not run: there was no time for a test".to_owned(),
            _ => format!("right in {n_cases} cases ({:.0} % of tolerance){unseen}", 100.0 * worst),
        })
    }

    /// What it uses and takes at a problem.
    fn found(
        &self,
        side: &Side,
        beside: &Beside,
        target: &Target,
        opened: Option<&OpenedDevice>,
        store: &Store,
    ) -> anyhow::Result<Found> {
        let candidate = match side.candidate(&beside.problem, &beside.candidate, target) {
            Ok(candidate) => candidate,
            Err(why) => return Ok(Found { kernel: side.name.clone(), why: Some(why), ..Found::default() }),
        };
        let chooser = side.choosers.ours();
        let (library, unit) = (chooser.library(), chooser.tables().facts(&target.arch));
        let kernel = render(library, &candidate.template, &beside.problem, &candidate.params, target)?;
        let object = store.get_all(&[Request::new(&kernel, target)], &()).remove(0)?.object;
        let uses = match target.is_real_gpu() {
            true => {
                let facts = examine(&object, &kernel.spec(), &Resources { max_spills: None }, target)?;
                let unit = unit.and_then(|facts| facts.compute_unit);
                let waves = unit.map_or(0, |unit| {
                    unit.occupancy(target.wave_size, facts.vgprs, facts.lds_bytes, kernel.launch.block_size())
                });
                Some([facts.vgprs, facts.lds_bytes, facts.spills(), waves])
            }
            false => None,
        };
        let time = match opened {
            None => match predicted(chooser, &candidate, &beside.problem, &beside.setup, store)? {
                Ok(prediction) => Ok((1e6 * prediction.seconds(), 0.0)),
                Err(error) => Err(chain(&error)),
            },
            Some((target, driver)) => {
                let product = chooser.tables().facts(&target.arch).and_then(|facts| facts.product.as_ref());
                let cache_bytes = product.and_then(|product| product.cache_bytes).unwrap_or(CACHE_BYTES);
                let (library, tables) = (side.source.library()?, chooser.tables().clone());
                let pipeline = Pipeline::new(
                    library,
                    tables,
                    target.clone(),
                    Store::from_env()?.without_bundles(),
                    Arc::clone(driver),
                )?;
                let setup = Setup { cache_bytes, ..beside.setup.clone() };
                let bench = Bench::new(&pipeline, &beside.problem, &setup, &mut Weights::default())?;
                match bench.time(vec![candidate.clone()], 3 * ROUNDS, &(), &mut |_| ()).remove(0).1 {
                    Ok(timed) => Ok((timed.median_us(), timed.spread())),
                    Err(error) => Err(chain(&error)),
                }
            }
        };
        let params: String = candidate.params.iter().map(|(name, value)| format!(" {name}={value}")).collect();
        let kernel = format!("{}{params}", candidate.template.label());
        Ok(match time {
            Ok(time) => Found { kernel, uses, time: Some(time), why: None },
            Err(why) => Found { kernel, uses, time: None, why: Some(why) },
        })
    }

    /// Steps with either kernel wherever its problem is, and all else as today.
    fn steps_with(&self, sides: &[Side; 2], store: &Store, output: &Output) -> anyhow::Result<Vec<Step>> {
        let mut steps = Vec::new();
        for &n in &self.tokens {
            let both = sides.each_ref().map(|side| -> anyhow::Result<StepTime> {
                let chooser = side.choosers.ours();
                let mut launches = self.planned(chooser, n)?.launches(n as usize, self.context as usize);
                for launch in launches.iter_mut().filter(|launch| launch.problem.ops == side.template.ops) {
                    let today = launch.candidate.clone();
                    if let Ok(candidate) = side.candidate(&launch.problem, &today, chooser.target()) {
                        launch.candidate = candidate;
                    }
                }
                self.step_time(chooser, launches, store, output)
            });
            let [a, b] = both;
            steps.push(Step { n_tokens: n, both: [a?, b?] });
        }
        Ok(steps)
    }

    /// Whole steps by two folders of tables.
    fn tables(&self, output: &Output) -> anyhow::Result<()> {
        let Some(arch) = &self.arch else {
            let why =
                "tables are compared by predicted steps: `--arch`; `tune diff A B --device` measures where they differ";
            return Err(UsageError(why.into()).into());
        };
        let [a, b] = [&self.a, &self.b].map(|word| -> anyhow::Result<Chooser> {
            let tuning = (word != "today").then(|| PathBuf::from(word));
            let source = SourceArgs { templates: self.source.templates.clone(), tuning };
            let tables = source.tables()?;
            let target = predictable(arch, &tables)?;
            Ok(Chooser::new(source.library()?, tables, target)?)
        });
        // What is wrong with one of them is told before anything is compiled.
        let (choosers, store) = ([a?, b?], Store::from_env()?.without_bundles());
        let mut steps = Vec::new();
        for &n in &self.tokens {
            let both = choosers.each_ref().map(|chooser| -> anyhow::Result<StepTime> {
                let launches = self.planned(chooser, n)?.launches(n as usize, self.context as usize);
                self.step_time(chooser, launches, &store, output)
            });
            let [a, b] = both;
            steps.push(Step { n_tokens: n, both: [a?, b?] });
        }
        if output.is_json() {
            let steps: Vec<Value> = steps.iter().map(|step| step.json(DOUBT)).collect();
            return Ok(output.json(&json!({
                "schema": 1, "target": arch, "predicted": true, "noise": DOUBT, "a": self.a, "b": self.b,
                "steps": steps,
            }))?);
        }
        for step in &steps {
            let rows: Vec<Vec<String>> = step.differences();
            if rows.is_empty() {
                output.line(&format!(
                    "decode, {}: both choose the same kernels",
                    counted(step.n_tokens as usize, "row")
                ))?;
                continue;
            }
            output
                .line(&format!("decode, {}, where they choose differently:", counted(step.n_tokens as usize, "row")))?;
            output.table(&["nodes", "A", "us", "B", "us"], &rows, &["us"])?;
        }
        steps::table(&steps, DOUBT, output)?;
        output.note(&format!(
            "predicted, nothing measured, at 1 us a launch; less than {:.0} % is no difference",
            100.0 * DOUBT
        ));
        Ok(())
    }

    fn planned(&self, chooser: &Chooser, n_slots: u32) -> anyhow::Result<PlannedSteps> {
        let checkpoint = Checkpoint::random(self.model.config(None), Encoding::default(), 1)?;
        let n_slots = n_slots as usize;
        let options = ModelOptions {
            drafts: None,
            embedding: EmbeddingPlace::Device,
            precision: Precision::Bf16,
            kv_dtype: format::Dtype::Bf16,
            n_slots,
            capacity_tokens: (self.context as usize).min(checkpoint.config.max_seq_len),
            max_rows: n_slots.max(512),
            max_logit_rows: n_slots,
            odd_window: None,
            kv_budget_bytes: usize::MAX,
            max_prompt_rows: None,
            prefix_cache: PrefixCache::OFF,
        };
        let Blueprint { graph, limits, .. } =
            Blueprint::new(&checkpoint, &options, chooser.target(), chooser.library())?;
        Ok(PlannedSteps::new(graph, limits, chooser)?)
    }

    fn step_time(
        &self,
        chooser: &Chooser,
        launches: Vec<StepLaunch>,
        store: &Store,
        output: &Output,
    ) -> anyhow::Result<StepTime> {
        let facts = chooser.tables().facts(&chooser.target().arch);
        let predictor = Predictor::new(chooser.library(), chooser.target(), store, facts)?;
        let progress = CompileProgress::new(output);
        let time = StepTime::new(launches, &predictor, chooser.library(), &progress)?;
        if time.n_unknown() == time.n_launches() {
            let first = time.launches.into_iter().find_map(|(_, time)| time.prediction.err());
            return Err(first.context("a step has launches")?.into());
        }
        Ok(time)
    }
}

impl Side {
    /// The kernel for a problem: with the parameters that were asked for, else those of who chooses.
    fn candidate(&self, problem: &Problem, chosen: &Candidate, target: &Target) -> Result<Candidate, String> {
        let template = Arc::clone(&self.template);
        let is_chosen = chosen.template.file.name == template.file.name;
        template.fits(problem, target).map_err(|misfit| format!("it {misfit}"))?;
        let params = match self.params.is_empty() && is_chosen {
            true => chosen.params.clone(),
            false => template.resolve_params(&self.params, problem, target).map_err(|error| chain(&error))?,
        };
        Ok(Candidate { template, params })
    }
}
