//! The answers of all shards, read from the records of each.

use std::fs;

use super::{Answers, GetpJob, OutputFile, Records, Shard, batch, records_path, shard_without_place, write};
use crate::output::Output;
use crate::run::{Args, verify::Expected};
use batch::plan::{Batch, PromptOrder};
use batch::records::Outcome;
use hint::Hint;

/// Shards have not answered all prompts.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotMerged {
    /// No shard kept an answer here.
    #[error("could not merge: there is no `{records}.I-of-N`, which shards keep their answers in")]
    NoShards { records: String },
    #[error("could not merge: {n_missing} of {n} prompts have no answer, the first is prompt {place}")]
    Missing { n_missing: usize, n: usize, place: String, shards: Vec<Shard> },
}

impl Hint for NotMerged {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoShards { .. } => "give the flags of the run, especially `-o` or `--records`".to_owned(),
            Self::Missing { shards, .. } => {
                let runs: Vec<String> = shards.iter().map(|shard| format!("`--shard {shard}`")).collect();
                format!("the run with {} continues from its finished answers; then merge again", runs.join(" and "))
            }
        })
    }
}

/// Merges what shards kept. Their records are removed when the answers are in their place.
pub(crate) fn run(args: &Args, output: &Output) -> anyhow::Result<()> {
    let GetpJob { checkpoint, tokenizer, source, format } = GetpJob::open(args, output)?;
    let expected = args.verify.as_deref().map(Expected::read).transpose()?;
    let Some(of_all) = records_path(args, output) else { return Err(shard_without_place()) };
    let header = super::settings::header(args, &checkpoint);
    let found = Shard::found(&of_all)?;
    if found.is_empty() {
        return Err(NotMerged::NoShards { records: of_all.display().to_string() }.into());
    }
    let mut merged = Vec::with_capacity(found.len());
    let mut batch = batch(args, &checkpoint, tokenizer.clone(), source, &header, None)?;
    for (shard, path) in &found {
        let records = Records::open(path, header.clone(), batch.source.len(), false)?;
        // A shard has the seed and the date of its own first run, and so have its prompts' digests.
        batch = super::batch(args, &checkpoint, tokenizer.clone(), batch.source, records.header(), Some(*shard))?;
        batch.survey(&records, PromptOrder::Given, true)?;
        merged.push(records);
    }
    batch.shard = None;
    complete(&batch, &merged, &found.iter().map(|(shard, _)| *shard).collect::<Vec<_>>())?;
    let file = args.output.as_deref().map(|path| OutputFile::create(path, format.contents())).transpose()?;
    write(file, &Answers { batch: &batch, records: &merged, format, model: &args.model.name() }, output)?;
    let (ids, n_tokens) = ids(&batch, &merged, output.is_json() || expected.is_some())?;
    if output.is_json() {
        output.json(&serde_json::json!({
            "schema": 1, "mode": "merge", "requests": batch.len(), "shards": found.len(), "ids": ids, "tokens": n_tokens,
        }))?;
    } else {
        output.note(&format!("{} prompts of {} shards, {n_tokens} tokens", batch.len(), found.len()));
    }
    for (_, path) in &found {
        fs::remove_file(path)?;
    }
    expected.map_or(Ok(()), |expected| expected.compare(&ids, output))
}

/// Every prompt has an answer in one of the records.
fn complete(batch: &Batch, merged: &[Records], found: &[Shard]) -> Result<(), NotMerged> {
    let n = batch.len();
    let missing: Vec<usize> = (0..n).filter(|&i| merged.iter().all(|records| records.digest(i).is_none())).collect();
    let Some(&first) = missing.first() else { return Ok(()) };
    let of = found.iter().map(|shard| shard.of).max().unwrap_or(1);
    let shards = (0..of).map(|index| Shard { index, of }).filter(|shard| missing.iter().any(|&i| shard.has(i)));
    let place = batch.source.place(first);
    Err(NotMerged::Missing { n_missing: missing.len(), n, place, shards: shards.collect() })
}

/// The ids of all answers, if requested, and how many there are.
fn ids(batch: &Batch, merged: &[Records], keeps: bool) -> anyhow::Result<(Vec<Vec<u32>>, usize)> {
    let (mut all, mut n_tokens) = (Vec::new(), 0);
    for i in 0..batch.len() {
        let records = merged.iter().find(|records| records.digest(i).is_some());
        let record = records.map_or(Ok(None), |records| records.read(i))?;
        let ids = match record.map(|record| record.outcome) {
            Some(Outcome::Answered { ids, .. }) => ids,
            _ => Vec::new(),
        };
        n_tokens += ids.len();
        if keeps {
            all.push(ids);
        }
    }
    Ok((all, n_tokens))
}
