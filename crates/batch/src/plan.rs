//! Makes requests of lines, and collects what all of them need.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::prompter::Prompter;
use super::records::{Outcome, Records};
use super::request_line::{LineError, Prompt, RequestLine, id_of};
use super::shard::Shard;
use super::source::{PromptFormat, Source};
use super::{BatchError, Place};
use engine::PromptError;
use engine::scheduler::{Request, Sampling};

/// In which order prompts are run. Answers are in the order of the prompts in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum PromptOrder {
    /// As given
    #[default]
    Given,
    /// Longest possible first, so that none runs alone at the end
    Longest,
    /// Common beginnings together, so that their computation is shared
    Prefix,
}

/// What is done where a line does not say.
#[derive(Clone, Debug)]
pub struct Usual {
    /// Positions that a sequence may reach, for lines that do not say how many tokens they want.
    pub reach: usize,
    /// Positions of the longest sequence that the model takes.
    pub context: usize,
    /// New tokens at most, if that is asked for.
    pub max_new_tokens: Option<usize>,
    /// How tokens are chosen; the seed is that of the first prompt, and each has the next one.
    pub sampling: Sampling,
    /// Ids that end an answer.
    pub stop: Vec<u32>,
    pub vocab_size: usize,
}

/// Prompts, and all that makes requests of them.
#[derive(Debug)]
pub struct Batch {
    pub source: Source,
    pub prompter: Prompter,
    /// What is done where a line does not say.
    pub usual: Usual,
    /// Those of the prompts that are run here, if not all are.
    pub shard: Option<Shard>,
}

/// A line, ready to run.
#[derive(Debug)]
pub(crate) struct Planned {
    /// None if there is nothing to generate: the answer is empty.
    pub(crate) request: Option<Request>,
    /// Tokens of the prompt.
    pub(crate) n_prompt: usize,
    /// Whether the prompt leaves no room for an answer.
    pub(crate) is_full: bool,
    /// Of the prompt and all settings that its answer depends on.
    pub(crate) digest: u64,
}

/// What all requests need, found by a look at each.
#[derive(Debug, Default)]
pub struct Survey {
    /// Indices of the prompts that are to be run, in the order in which they are.
    pub order: Vec<u32>,
    /// Positions of the longest of them: prompt and answer.
    pub longest: usize,
    /// Positions of all of them.
    pub(crate) n_positions: u64,
    /// Prompts that leave no room, and the first of them.
    pub full: Option<(usize, usize)>,
}

impl Survey {
    /// Positions that one of them takes, one with another.
    pub fn mean(&self) -> usize {
        (self.n_positions as usize).div_ceil(self.order.len().max(1))
    }
}

/// Tokens whose keys and values are kept together: what begins with the same so many can share them.
const SHARED_TOKENS: usize = 64;

/// Prompts that are looked at together.
const CHUNK: usize = 4096;

struct Measured {
    n_positions: usize,
    is_full: bool,
    /// A number for each whole block of the prompt's tokens, of it and all before it.
    blocks: Vec<u64>,
}

impl Batch {
    /// Whether prompt `i` runs here.
    pub fn has(&self, i: usize) -> bool {
        self.shard.is_none_or(|shard| shard.has(i))
    }

    /// Number of prompts that run here.
    pub fn len(&self) -> usize {
        let n = self.source.len();
        self.shard.map_or(n, |shard| shard.count(n))
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The request of prompt `i`. The inner error is the line's.
    ///
    /// # Errors
    /// The line cannot be read again.
    pub(crate) fn plan(&self, i: usize) -> Result<Result<Planned, LineError>, BatchError> {
        Ok(RequestLine::parse(self.source.format(), self.source.line(i)?).and_then(|asked| self.planned(i, &asked)))
    }

    /// Ids that end the answer to a line.
    pub(crate) fn stop_ids(&self, asked: &RequestLine) -> Vec<u32> {
        let mut stop = self.usual.stop.clone();
        stop.extend(&asked.wishes.stop_token_ids);
        if let (Prompt::Messages(_), Ok(chat)) = (&asked.prompt, self.prompter.chat()) {
            stop.extend(chat.stop_ids());
        }
        stop
    }

    fn planned(&self, i: usize, asked: &RequestLine) -> Result<Planned, LineError> {
        let RequestLine { prompt, wishes, .. } = asked;
        let usual = &self.usual;
        let ids = self.prompter.ids(prompt, wishes.reasoning)?;
        PromptError::check_ids(&ids, usual.vocab_size)?;
        let is_of_seeds = matches!(self.source.format(), PromptFormat::Counted | PromptFormat::Lines);
        if ids.is_empty() && !is_of_seeds {
            return Err(PromptError::Empty.into());
        }
        let longest = if wishes.max_new_tokens.is_some() { usual.context } else { usual.reach };
        let (n_prompt, room) = (ids.len(), longest.saturating_sub(ids.len()));
        if room == 0 && self.source.format() == PromptFormat::Batch {
            return Err(PromptError::TooLong { n_prompt, capacity_tokens: longest }.into());
        }
        let max_new_tokens = wishes.max_new_tokens.or(usual.max_new_tokens).map_or(room, |n| n.min(room));
        let usual = Sampling { seed: usual.sampling.seed.wrapping_add(i as u64), ..usual.sampling };
        let sampling = wishes.sampling.sampling(usual);
        let mut request = Request::new(ids, max_new_tokens, self.stop_ids(asked), sampling);
        request.changes = wishes.sampling.changes(wishes.logit_bias.clone());
        let digest = digest(&request);
        let has_work = n_prompt > 0 && max_new_tokens > 0;
        Ok(Planned { request: has_work.then_some(request), n_prompt, is_full: room == 0, digest })
    }

    /// Looks at every prompt that is run here: whether all can be, which still have to be, and what they take.
    ///
    /// - `keeps_errors`: a line that is wrong is answered with what is wrong with it
    ///
    /// # Errors
    /// [`BatchError::Line`] of the first that is wrong, if that is no answer; [`BatchError::Changed`] of the first
    /// whose recorded answer is to something else.
    pub fn survey(&self, records: &Records, order: PromptOrder, keeps_errors: bool) -> Result<Survey, BatchError> {
        let mut survey = Survey::default();
        let mut keys = Vec::new();
        self.check_ids()?;
        for start in (0..self.source.len()).step_by(CHUNK) {
            let chunk: Vec<usize> = (start..self.source.len().min(start + CHUNK)).filter(|&i| self.has(i)).collect();
            let measured: Vec<Result<Option<Measured>, BatchError>> =
                chunk.par_iter().map(|&i| self.measured(i, records, order, keeps_errors)).collect();
            // One by one, so that of several errors the first is told.
            for (i, measured) in chunk.into_iter().zip(measured) {
                let Some(Measured { n_positions, is_full, blocks }) = measured? else { continue };
                if is_full {
                    survey.full = survey.full.map_or(Some((1, i)), |(n, first)| Some((n + 1, first)));
                }
                survey.order.push(i as u32);
                survey.longest = survey.longest.max(n_positions);
                survey.n_positions += n_positions as u64;
                match order {
                    PromptOrder::Given => {}
                    PromptOrder::Longest => keys.push((vec![u64::MAX - n_positions as u64], i as u32)),
                    PromptOrder::Prefix => keys.push((blocks, i as u32)),
                }
            }
        }
        if order != PromptOrder::Given {
            keys.sort_unstable();
            survey.order = keys.into_iter().map(|(_, i)| i).collect();
        }
        Ok(survey)
    }

    /// Whether all lines of a batch file have names of their own.
    fn check_ids(&self) -> Result<(), BatchError> {
        if self.source.format() != PromptFormat::Batch {
            return Ok(());
        }
        let mut first = HashMap::new();
        for start in (0..self.source.len()).step_by(CHUNK) {
            let chunk: Vec<usize> = (start..self.source.len().min(start + CHUNK)).collect();
            let ids: Vec<_> = chunk.par_iter().map(|&i| self.source.line(i).map(|line| id_of(&line))).collect();
            for (i, id) in chunk.into_iter().zip(ids) {
                let Some(id) = id?.and_then(|id| Some(id.as_str()?.to_owned())) else { continue };
                if let Some(first) = first.insert(id.clone(), i) {
                    let place = |i| Place(self.source.place(i));
                    return Err(BatchError::SameId { id, first: place(first), place: place(i) });
                }
            }
        }
        Ok(())
    }

    /// None for a prompt that is answered already.
    fn measured(
        &self,
        i: usize,
        records: &Records,
        order: PromptOrder,
        keeps_errors: bool,
    ) -> Result<Option<Measured>, BatchError> {
        let place = || Place(self.source.place(i));
        let planned = match self.plan(i)? {
            Ok(planned) => planned,
            Err(source) if !keeps_errors => return Err(BatchError::Line { place: place(), source: Box::new(source) }),
            // What is wrong now may have been right then.
            Err(_) if records.digest(i).is_some_and(|digest| digest != 0) => {
                return Err(BatchError::Changed { place: place() });
            }
            Err(_) if records.digest(i).is_some() => return Ok(None),
            Err(_) => return Ok(Some(Measured { n_positions: 0, is_full: false, blocks: Vec::new() })),
        };
        match records.digest(i) {
            Some(digest) if digest != planned.digest => return Err(BatchError::Changed { place: place() }),
            Some(_) => return Ok(None),
            None => {}
        }
        let (n_positions, blocks) = match &planned.request {
            Some(request) => {
                let blocks = if order == PromptOrder::Prefix { blocks(&request.prompt) } else { Vec::new() };
                (request.prompt.len() + request.max_new_tokens, blocks)
            }
            None => (0, Vec::new()),
        };
        Ok(Some(Measured { n_positions, is_full: planned.is_full, blocks }))
    }

    /// What is recorded for a line that is wrong.
    pub(crate) fn refused(error: &LineError) -> Outcome {
        Outcome::Refused { message: hint::chain(error), param: error.param(), code: error.code().map(str::to_owned) }
    }
}

fn blocks(ids: &[u32]) -> Vec<u64> {
    let mut hasher = DefaultHasher::new();
    let block = |block: &[u32]| {
        block.hash(&mut hasher);
        hasher.finish()
    };
    ids.chunks_exact(SHARED_TOKENS).map(block).collect()
}

/// Never 0, which is the digest of lines that are wrong.
fn digest(request: &Request) -> u64 {
    let Request { prompt, max_new_tokens, stop, sampling, changes, .. } = request;
    let mut hasher = Sha256::new();
    for ids in [prompt, stop] {
        hasher.update((ids.len() as u64).to_le_bytes());
        ids.iter().for_each(|id| hasher.update(id.to_le_bytes()));
    }
    hasher.update((*max_new_tokens as u64).to_le_bytes());
    hasher.update(sampling.identity());
    hasher.update(format!("{:?} {} {}", changes.bias, changes.frequency_penalty, changes.presence_penalty));
    if changes.repetition_penalty != 1.0 {
        hasher.update(format!(" repetition {}", changes.repetition_penalty));
    }
    let bytes = hasher.finalize();
    u64::from_be_bytes(bytes[..8].try_into().expect("eight bytes")).max(1)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn whatever_could_change_an_answer_changes_the_digest() {
        let request = || Request::new(vec![1, 2], 5, vec![9], Sampling { temperature: 1.0, ..Sampling::GREEDY });
        let of = |change: &dyn Fn(&mut Request)| {
            let mut changed = request();
            change(&mut changed);
            digest(&changed)
        };
        let digests = [
            of(&|_| {}),
            of(&|r| r.prompt = vec![1]),
            of(&|r| r.prompt.push(9)),
            of(&|r| r.max_new_tokens = 6),
            of(&|r| r.stop.clear()),
            of(&|r| r.sampling.temperature = 0.0),
            of(&|r| r.sampling.top_k = 1),
            of(&|r| r.sampling.top_p = 0.5),
            of(&|r| r.sampling.min_p = 0.5),
            of(&|r| r.sampling.seed = 2),
            of(&|r| r.changes.bias = vec![(1, 0.5)]),
            of(&|r| r.changes.frequency_penalty = 0.5),
            of(&|r| r.changes.presence_penalty = 0.5),
            of(&|r| r.changes.repetition_penalty = 0.5),
        ];
        let different: std::collections::HashSet<u64> = digests.into_iter().collect();
        assert_eq!(different.len(), digests.len());
        assert_eq!(of(&|_| {}), digests[0]);
        let greedy = |seed| of(&move |r| r.sampling = Sampling { seed, ..Sampling::GREEDY });
        assert_eq!(greedy(1), greedy(2), "a greedy choice has no seed");
    }

    /// The digest is that of a script's SHA-256 over the same bytes.
    #[test]
    fn digests_are_those_of_records_that_there_are() {
        let sampling = Sampling { temperature: 1.0, top_k: 3, top_p: 0.9, min_p: 0.1, seed: 7 };
        let mut request = Request::new(vec![1, 2], 5, vec![9], sampling);
        (request.changes.bias, request.changes.frequency_penalty) = (vec![(4, 0.5)], 0.25);
        assert_eq!(digest(&request), 0xe1f4_9623_ae37_ccca);
    }

    #[test]
    fn blocks_are_alike_as_far_as_prompts_are() {
        let ids: Vec<u32> = (0..200).collect();
        let mut other = ids.clone();
        other[130] = 7;
        let (a, b) = (blocks(&ids), blocks(&other));
        assert_eq!((a.len(), &a[..2]), (3, &b[..2]));
        assert_ne!(a[2], b[2]);
    }

    /// A batch file of these lines, of a vocabulary of bytes.
    pub(crate) fn batch(lines: &[String]) -> Batch {
        use chat::chat_format::ChatFormatError;
        use model::tokenizer::Tokenizer;
        use std::io::Write;

        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(lines.concat().as_bytes()).expect("written");
        let source = Source::open(file.path().as_os_str(), Some(PromptFormat::Batch), None).expect("lines");
        let chat = Err(ChatFormatError::NoTemplate);
        let prompter = Prompter::new(Tokenizer::of_bytes(256, &[]), chat, super::super::prompter::Usual::default());
        let usual = Usual {
            reach: 64,
            context: 64,
            max_new_tokens: None,
            sampling: Sampling::GREEDY,
            stop: Vec::new(),
            vocab_size: 256,
        };
        Batch { source, prompter, usual, shard: None }
    }

    pub(crate) fn line(id: &str, prompt: &[u32], max_tokens: usize) -> String {
        let body = format!("{{\"model\": \"m\", \"prompt\": {prompt:?}, \"max_tokens\": {max_tokens}}}");
        format!("{{\"custom_id\": \"{id}\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {body}}}\n")
    }

    #[test]
    fn a_name_that_two_lines_have_is_told_however_far_apart_they_are() {
        let mut lines: Vec<String> = (0..=CHUNK).map(|i| line(&i.to_string(), &[1], 1)).collect();
        batch(&lines).check_ids().expect("all have names of their own");
        lines[CHUNK] = lines[2].clone();
        let error = batch(&lines).check_ids().expect_err("the third and the last");
        let BatchError::SameId { id, first, place } = error else { panic!("{error}") };
        assert_eq!(id, "2");
        assert!(first.0.ends_with("line 3)") && place.0.ends_with(&format!("line {})", CHUNK + 1)), "{first} {place}");
    }

    pub(crate) fn records(n: usize) -> Records {
        use super::super::records::{Header, VERSION};

        let current_date = "2026-11-22".to_owned();
        let settings = serde_json::Map::new();
        Records::in_memory(Header { gptoss_jit_records: VERSION, started: 7, current_date, seed: 0, settings }, n)
    }

    #[test]
    fn a_survey_adds_up_the_positions_of_all_prompts() {
        let batch = batch(&[line("a", &[1, 2, 3], 5), line("b", &[1], 1), line("c", &[4, 5], 11)]);
        let records = records(3);
        let survey = |order| batch.survey(&records, order, false).expect("all lines are right");
        let Survey { order, longest, n_positions, full } = survey(PromptOrder::Given);
        assert_eq!((order, longest, n_positions, full), (vec![0, 1, 2], 13, 8 + 2 + 13, None));
        assert_eq!(survey(PromptOrder::Longest).order, [2, 0, 1]);
        assert_eq!(survey(PromptOrder::Given).mean(), 8, "23 of three");
    }
}
