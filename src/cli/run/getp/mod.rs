//! `run -m getp`: prompts in, answers out, as many tokens a second as the machine gives.
//!
//! [`crate::batch`] does the work; here is what the flags say of it. Finished answers are kept beside the output, in
//! `<output>.records`, until all are there; the same command goes on from them, whatever ended it before.

mod progress;
mod settings;
mod signals;
mod summary;

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;

use super::verify::Expected;
use super::{Args, ChatFormat};
use crate::batch::answers::{Answers, OutFormat};
use crate::batch::plan::{Batch, Order, Survey, Usual};
use crate::batch::prompter::Prompter;
use crate::batch::records::{Outcome, Records};
use crate::batch::source::{Format, Source};
use crate::batch::work::{Statistics, Work};
use crate::cli::model::Room;
use crate::cli::output::Output;
use crate::cli::output_file::OutputFile;
use crate::cli::usage::UsageError;
use crate::engine::{Engine, Sizes};
use progress::ProgressLine;
use summary::Summary;

/// Flags of getp alone.
#[derive(clap::Args, Debug)]
pub(in crate::cli) struct GetpArgs {
    /// How prompts are written (getp) [default: as the file's name says: .jsonl and .ndjson hold objects, OpenAI's
    /// batch lines or our own; .lines one prompt a line; all others, and stdin, are counted]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub in_format: Option<Format>,

    /// How answers are written (getp) [default: ids; jsonl and batch for prompts that are]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub out_format: Option<OutFormat>,

    /// In which order prompts are run (getp); answers are in the order of the prompts in any case [default: given]
    #[arg(long, value_enum)]
    pub order: Option<Order>,

    /// Where finished answers are kept until all are there (getp) [default: beside `-o`, as FILE.records]
    #[arg(long, value_name = "FILE")]
    pub records: Option<PathBuf>,

    /// Forget the answers of a run that was ended before, and begin anew (getp)
    #[arg(long)]
    pub restart: bool,

    /// What the run did, in figures, as a JSON file (getp)
    #[arg(long, value_name = "FILE")]
    pub metrics: Option<PathBuf>,
}

/// Sequences at a time that getp runs on processors, as in the seeds.
const BATCH: usize = 32;

/// More at a time make no GPU faster that was measured.
const MOST_SLOTS: usize = 1024;

/// Runs the prompts.
pub(super) fn run(args: &Args, output: &Output) -> anyhow::Result<()> {
    let Some(input) = &args.input else {
        return Err(UsageError("getp needs a file of prompts: `-i FILE`".into()).into());
    };
    let first = args.lines.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
    let source = Source::open(input, args.getp.in_format, first)?;
    source.findings().iter().for_each(|finding| output.note(&format!("note: {finding}")));
    let format = args.getp.out_format.unwrap_or(match source.format() {
        Format::Counted | Format::Lines => OutFormat::Ids,
        Format::Jsonl => OutFormat::Jsonl,
        Format::Batch => OutFormat::Batch,
    });
    let expected = args.verify.as_deref().map(Expected::read).transpose()?;
    let checkpoint = args.model.open(output)?;
    let tokenizer = args.model.tokenizer(&args.tokenizer, &checkpoint)?;
    let file = args.output.as_deref().map(|path| OutputFile::create(path, format.contents())).transpose()?;
    let metrics = args.getp.metrics.as_deref().map(|path| OutputFile::create(path, "metrics")).transpose()?;

    let header = settings::header(args, &checkpoint);
    let mut records = match records_path(args, output) {
        Some(path) => Records::open(&path, header, source.len(), args.getp.restart)?,
        None => Records::in_memory(header, source.len()),
    };
    let n_resumed = records.n_done();
    if n_resumed > 0 {
        output.note(&format!("note: {n_resumed} of {} answers are there from before", source.len()));
    }
    let start = Instant::now();
    let style = args.chat_style(&checkpoint, &records.header().current_date, ChatFormat::Harmony)?;
    let usual = Usual {
        reach: args.reach(&checkpoint.config),
        context: checkpoint.config.max_seq_len,
        max_new_tokens: args.max_new_tokens,
        sampling: args.sampling_or(super::AS_SEEDS, records.header().seed),
        stop: args.stop_ids(&tokenizer)?,
        vocab_size: checkpoint.config.vocab_size,
    };
    let batch = Batch { source, prompter: Prompter::new(tokenizer, style), usual };
    let keeps_errors = format == OutFormat::Batch;
    let survey = batch.survey(&records, args.getp.order.unwrap_or_default(), keeps_errors)?;
    let survey_s = start.elapsed().as_secs_f64();
    if let Some((n, first)) = survey.full {
        let (longest, first) = (batch.usual.reach, first + 1);
        output.note(&format!(
            "note: {n} prompts have {longest} tokens or more, the first is prompt {first}: no room for new ones"
        ));
    }

    let mut engine = args.load_sized(&checkpoint, |room| sizes(args, room, &survey), output)?;
    let start = Instant::now();
    let mut work = Work { batch: &batch, records: &mut records, keeps_errors };
    let (statistics, signal) = answer(&mut work, &mut engine, &survey, output)?;
    let seconds = start.elapsed().as_secs_f64() + survey_s;
    if let Some(signal) = signal {
        drop((file, metrics));
        return Err(interrupted(&records, signal, output));
    }
    let answers = Answers { batch: &batch, records: &records, format, model: &args.model.name() };
    write(file, &answers, output)?;
    let needs_ids = output.is_json() || expected.is_some();
    let ids = if needs_ids { Some(all_ids(&records)?) } else { None };
    let summary = Summary {
        args,
        engine: &engine,
        statistics: &statistics,
        n_prompts: records.len(),
        n_resumed,
        seconds,
        survey_s,
    };
    summary.tell(ids.as_deref(), output)?;
    if let Some(metrics) = metrics {
        let text = format!("{:#}\n", summary.metrics());
        metrics.fill(|file| file.write_all(text.as_bytes()))?;
    }
    records.remove()?;
    super::show_profile(&mut engine, output)?;
    match (expected, ids) {
        (Some(expected), Some(ids)) => expected.compare(&ids, output),
        _ => Ok(()),
    }
}

impl OutFormat {
    /// What a file of them holds, for messages.
    fn contents(self) -> &'static str {
        if self == Self::Ids { "ids" } else { "answers" }
    }
}

/// How many at a time, and how long: on a GPU as many as its memory holds, one with another.
fn sizes(args: &Args, room: &Room<'_>, survey: &Survey) -> Sizes {
    // Nothing is longer than its prompt and what it may generate: short files need little cache.
    let longest = survey.longest.max(1);
    let n_prompts = survey.order.len().max(1);
    let n_slots = match args.batch {
        Some(n) => n as usize,
        None if room.is_gpu() => {
            // Beside keys and values there are the logits of every slot: a quarter of what is free is theirs.
            let logits = room.spare_bytes().map_or(usize::MAX, |spare| spare / 4 / (4 * room.config().vocab_size));
            let most = MOST_SLOTS.min(n_prompts).min(logits);
            Room::largest(most, |n| room.holds(Sizes::for_tokens(n, survey.mean(), n)))
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

/// Runs what is to be run, until all is done or a signal comes, which is told then.
fn answer(
    work: &mut Work<'_>,
    engine: &mut Engine,
    survey: &Survey,
    output: &Output,
) -> anyhow::Result<(Statistics, Option<i32>)> {
    let signals = signals::Signals::watch().context("could not watch for signals")?;
    let mut line = ProgressLine::new(work.records.n_done(), work.records.len(), output);
    let statistics = work.run(engine, &survey.order, |progress| {
        line.show(progress);
        signals.came().is_none()
    });
    line.end();
    let statistics = statistics.with_context(|| kept(work.records))?;
    let signal = signals.came().filter(|_| statistics.is_interrupted);
    Ok((statistics, signal))
}

/// What a person wants to know when a run ends early.
fn kept(records: &Records) -> String {
    let (n_done, n) = (records.n_done(), records.len());
    match records.path() {
        Some(path) => {
            format!("{n_done} of {n} answers are kept in `{}`: the same command goes on from them", path.display())
        }
        None => {
            format!("{n_done} of {n} answers were there, and none is kept: `-o` or `--records` names a place for them")
        }
    }
}

/// Ends as the signal would have ended the program. If the system does not let it, that is the error.
fn interrupted(records: &Records, signal: i32, output: &Output) -> anyhow::Error {
    output.note(&kept(records));
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

fn all_ids(records: &Records) -> anyhow::Result<Vec<Vec<u32>>> {
    let ids = |i| -> anyhow::Result<Vec<u32>> {
        Ok(match records.read(i)?.map(|record| record.outcome) {
            Some(Outcome::Answered { ids, .. }) => ids,
            _ => Vec::new(),
        })
    };
    (0..records.len()).map(ids).collect()
}
