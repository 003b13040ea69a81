//! `run -m getp`: answers many prompts with the highest throughput of the machine.
//!
//! [`batch`] does the work; this module applies the flags. Finished answers are kept beside the output, in
//! `<output>.records`, until all are there; the same command continues from them, whatever ended it before.

mod limit;
pub(crate) mod merge;
mod progress;
mod replicas;
mod settings;
pub(crate) mod signals;
mod summary;

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;

use super::verify::Expected;
use super::{Args, Mode};
use crate::args::Room;
use crate::output::Output;
use crate::output_file::OutputFile;
use crate::replicas::here;
use crate::usage::UsageError;
use batch::BatchError;
use batch::answers::{Answers, OutFormat};
use batch::plan::{Batch, PromptOrder, Survey, Usual};
use batch::records::{Header, Outcome, Records};
use batch::replica::{BatchReplicaReady, Did, Replicas};
use batch::shard::Shard;
use batch::source::{PromptFormat, Source};
use batch::work::{BatchRun, Statistics};
use engine::{Engine, Sizes};
use model::checkpoint::Checkpoint;
use model::tokenizer::Tokenizer;
use progress::ProgressLine;
use summary::Summary;
use system::launcher::{self, Rank};

/// Flags of getp alone.
#[derive(clap::Args, Debug)]
pub(crate) struct GetpArgs {
    /// Format of the prompts (getp) [default: by the file name: .jsonl and .ndjson are jsonl or batch; .lines is lines;
    /// others, and stdin, are counted]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) in_format: Option<PromptFormat>,

    /// Format of the answers (getp) [default: ids; jsonl and batch like their prompts]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) out_format: Option<OutFormat>,

    /// Order in which prompts run (getp); answers are always in the order of the prompts [default: given]
    #[arg(long, value_enum)]
    pub(crate) order: Option<PromptOrder>,

    /// File that keeps finished answers until the run is complete (getp) [default: FILE.records beside `-o`]
    #[arg(long, value_name = "FILE")]
    pub(crate) records: Option<PathBuf>,

    /// Discard the answers of an interrupted run, and start over (getp)
    #[arg(long)]
    pub(crate) restart: bool,

    /// Only every N-th prompt, from the I-th on, counted from 0 (getp): the share of one of N machines. `gptoss-jit
    /// merge` writes all answers [default: from srun, mpirun or torchrun; else all prompts]
    #[arg(long, value_name = "I/N")]
    pub(crate) shard: Option<Shard>,

    /// Run N copies of the model, one per GPU from `--device` on (getp). Each gets a prompt when one of its slots is
    /// free; `-b` is per copy [default: 1]
    #[arg(short = 'g', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) ranks: Option<u32>,

    /// This process is a copy of `-g`: LONGEST/MEAN/PROMPTS
    #[arg(long, hide = true)]
    pub(crate) replica: Option<Extent>,

    /// Write statistics of the run into a JSON file (getp)
    #[arg(long, value_name = "FILE")]
    pub(crate) metrics: Option<PathBuf>,
}

/// Sequences at a time that getp runs on processors, as in the seeds.
const BATCH: usize = 32;

/// More at a time make no GPU faster that was measured.
const MOST_SLOTS: usize = 1024;

/// Runs the prompts, or those of a shard.
pub(super) fn run(mut args: Args, output: &Output) -> anyhow::Result<()> {
    if let Some(extent) = args.getp.replica {
        return replicas::work(&args, extent, output);
    }
    let job = GetpJob::open(&args, output)?;
    let shard = placed(&mut args, &job.checkpoint, output)?;
    let args = &args;
    let expected = args.verify.as_deref().map(Expected::read).transpose()?;
    // A shard's answers are not all: `merge` writes them.
    let path = args.output.as_deref().filter(|_| shard.is_none());
    let file = path.map(|path| OutputFile::create(path, job.format.contents())).transpose()?;
    let metrics = args.getp.metrics.as_deref().map(|path| OutputFile::create(path, "metrics")).transpose()?;

    let header = settings::header(args, &job.checkpoint);
    let records = match (records_path(args, output), shard) {
        (Some(path), None) => Some(path),
        (Some(path), Some(shard)) => Some(shard.records(&path)),
        (None, None) => None,
        (None, Some(_)) => return Err(shard_without_place()),
    };
    let mut records = match records {
        Some(path) => Records::open(&path, header, job.source.len(), args.getp.restart)?,
        None => Records::in_memory(header, job.source.len()),
    };
    let start = Instant::now();
    let GetpJob { checkpoint, tokenizer, source, format } = job;
    let batch = batch(args, &checkpoint, tokenizer, source, records.header(), shard)?;
    let n_resumed = records.n_done();
    if n_resumed > 0 {
        output.note(&format!("note: {n_resumed} of {} answers were finished before", batch.len()));
    }
    let keeps_errors = format == OutFormat::Batch;
    let survey = batch.survey(&records, args.getp.order.unwrap_or_default(), keeps_errors)?;
    let survey_s = start.elapsed().as_secs_f64();
    if let Some((n, first)) = survey.full {
        let (longest, first) = (batch.usual.reach, first + 1);
        output.note(&format!(
            "note: {n} prompts have {longest} tokens or more, the first is prompt {first}: no room for new ones"
        ));
    }

    let mut runner = Runner::new(args, &checkpoint, &survey, output)?;
    let mut work = BatchRun { batch: &batch, records: &mut records, keeps_errors };
    let (statistics, seconds, signal) = answer(&mut work, &mut runner, &survey, output)?;
    let seconds = seconds + survey_s;
    if let Some(signal) = signal {
        drop((file, metrics));
        return Err(interrupted(&batch, &records, signal, output));
    }
    let model = args.model.name();
    let needs_ids = output.is_json() || expected.is_some();
    let ids = if needs_ids { Some(all_ids(&batch, &records)?) } else { None };
    if shard.is_none() {
        let records = std::slice::from_ref(&records);
        write(file, &Answers { batch: &batch, records, format, model: &model }, output)?;
    }
    let limit = match &runner {
        Runner::Here(engine) if metrics.is_some() => limit::tok_per_s(engine, &checkpoint, &statistics, output),
        _ => None,
    };
    let summary = Summary {
        args,
        limit,
        replicas: &runner.ready(),
        did: runner.did(&statistics),
        statistics: &statistics,
        n_prompts: batch.len(),
        n_resumed,
        seconds,
        survey_s,
    };
    summary.tell(ids.as_deref(), output)?;
    if let Some(metrics) = metrics {
        let text = format!("{:#}\n", summary.metrics());
        metrics.fill(|file| file.write_all(text.as_bytes()))?;
    }
    match shard {
        None => records.remove()?,
        Some(shard) => output.note(&format!(
            "shard {shard} is done{}; `gptoss-jit merge` with the flags of this run writes the answers of all shards",
            records.path().map_or_else(String::new, |path| format!(", its answers are in `{}`", path.display()))
        )),
    }
    if let Runner::Here(engine) = &mut runner {
        super::show_profile(engine, output)?;
    }
    match (expected, ids) {
        (Some(expected), Some(ids)) => expected.compare(&ids, output),
        _ => Ok(()),
    }
}

/// What answers prompts.
enum Runner {
    /// There is nothing to answer.
    Nothing,
    Here(Box<Engine>),
    There(Replicas),
}

impl Runner {
    fn new(args: &Args, checkpoint: &Checkpoint, survey: &Survey, output: &Output) -> anyhow::Result<Self> {
        let extent = Extent { longest: survey.longest, mean: survey.mean(), n_prompts: survey.order.len() };
        Ok(match args.getp.ranks.unwrap_or(1) as usize {
            _ if survey.order.is_empty() => Self::Nothing,
            1 => Self::Here(Box::new(args.load_sized(checkpoint, |room| sizes(args, room, extent), output)?)),
            _ if args.profile != 0 => {
                return Err(UsageError("`-f` times one device: not with `-g`".into()).into());
            }
            n => Self::There(replicas::start(args, checkpoint, extent, n)?),
        })
    }

    fn did(&self, statistics: &Statistics) -> Did {
        match self {
            Self::Nothing => Did::default(),
            Self::Here(engine) => Did::by(engine, statistics.joules),
            Self::There(replicas) => replicas.did(),
        }
    }

    /// What is to be known of each that answers.
    fn ready(&self) -> Vec<BatchReplicaReady> {
        match self {
            Self::Nothing => Vec::new(),
            Self::Here(engine) => vec![replicas::ready(engine)],
            Self::There(replicas) => replicas.ready().cloned().collect(),
        }
    }
}

struct GetpJob {
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    source: Source,
    format: OutFormat,
}

impl GetpJob {
    fn open(args: &Args, output: &Output) -> anyhow::Result<Self> {
        let Some(input) = &args.input else {
            return Err(UsageError("getp needs a file of prompts: `-i FILE`".into()).into());
        };
        let first = args.lines.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
        let source = Source::open(input, args.getp.in_format, first)?;
        source.findings().iter().for_each(|finding| output.note(&format!("note: {finding}")));
        let format = args.getp.out_format.unwrap_or(match source.format() {
            PromptFormat::Counted | PromptFormat::Lines => OutFormat::Ids,
            PromptFormat::Jsonl => OutFormat::Jsonl,
            PromptFormat::Batch => OutFormat::Batch,
        });
        let checkpoint = args.model.open(output)?;
        let tokenizer = args.model.tokenizer(&args.tokenizer, &checkpoint)?;
        Ok(Self { checkpoint, tokenizer, source, format })
    }
}

/// The prompts, with what a run was begun with.
fn batch(
    args: &Args,
    checkpoint: &Checkpoint,
    tokenizer: Tokenizer,
    source: Source,
    header: &Header,
    shard: Option<Shard>,
) -> anyhow::Result<Batch> {
    let stop = args.stop_ids(checkpoint, &tokenizer)?;
    let prompter = args.prompter(checkpoint, tokenizer, &header.current_date, Mode::Getp)?;
    let usual = Usual {
        reach: args.reach(&checkpoint.config),
        context: checkpoint.config.max_seq_len,
        max_new_tokens: args.max_new_tokens,
        sampling: args.sampling_or(super::AS_SEEDS, header.seed),
        stop,
        vocab_size: checkpoint.config.vocab_size,
    };
    Ok(Batch { source, prompter, usual, shard })
}

/// The shard that is run here: as a flag says, or a launcher, whose ranks on a host take its GPUs in turn.
fn placed(args: &mut Args, checkpoint: &Checkpoint, output: &Output) -> anyhow::Result<Option<Shard>> {
    let shard = match args.getp.shard {
        Some(shard) => shard,
        None => {
            let Some(rank) = launcher::rank()? else { return Ok(None) };
            let Rank { rank, world, local_rank, launcher } = rank;
            let shard = Shard { index: rank, of: world };
            let devices = here(&args.device, checkpoint)?;
            let n_each = args.getp.ranks.unwrap_or(1) as usize * args.device.tp as usize;
            args.device.device = devices[local_rank * n_each % devices.len()].clone();
            output.note(&format!(
                "note: {launcher} says rank {rank} of {world}: shard {shard}, on {}",
                args.device.device
            ));
            shard
        }
    };
    if shard.of == 1 {
        return Ok(None);
    }
    if args.verify.is_some() {
        return Err(UsageError("a shard does not have all answers: give `-v` to `merge`".into()).into());
    }
    Ok(Some(shard))
}

fn shard_without_place() -> anyhow::Error {
    let what = "a shard keeps its answers until all shards are done: `-o FILE` or `--records FILE` says where";
    UsageError(what.into()).into()
}

/// What decides how much memory prompts take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Positions of the longest: prompt and answer.
    longest: usize,
    /// Positions of one, one with another.
    mean: usize,
    n_prompts: usize,
}

/// How many at a time, and how long: on a GPU as many as its memory holds, one with another.
fn sizes(args: &Args, room: &Room<'_>, extent: Extent) -> Sizes {
    // Nothing is longer than its prompt and what it may generate: short files need little cache.
    let longest = extent.longest.max(1);
    let n_prompts = extent.n_prompts.max(1);
    let n_slots = match args.batch {
        Some(n) => n as usize,
        None if room.is_gpu() => {
            // Beside keys and values there are the logits of every slot: a quarter of what is free is theirs.
            let logits = room.spare_bytes().map_or(usize::MAX, |spare| spare / 4 / (4 * room.config().vocab_size));
            let most = MOST_SLOTS.min(n_prompts).min(logits);
            Room::largest(most, |n| room.holds(Sizes::for_tokens(n, extent.mean, n)))
        }
        None => BATCH,
    };
    let n_slots = n_slots.min(n_prompts);
    let sizes = |n_slots: usize| Sizes::for_tokens(n_slots, longest, n_slots);
    // Rings of slots that nobody asked for are no reason to say that the cache is too small.
    let fits = |n_slots: usize| room.has_pool_for_one(sizes(n_slots));
    sizes(if args.batch.is_some() { n_slots } else { Room::largest(n_slots, fits) })
}

/// Where answers are kept until all are there; nowhere if what they are for is no file, or nothing can be made beside
/// it.
fn records_path(args: &Args, output: &Output) -> Option<PathBuf> {
    if let Some(path) = &args.getp.records {
        return Some(path.clone());
    }
    let path = args.output.as_deref()?;
    // What a link points to is replaced, and keeps its records beside it.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if path.metadata().is_ok_and(|found| !found.is_file()) {
        return None;
    }
    let mut name = path.clone().into_os_string();
    name.push(".records");
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match tempfile::tempfile_in(folder) {
        Ok(_) => Some(name.into()),
        Err(error) => {
            let where_ = folder.display();
            let what = "a run that is ended loses its answers; `--records` names another place for them";
            output.warning(&format!("answers cannot be kept in `{where_}` ({error}): {what}"));
            None
        }
    }
}

/// Runs all prompts until they are done or a signal comes, which is then reported. Also returns the seconds since the
/// model was loaded.
fn answer(
    work: &mut BatchRun<'_>,
    runner: &mut Runner,
    survey: &Survey,
    output: &Output,
) -> anyhow::Result<(Statistics, f64, Option<i32>)> {
    let signals = signals::Signals::watch().context("could not watch for signals")?;
    if let Runner::There(replicas) = runner
        && !replicas.wait_until_ready(|| signals.came().is_none())?
    {
        return Ok((Statistics::default(), 0.0, signals.came()));
    }
    let start = Instant::now();
    let mut line = ProgressLine::new(work.records.n_done(), work.batch.len(), output);
    let go_on = |progress| {
        line.show(progress);
        signals.came().is_none()
    };
    let statistics = match runner {
        Runner::Nothing => Ok(Statistics::default()),
        Runner::Here(engine) => work.run(engine, &survey.order, go_on),
        Runner::There(replicas) => work.run_on(replicas, &survey.order, go_on),
    };
    line.end();
    // A signal that went to all ends replicas, too.
    if let (Err(BatchError::Replica { .. }), Some(signal)) = (&statistics, signals.came()) {
        return Ok((Statistics::default(), 0.0, Some(signal)));
    }
    let statistics = statistics.with_context(|| kept(work.batch, work.records))?;
    let signal = signals.came().filter(|_| statistics.is_interrupted);
    Ok((statistics, start.elapsed().as_secs_f64(), signal))
}

/// What a person wants to know when a run ends early.
fn kept(batch: &Batch, records: &Records) -> String {
    let (n_done, n) = (records.n_done(), batch.len());
    match records.path() {
        Some(path) => {
            format!("{n_done} of {n} answers are kept in `{}`: the same command goes on from them", path.display())
        }
        None if n_done == 0 => format!("none of {n} answers was finished"),
        None => {
            format!(
                "{n_done} of {n} answers were finished, and none is kept: `-o` or `--records` names a place for them"
            )
        }
    }
}

/// Ends as the signal would have ended the program. If the system does not let it, that is the error.
fn interrupted(batch: &Batch, records: &Records, signal: i32, output: &Output) -> anyhow::Error {
    output.note(&kept(batch, records));
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    anyhow::anyhow!("signal {signal} came, and did not end the program")
}

fn write(file: Option<OutputFile>, answers: &Answers<'_>, output: &Output) -> anyhow::Result<()> {
    match file {
        Some(file) => file.fill(|file| {
            let mut buffered = BufWriter::new(file);
            answers.write(&mut buffered)?;
            buffered.flush()
        }),
        None if output.is_json() => Ok(()),
        None => {
            let mut text = Vec::new();
            answers.write(&mut text)?;
            Ok(output.bytes(&text)?)
        }
    }
}

fn all_ids(batch: &Batch, records: &Records) -> anyhow::Result<Vec<Vec<u32>>> {
    let ids = |i| -> anyhow::Result<Vec<u32>> {
        Ok(match records.read(i)?.map(|record| record.outcome) {
            Some(Outcome::Answered { ids, .. }) => ids,
            _ => Vec::new(),
        })
    };
    (0..records.len()).filter(|&i| batch.has(i)).map(ids).collect()
}
