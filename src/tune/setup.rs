//! What is tuned, and which judge is used.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Args, JobArgs};
use crate::TUNE_WORKER;
use crate::args::source::{SourceArgs, named_target};
use crate::known_models::KnownModels;
use crate::output::Output;
use crate::usage::UsageError;
use engine::blueprint::{Blueprint, ModelOptions, PrefixCache, precision_for};
use engine::device::{self, Device, DeviceError};
use engine::graph::Graph;
use engine::graph::placement::EmbeddingPlace;
use kernel::choice::Chooser;
use kernel::object::cache::Cache;
use kernel::object::store::{Progress, Store};
use kernel::pipeline::Pipeline;
use kernel::step::StepKind;
use kernel::target::Target;
use kernel::target::compute_unit::Product;
use kernel::template::{Precision, Problem};
use kernel::tuning::TuningTables;
use kernel::tuning::edit::NewRow;
use kernel::tuning::table::ProvenanceKind;
use model::checkpoint::Checkpoint;
use model::checkpoint::encoding::Encoding;
use model::checkpoint::layout::Layout;
use model::hub;
use system::bounded_process::this_program;
use workbench::tune::alone::Alone;
use workbench::tune::device::Device as Measuring;
use workbench::tune::job::{Counts, Piece, TuningJob};
use workbench::tune::journal::Journal;
use workbench::tune::judge::Judge;
use workbench::tune::predicted::Predicted;
use workbench::tune::stale::{self, Stale};
use workbench::tune::tuner::{TuneEffort, Tuner};

/// What a last cache holds where no table says it, in bytes: as much as any has.
const CACHE_BYTES: usize = 256 << 20;

/// The forward pass is the same for any number of slots and any context.
const BLUEPRINT: (usize, usize) = (32, 1024);

/// The seed of random weights, as all commands have it.
const SEED: u64 = 1;

/// Everything but the judge.
pub(super) struct Setup {
    args: JobArgs,
    /// What chooses now; with `--generic` as if the arch had no rows.
    pub(crate) chooser: Chooser,
    /// The tables with all of their rows: those that a new table is laid over.
    tables: TuningTables,
    pub(crate) store: Store,
    /// What there is to tune.
    pub(crate) job: TuningJob,
    /// Which of its problems.
    which: BTreeSet<usize>,
    /// Those that are launched by themselves now; unknown where other types are named.
    alone: Option<Alone>,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) precision: Precision,
    /// The device's name and the device, if one measures.
    opened: Option<(String, Device)>,
}

pub(super) enum Judging<'a> {
    Device(Measuring<'a>),
    Model(Predicted<'a>),
}

impl<'a> Judging<'a> {
    pub(crate) fn as_judge(&mut self) -> &mut dyn Judge {
        match self {
            Self::Device(device) => device,
            Self::Model(model) => model,
        }
    }

    /// What is to be told once of how times are had.
    pub(crate) fn notice(&self) -> Option<String> {
        if let Self::Model(model) = self { model.notice() } else { None }
    }

    /// Leaves the device to others.
    pub(crate) fn rest(&mut self) {
        if let Self::Device(device) = self {
            device.rest();
        }
    }
}

impl Setup {
    /// Opens what the command line names; `all_known` as for [`JobArgs::with_known`].
    pub(crate) fn from_args(
        args: &JobArgs,
        checkpoint: Option<&Path>,
        all_known: bool,
        output: &Output,
    ) -> anyhow::Result<Self> {
        let is_file = checkpoint.is_some();
        let tables = args.source.tables()?;
        let (target, opened) = args.target(&tables, output)?;
        let (precision, checkpoint) = args.checkpoint(checkpoint, &target)?;
        let (job, graph) = args.job(&checkpoint, precision, &target, &tables)?;
        let chooser = args.chooser(&tables, target)?;
        let alone = args.dtype.is_empty().then(|| Alone::new(&graph, &chooser)).transpose()?;
        let (job, mut which) = args.narrow(args.with_known(job, all_known && !is_file, &chooser)?)?;
        // A run that no template does on this target is done op by op.
        which.retain(|&i| {
            let problem = &job.problems[i].problem;
            problem.ops.len() == 1 || chooser.ranking(problem, 1, StepKind::Decode).is_ok()
        });
        let store = Store::from_env()?.without_bundles();
        store.try_compiler(chooser.target())?;
        Ok(Self { args: args.clone(), chooser, tables, store, job, which, alone, checkpoint, precision, opened })
    }

    /// All rows that there are, also with `--generic`.
    pub(crate) fn tables(&self) -> &TuningTables {
        &self.tables
    }

    /// The tables with which whole steps must be no faster than with new rows: those that chose, but where the search
    /// was cut short all rows that there are. What is good beside generic rows alone may stand before better ones.
    pub(crate) fn held_against(&self, is_cut: bool) -> &TuningTables {
        if is_cut { &self.tables } else { self.chooser.tables() }
    }

    pub(crate) fn target(&self) -> &Target {
        self.chooser.target()
    }

    /// The problems that are tuned.
    pub(crate) fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.which.iter().map(|&i| &self.job.problems[i].problem)
    }

    /// The device in words, or its stand-in.
    pub(crate) fn device(&self) -> Option<&str> {
        self.opened.as_ref().map(|(name, _)| name.as_str())
    }

    /// Opens the device that measures, for whole steps.
    pub fn open(&self) -> anyhow::Result<device::OpenedDevice> {
        let (_, device) = self.opened.as_ref().expect("only what measures is opened");
        match (&self.args.arch, device) {
            (Some(arch), Device::Auto) => Ok(device::of_arch(arch, self.chooser.tables())?),
            _ => Ok(device.open(self.chooser.tables(), 0)?),
        }
    }

    pub(crate) fn args(&self) -> &JobArgs {
        &self.args
    }

    /// How times are come by.
    pub(crate) fn kind(&self) -> ProvenanceKind {
        if self.opened.is_some() { ProvenanceKind::Measured } else { ProvenanceKind::Predicted }
    }

    /// Whether all problems are tuned, as the model has them.
    pub(crate) fn is_whole(&self) -> bool {
        let JobArgs { op, variant, dims, flag, dtype, params, .. } = &self.args;
        op.is_empty()
            && variant.is_empty()
            && dims.is_empty()
            && flag.is_empty()
            && dtype.is_empty()
            && params.is_empty()
    }

    /// Whether whole steps are measured with what was found.
    pub(crate) fn decides_by_steps(&self) -> bool {
        let JobArgs { dims, flag, dtype, .. } = &self.args;
        let is_of_the_model = dims.is_empty() && flag.is_empty() && dtype.is_empty();
        self.is_whole() || (is_of_the_model && self.target().is_real_gpu())
    }

    /// The numbers of rows that are tuned.
    pub(crate) fn counts(&self) -> Counts {
        let JobArgs { tokens, rows, .. } = &self.args;
        let mut counts = Counts::for_target(self.target());
        if !tokens.is_empty() {
            counts = Counts::only(tokens);
        }
        match rows.map(super::Rows::step) {
            Some(StepKind::Decode) => counts.prompt.clear(),
            Some(StepKind::Mixed) => counts.decode.clear(),
            None => {}
        }
        counts
    }

    /// What is tuned, in order, and which of it is searched besides what usually is.
    pub(crate) fn pieces(&self, args: &Args) -> (Vec<Piece>, BTreeSet<Piece>) {
        if !args.stale {
            return (self.all_pieces(), BTreeSet::new());
        }
        let stale: Vec<Stale> =
            self.stale().into_iter().filter(|one| self.which.contains(&one.piece.problem)).collect();
        let pieces: BTreeSet<Piece> = stale.iter().flat_map(|one| one.pieces(&self.job, &self.chooser)).collect();
        (pieces.into_iter().collect(), stale.into_iter().map(|one| one.piece).collect())
    }

    /// Every piece that the command line asks for, what takes the largest share of a step first.
    pub(crate) fn all_pieces(&self) -> Vec<Piece> {
        self.job.pieces(&self.which, &self.counts(), self.chooser.library(), self.product())
    }

    /// Whether no step launches such an op at so many rows: it is done there as a part of longer runs alone. It is then
    /// held beside these as it is, and not searched, unless it is named.
    pub(crate) fn is_only_fused(&self, piece: &Piece) -> bool {
        self.alone.as_ref().is_some_and(|alone| alone.is_only_fused(&self.job, piece))
    }

    /// Whether no step asks for a new row.
    pub(crate) fn is_asked_for_by_none(&self, row: &NewRow) -> bool {
        self.alone.as_ref().is_some_and(|alone| alone.is_asked_for_by_none(row))
    }

    fn product(&self) -> Option<&Product> {
        self.chooser.tables().facts(&self.target().arch).and_then(|facts| facts.product.as_ref())
    }

    /// The rows whose templates render to something else now.
    pub(crate) fn stale(&self) -> Vec<Stale> {
        stale::rows(&self.job, &self.chooser)
    }

    pub(crate) fn effort(&self) -> TuneEffort {
        let JobArgs { most, variant, params, op, .. } = &self.args;
        // A model's doubts are larger than what more parameters find.
        let (usual, most_times) = match (self.kind(), op.is_empty()) {
            (ProvenanceKind::Predicted, _) => (8, 3.0),
            (_, true) => (40, 2.4),
            (_, false) => (48, 1.0),
        };
        let is_usual = most.is_none() && op.is_empty();
        let shares = match is_usual {
            true => self.job.shares(&self.which, &self.counts(), self.chooser.library(), self.product()),
            false => BTreeMap::new(),
        };
        TuneEffort {
            most: most.unwrap_or(usual),
            shares,
            variants: variant.clone(),
            params: params.clone(),
            most_times,
        }
    }

    /// Who judges, until a time.
    pub(crate) fn judge(&self, until: Option<Instant>) -> anyhow::Result<Judging<'_>> {
        let Some((name, _)) = &self.opened else {
            let facts = self.chooser.tables().facts(&self.target().arch);
            let judge = Predicted::new(&self.job, self.chooser.library(), self.target(), &self.store, facts)?;
            return Ok(Judging::Model(judge.until(until)));
        };
        let words = std::iter::once(TUNE_WORKER.into()).chain(std::env::args_os().skip(1)).collect();
        let deadline = Duration::from_secs(self.args.deadline.into());
        let measuring = Measuring::new(this_program(), words, deadline, name.clone(), self.target(), &self.store);
        Ok(Judging::Device(measuring.until(until)))
    }

    /// What asks a judge about the job's pieces.
    pub(crate) fn tuner<'a>(
        &'a self,
        effort: &'a TuneEffort,
        judge: &'a mut Judging<'_>,
        journal: &'a mut Journal,
        (progress, until): (&'a dyn Progress, Option<Instant>),
    ) -> Tuner<'a> {
        let Self { chooser, store, job, .. } = self;
        Tuner {
            chooser,
            store,
            job,
            effort,
            judge: judge.as_judge(),
            journal,
            progress,
            best_us: BTreeMap::new(),
            until,
        }
    }

    /// The journal of this target, in the cache's folder unless another one is named.
    pub(crate) fn journal(&self, named: Option<&Path>) -> anyhow::Result<Journal> {
        let path = match named {
            Some(path) => path.to_owned(),
            None => {
                let name = self.target().id().replace([':', '/'], "_");
                Cache::default_root()?.join("tune").join(format!("{name}.jsonl"))
            }
        };
        Ok(Journal::open(&path)?)
    }
}

/// Runs kernels for a parent, of the same job.
pub(super) fn work(args: &JobArgs, checkpoint: Option<&Path>, all_known: bool) -> anyhow::Result<()> {
    let is_file = checkpoint.is_some();
    let tables = args.source.tables()?;
    let (target, driver) = args.open(&tables)?;
    let (precision, checkpoint) = args.checkpoint(checkpoint, &target)?;
    let (job, _) = args.job(&checkpoint, precision, &target, &tables)?;
    let chooser = args.chooser(&tables, target.clone())?;
    let (job, _) = args.narrow(args.with_known(job, all_known && !is_file, &chooser)?)?;
    let pipeline = Pipeline::new(args.source.library()?, tables, target, Store::from_env()?.without_bundles(), driver)?;
    Ok(workbench::tune::worker::run(&job, &pipeline)?)
}

impl JobArgs {
    fn open(&self, tables: &TuningTables) -> anyhow::Result<device::OpenedDevice> {
        match (&self.device, &self.arch) {
            (Some(device), _) => Ok(device.open(tables, 0)?),
            (None, Some(arch)) => Ok(device::of_arch(arch, tables)?),
            (None, None) => Ok(Device::Auto.open(tables, 0)?),
        }
    }

    /// What is compiled for, and the device that measures, if there is one.
    fn target(&self, tables: &TuningTables, output: &Output) -> anyhow::Result<(Target, Option<(String, Device)>)> {
        let opened = match self.open(tables) {
            Err(error) => match (error.downcast_ref(), &self.arch) {
                (Some(DeviceError::NoneOfArch { found, .. }), Some(arch)) => {
                    let target = named_target(arch, tables)?;
                    output.note(&format!(
                        "no {arch} is here (found {found}): times are predicted from what hipRTC or NVRTC make of the \
                         kernels, nothing is measured"
                    ));
                    return Ok((target, None));
                }
                _ => return Err(error),
            },
            Ok(opened) => opened,
        };
        let (target, driver) = opened;
        if target.is_simulated {
            let what = "the simulator says nothing of speed: `--device` names a GPU, or `cpu`";
            return Err(UsageError(what.into()).into());
        }
        Ok((target, Some((driver.describe(), self.device.clone().unwrap_or(Device::Auto)))))
    }

    /// The model, and how exactly its sums are done.
    fn checkpoint(&self, path: Option<&Path>, target: &Target) -> anyhow::Result<(Precision, Checkpoint)> {
        let checkpoint = match path {
            Some(path) => Checkpoint::open(&hub::locate(path)?, Layout::Auto)?,
            None => {
                let encoding = match self.precision {
                    Some(Precision::F32) => Encoding::F32,
                    _ => Encoding::default(),
                };
                let config = self.model.unwrap_or_default().config(self.layers.map(|layers| layers as usize));
                Checkpoint::random(config, encoding, SEED)?
            }
        };
        Ok(precision_for(&self.quantize.applied(checkpoint), self.precision, self.stored.on(target)))
    }

    /// All problems of the model, and its forward pass.
    fn job(
        &self,
        checkpoint: &Checkpoint,
        precision: Precision,
        target: &Target,
        tables: &TuningTables,
    ) -> anyhow::Result<(TuningJob, Graph)> {
        let (n_slots, capacity_tokens) = BLUEPRINT;
        let options = ModelOptions {
            drafts: None,
            embedding: EmbeddingPlace::Device,
            precision,
            kv_dtype: if precision == Precision::Bf16 { format::Dtype::Bf16 } else { format::Dtype::F32 },
            n_slots,
            capacity_tokens: capacity_tokens.min(checkpoint.config.max_seq_len),
            max_rows: 512,
            max_logit_rows: n_slots,
            odd_window: None,
            kv_budget_bytes: usize::MAX,
            max_prompt_rows: None,
            prefix_cache: PrefixCache::OFF,
        };
        let library = self.source.library()?;
        let graph = Blueprint::new(checkpoint, &options, target, &library)?.graph;
        let fusions = library.fusions(target);
        let product = tables.facts(&target.arch).and_then(|facts| facts.product.as_ref());
        let cache_bytes = product.and_then(|product| product.cache_bytes).unwrap_or(CACHE_BYTES);
        Ok((TuningJob::from_graph(&graph, &fusions, self.context, cache_bytes), graph))
    }

    fn chooser(&self, tables: &TuningTables, target: Target) -> anyhow::Result<Chooser> {
        let known = if self.generic { tables.generic(&target) } else { tables.clone() };
        Ok(Chooser::new(self.source.library()?, known, target)?)
    }

    /// The job; with `all_known` also the problems of all rows and of all known models, unless a model or type is
    /// named.
    fn with_known(&self, mut job: TuningJob, all_known: bool, chooser: &Chooser) -> anyhow::Result<TuningJob> {
        if all_known && self.model.is_none() && self.dtype.is_empty() {
            job.join(KnownModels::new(chooser.library(), chooser.target())?.job());
            stale::add_measured(&mut job, chooser);
        }
        Ok(job)
    }

    /// The job with the element types that were asked for, and which of its problems are tuned.
    fn narrow(&self, mut job: TuningJob) -> anyhow::Result<(TuningJob, BTreeSet<usize>)> {
        let ops = |problem: &Problem| problem.ops.join("+");
        let known: BTreeSet<String> = job.problems.iter().map(|one| ops(&one.problem)).collect();
        if let Some(unknown) = self.op.iter().find(|op| !known.contains(*op)) {
            let known = known.into_iter().collect::<Vec<_>>().join(", ");
            return Err(
                UsageError(format!("--op {unknown}: not in the forward pass, expected some of: {known}")).into()
            );
        }
        let mut which: BTreeSet<usize> = (0..job.problems.len())
            .filter(|&i| match self.op.is_empty() {
                true => !job.problems[i].rows.are_asked_for(),
                false => self.op.contains(&ops(&job.problems[i].problem)),
            })
            .collect();
        for &i in &which {
            for (name, dtype) in &self.dtype {
                let problem = &mut job.problems[i].problem;
                match problem.dtypes.get_mut(name) {
                    Some(own) => *own = *dtype,
                    None if self.op.is_empty() => {}
                    None => return Err(unknown("dtype", name, problem.dtypes.keys()).into()),
                }
            }
        }
        if self.dims.is_empty() && self.flag.is_empty() {
            return Ok((job, which));
        }
        // Of each op the problems that have what is asked for; where none has, the first one is made to have it.
        let all_ops: BTreeSet<String> = which.iter().map(|&i| ops(&job.problems[i].problem)).collect();
        for op in all_ops {
            let of_op: Vec<usize> = which.iter().copied().filter(|&i| ops(&job.problems[i].problem) == op).collect();
            let has = |&i: &usize| {
                let problem = &job.problems[i].problem;
                self.dims.iter().all(|(name, value)| problem.dims.get(name) == Some(value))
                    && self.flag.iter().all(|(name, value)| problem.flags.get(name) == Some(value))
            };
            let mut kept: Vec<usize> = of_op.iter().copied().filter(has).collect();
            if kept.is_empty() && !self.op.is_empty() {
                let problem = &mut job.problems[of_op[0]].problem;
                for (name, value) in &self.dims {
                    let known: Vec<String> = problem.dims.keys().cloned().collect();
                    *problem.dims.get_mut(name).ok_or_else(|| unknown("dims", name, known.iter()))? = *value;
                }
                for (name, value) in &self.flag {
                    let known: Vec<String> = problem.flags.keys().cloned().collect();
                    *problem.flags.get_mut(name).ok_or_else(|| unknown("flag", name, known.iter()))? = *value;
                }
                kept = vec![of_op[0]];
            }
            which.retain(|i| !of_op.contains(i) || kept.contains(i));
        }
        if which.is_empty() {
            return Err(UsageError("no problem of the forward pass has these dims and flags".into()).into());
        }
        Ok((job, which))
    }
}

fn unknown<'a>(flag: &str, name: &str, known: impl Iterator<Item = &'a String>) -> UsageError {
    let known = known.cloned().collect::<Vec<_>>().join(", ");
    UsageError(format!("--{flag} {name}: expected one of: {known}"))
}

/// The folder that a target's rows are written to.
pub(super) fn folder(source: &SourceArgs) -> anyhow::Result<PathBuf> {
    match &source.tuning {
        Some(folder) => Ok(folder.clone()),
        None => TuningTables::user_folder()
            .ok_or_else(|| anyhow::anyhow!("there is no config folder: name one with --tuning")),
    }
}
