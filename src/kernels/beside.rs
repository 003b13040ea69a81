//! Compares a template with the one that runs today, at a model's real shapes: predicted from the objects of both.

use std::sync::Arc;

use crate::args::source::SourceArgs;
use crate::model_problems;
use crate::usage::UsageError;
use kernel::choice::Chooser;
use kernel::object::store::Store;
use kernel::step::StepKind;
use kernel::target::Target;
use kernel::template::library::Library;
use kernel::template::{Precision, Problem, Template};
use model::config::NamedShape;
use workbench::predict::{PredictError, Prediction, Predictor};
use workbench::timing::{self, Candidate, Setup};

/// The shapes at which templates are held beside each other.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct ShapeArgs {
    /// The model whose shapes `--speed` and `--watch` use
    #[arg(long, value_enum, default_value = "gpt-oss-20b")]
    pub(crate) model: NamedShape,

    /// Number of rows
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) tokens: u32,

    /// Rows belong to one prompt, instead of one row per sequence
    #[arg(long)]
    pub(crate) prompt: bool,

    /// Positions that the last row of a sequence sees
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=131_072))]
    pub(crate) context: u32,

    /// Only the problems with these dims: `window=0`
    #[arg(long, value_delimiter = ',', value_name = "NAME=N,…", value_parser = dim)]
    pub(crate) dims: Vec<(String, u32)>,
}

fn dim(text: &str) -> Result<(String, u32), String> {
    let (name, value) = text.split_once('=').ok_or("expected name=value")?;
    let value = value.trim().parse().map_err(|_| format!("`{value}` is no value for it"))?;
    Ok((name.trim().to_owned(), value))
}

/// Who chooses with templates and tables of one's own, and who chooses without them.
pub(super) struct Choosers {
    ours: Chooser,
    today: Arc<Chooser>,
}

/// A problem of the model that a template fits.
pub(super) struct Beside {
    /// Where it is in the model: `block.0.attn.qkv`.
    pub(crate) label: String,
    pub(crate) problem: Problem,
    pub(crate) setup: Setup,
    /// The template, with the parameters that it would have.
    pub(crate) candidate: Candidate,
    /// What would run without it. None if nothing would.
    pub(crate) incumbent: Option<Candidate>,
}

/// What both are predicted to take.
pub(super) struct Predicted {
    pub(crate) candidate: Result<Prediction, PredictError>,
    pub(crate) incumbent: Option<Result<Prediction, PredictError>>,
}

/// Who chooses without templates of one's own.
pub(super) fn today(source: &SourceArgs, target: &Target) -> anyhow::Result<Chooser> {
    let source = SourceArgs { templates: None, tuning: source.tuning.clone() };
    Ok(Chooser::new(source.library()?, source.tables()?, target.clone())?)
}

impl ShapeArgs {
    pub(crate) fn step(&self) -> StepKind {
        if self.prompt { StepKind::Mixed } else { StepKind::Decode }
    }
}

impl Choosers {
    /// For a target; `source` has the templates and tables of one's own.
    pub(crate) fn new(source: &SourceArgs, target: &Target) -> anyhow::Result<Self> {
        Self::beside_today(source, Arc::new(today(source, target)?))
    }

    /// The same beside a chooser of [`today`].
    pub(crate) fn beside_today(source: &SourceArgs, today: Arc<Chooser>) -> anyhow::Result<Self> {
        let ours = Chooser::new(source.library()?, source.tables()?, today.target().clone())?;
        Ok(Self { ours, today })
    }

    /// The templates, one's own among them.
    pub(crate) fn library(&self) -> &Library {
        self.ours.library()
    }

    /// The problems of the model that a template fits, in bf16 precision if it takes that.
    ///
    /// # Errors
    /// If the model has none with the dims that are asked for, though it has others.
    pub(crate) fn beside(&self, template: &Arc<Template>, args: &ShapeArgs) -> anyhow::Result<Vec<Beside>> {
        let target = self.ours.target();
        let precision = template.precisions().max_by_key(|precision| *precision == Precision::Bf16);
        let Some(precision) = precision else { return Ok(Vec::new()) };
        let mut all: Vec<Beside> = Vec::new();
        let mut known: Vec<Problem> = Vec::new();
        let op = template.ops.join("+");
        for found in
            model_problems::list(&op, args.model, precision, target, self.ours.library(), &self.ours.fusions())?
        {
            let problem = found.problem;
            if known.contains(&problem) || template.fits(&problem, target).is_err() {
                continue;
            }
            known.push(problem.clone());
            if !args.dims.iter().all(|(name, value)| problem.dims.get(name) == Some(value)) {
                continue;
            }
            let (n_rows, step) = (args.tokens as usize, args.step());
            let choices = self.ours.ranking(&problem, n_rows, step)?.choices;
            let Some(own) = choices.iter().find(|choice| choice.template.file.name == template.file.name) else {
                continue;
            };
            let candidate = Candidate { template: Arc::clone(template), params: own.params.clone() };
            let today = self.today.ranking(&problem, n_rows, step).ok();
            let incumbent = today.and_then(|ranking| ranking.choices.into_iter().next());
            let incumbent = incumbent.map(|one| Candidate { template: one.template, params: one.params });
            let setup = Setup::for_problem(&problem, args.tokens, step, args.context, 0).with(&found.scalars);
            all.push(Beside { label: found.label, problem, setup, candidate, incumbent });
        }
        if all.is_empty() && !known.is_empty() {
            let what = known.iter().map(|problem| format!("{:?}", problem.dims)).collect::<Vec<_>>().join(" or ");
            return Err(UsageError(format!("--dims: no problem of {op} has them: {what}")).into());
        }
        Ok(all)
    }

    /// Predicts both.
    ///
    /// # Errors
    /// If nothing is known of the chip's speed, or the work of the problem cannot be counted.
    pub(crate) fn predict(&self, beside: &Beside, store: &Store) -> anyhow::Result<Predicted> {
        let one = |chooser, candidate| predicted(chooser, candidate, &beside.problem, &beside.setup, store);
        let incumbent = beside.incumbent.as_ref().map(|incumbent| one(&self.today, incumbent)).transpose()?;
        Ok(Predicted { candidate: one(&self.ours, &beside.candidate)?, incumbent })
    }

    /// Who chooses with the templates and tables of one's own.
    pub(crate) fn ours(&self) -> &Chooser {
        &self.ours
    }
}

/// Predicts a kernel.
///
/// # Errors
/// As [`Choosers::predict`].
pub(super) fn predicted(
    chooser: &Chooser,
    candidate: &Candidate,
    problem: &Problem,
    setup: &Setup,
    store: &Store,
) -> anyhow::Result<Result<Prediction, PredictError>> {
    let target = chooser.target();
    let predictor = Predictor::new(chooser.library(), target, store, chooser.tables().facts(&target.arch))?;
    let (_, compiled) = predictor.compile(problem, vec![candidate.clone()], &()).remove(0);
    let compiled = match compiled {
        Ok(compiled) => compiled,
        Err(error) => return Ok(Err(error)),
    };
    let work = timing::work(chooser.library(), problem, setup)?;
    Ok(Ok(compiled.predict(&setup.scalars, &work)?))
}
