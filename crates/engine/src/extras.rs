//! Sampling beyond temperature, top_k and top_p: masks, biases, penalties, `min_p` and log-probabilities. Steps that
//! need none of these skip all of it.
//!
//! How a row's logits change depends on all tokens before it, so it is computed when these are known, while the device
//! computes the logits.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use rayon::prelude::*;

use crate::graph::forward::N_TOP;
use crate::scheduler::{
    Event, FinishReason, LogitChanges, LogitRowLogprobs, Request, RequestId, RowToken, Step, TokenLogprob, TokenMask,
};
use hint::Hint;

const _: () = assert!(N_TOP == Request::MAX_LOGPROBS);

/// An impossible request.
#[derive(Debug, thiserror::Error)]
pub enum ExtrasError {
    /// A number that is infinite or none.
    #[error("the {name} of a request is {value}, which is not a finite number")]
    NotFinite { name: &'static str, value: f32 },
    /// What repetitions are divided by.
    #[error("the repetition penalty of a request is {value}, which is not a number above 0")]
    RepetitionPenalty { value: f32 },
    /// A bias for a token that there is not.
    #[error("a request has a bias for token id {id}, which is not below the model's vocab_size, {vocab_size}")]
    BiasId { id: u32, vocab_size: usize },
    /// Log-probabilities of too many tokens.
    #[error(
        "a request asks for the log-probabilities of the {n} best tokens; at most {} are available",
        Request::MAX_LOGPROBS
    )]
    TooManyLogprobs { n: usize },
}

impl Hint for ExtrasError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::BiasId { .. } => Some("the tokenizer belongs to another model".into()),
            Self::NotFinite { .. } | Self::RepetitionPenalty { .. } | Self::TooManyLogprobs { .. } => None,
        }
    }
}

/// All requests that ask for something, from the time they are submitted until they end.
#[derive(Debug, Default)]
pub(super) struct Extras {
    requests: HashMap<RequestId, Extra>,
}

/// What one asks for, as far as its tokens are known.
#[derive(Debug)]
pub(super) struct Extra {
    changes: LogitChanges,
    min_p: f32,
    n_logprobs: Option<usize>,
    /// The same of the tokens of the prompt.
    n_prompt_logprobs: Option<usize>,
    /// How often each token was generated, where that matters.
    counts: BTreeMap<u32, u32>,
    /// The tokens of the prompt, where they matter.
    in_prompt: HashSet<u32>,
    /// What may come after each of its drafts.
    ahead: Vec<Option<Vec<u32>>>,
}

/// What the rows of a step ask for.
#[derive(Debug, Default)]
pub(super) struct ExtraRows {
    pub(crate) changed: Vec<ChangedRow>,
    /// The rows that want log-probabilities, among those that give logits.
    pub(crate) logprob_rows: Vec<u32>,
    /// Whose rows these are, and how many tokens they want to know of.
    pub(crate) logprobs_of: Vec<(RequestId, usize)>,
    /// Those whose mask allows nothing.
    pub(crate) stuck: Vec<RequestId>,
}

/// How the logits of a row are changed.
#[derive(Debug, PartialEq)]
pub(super) struct ChangedRow {
    /// Its place among the rows that give logits.
    pub(crate) row: u32,
    /// What becomes of the logits of some ids, which rise.
    pub(crate) biases: Vec<ChangedLogit>,
    pub(crate) mask: Option<Vec<u32>>,
    pub(crate) min_p: f32,
}

/// How one logit is changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ChangedLogit {
    pub(crate) id: u32,
    /// It is divided by this where it is above 0, else multiplied.
    pub(crate) divisor: f32,
    pub(crate) bias: f32,
}

/// The log-probabilities of the rows of a step that want them.
#[derive(Debug, Default)]
pub(super) struct Logprobs {
    /// (rows, 1 + [`N_TOP`]), row-major: the token's, then those of the best.
    pub(crate) logprob: Vec<f32>,
    /// (rows, [`N_TOP`]), row-major.
    pub(crate) top_token: Vec<u32>,
}

impl Extra {
    /// Takes out of a request what it asks for; none if that is nothing.
    pub(crate) fn take(request: &mut Request, vocab_size: usize) -> Result<Option<Self>, ExtrasError> {
        let changes = std::mem::take(&mut request.changes);
        let (n_logprobs, sampling) = (request.n_logprobs, request.sampling);
        let n_prompt_logprobs = request.prompt_logprobs.map(|of| of.n_top);
        let numbers = [
            ("min_p", sampling.min_p),
            ("frequency penalty", changes.frequency_penalty),
            ("presence penalty", changes.presence_penalty),
        ];
        let biases = changes.bias.iter().map(|&(_, bias)| ("bias", bias));
        if let Some((name, value)) = numbers.into_iter().chain(biases).find(|(_, value)| !value.is_finite()) {
            return Err(ExtrasError::NotFinite { name, value });
        }
        let value = changes.repetition_penalty;
        if !value.is_normal() || value < 0.0 {
            return Err(ExtrasError::RepetitionPenalty { value });
        }
        if let Some(&(id, _)) = changes.bias.iter().find(|(id, _)| *id as usize >= vocab_size) {
            return Err(ExtrasError::BiasId { id, vocab_size });
        }
        let most = n_logprobs.max(n_prompt_logprobs);
        if let Some(n) = most.filter(|&n| n > Request::MAX_LOGPROBS) {
            return Err(ExtrasError::TooManyLogprobs { n });
        }
        let min_p = if sampling.temperature == 0.0 { 0.0 } else { sampling.min_p.max(0.0) }; // greedy takes the best
        let (counts, ahead, is_repeated) = (BTreeMap::new(), Vec::new(), changes.repetition_penalty != 1.0);
        let in_prompt = request.prompt.iter().copied().filter(|_| is_repeated).collect();
        let mut extra = Self { changes, min_p, n_logprobs, n_prompt_logprobs, counts, in_prompt, ahead };
        request.generated.iter().for_each(|&token| extra.push(token));
        Ok((extra.changes_logits() || most.is_some()).then_some(extra))
    }

    fn changes_logits(&self) -> bool {
        let LogitChanges { bias, mask, .. } = &self.changes;
        !bias.is_empty() || self.has_penalties() || mask.is_some() || self.min_p > 0.0
    }

    fn has_penalties(&self) -> bool {
        let LogitChanges { repetition_penalty, frequency_penalty, presence_penalty, .. } = self.changes;
        repetition_penalty != 1.0 || frequency_penalty != 0.0 || presence_penalty != 0.0
    }

    fn push(&mut self, token: u32) {
        self.count(token);
        if let Some(mask) = &mut self.changes.mask {
            mask.push(token);
        }
    }

    fn count(&mut self, token: u32) {
        if self.has_penalties() {
            *self.counts.entry(token).or_default() += 1;
        }
    }

    /// How many of these may come one after the other, so that some token may come after each.
    fn n_allowed(&mut self, drafts: &[u32], vocab_size: usize) -> usize {
        self.ahead.clear();
        let Some(mask) = &mut self.changes.mask else { return drafts.len() };
        let mut allowed = mask.allowed().map(<[u32]>::to_vec);
        let mut ahead: Option<Box<dyn TokenMask>> = None;
        for &draft in drafts {
            if !allowed.as_deref().is_none_or(|allowed| is_allowed(allowed, draft)) {
                break;
            }
            let ahead = ahead.get_or_insert_with(|| mask.ahead());
            ahead.push(draft);
            let Ok(behind) = ahead.allowed().map(|allowed| whole_mask(allowed, vocab_size)).transpose() else { break };
            self.ahead.push(behind.clone());
            allowed = behind;
        }
        self.ahead.len()
    }

    /// Biases and penalties by id, rising.
    fn biases(&self) -> Vec<ChangedLogit> {
        let mut sums: BTreeMap<u32, f64> = BTreeMap::new();
        for &(id, bias) in &self.changes.bias {
            *sums.entry(id).or_default() += f64::from(bias);
        }
        for (&id, &count) in &self.counts {
            let penalty = f64::from(self.changes.frequency_penalty) * f64::from(count);
            *sums.entry(id).or_default() -= penalty + f64::from(self.changes.presence_penalty);
        }
        for &id in &self.in_prompt {
            sums.entry(id).or_default();
        }
        let largest = f64::from(f32::MAX);
        let changed = |(id, sum): (u32, f64)| {
            let is_repeated = self.counts.contains_key(&id) || self.in_prompt.contains(&id);
            let divisor = if is_repeated { self.changes.repetition_penalty } else { 1.0 };
            ChangedLogit { id, divisor, bias: sum.clamp(-largest, largest) as f32 }
        };
        sums.into_iter().map(changed).collect()
    }

    /// How the logits of its next tokens are changed: of the one after what is known, whose row is the first, and of
    /// those after drafts that were asked about. Rows that are not changed are left out. `Err` if no token may come.
    fn changed(&mut self, first: u32, drafts: &[u32], vocab_size: usize) -> Result<Vec<ChangedRow>, NothingAllowed> {
        let mask = self.changes.mask.as_mut().and_then(|mask| mask.allowed());
        let mask = mask.map(|allowed| whole_mask(allowed, vocab_size)).transpose()?;
        let mut rows = vec![ChangedRow { row: first, biases: self.biases(), mask, min_p: self.min_p }];
        let counts = (!drafts.is_empty()).then(|| self.counts.clone());
        for ((row, &draft), i) in (first + 1..).zip(drafts).zip(0..) {
            self.count(draft);
            let mask = self.ahead.get_mut(i).and_then(Option::take);
            rows.push(ChangedRow { row, biases: self.biases(), mask, min_p: self.min_p });
        }
        self.counts = counts.unwrap_or_else(|| std::mem::take(&mut self.counts));
        rows.retain(|row| !row.biases.is_empty() || row.mask.is_some() || row.min_p > 0.0);
        Ok(rows)
    }
}

/// No token may come next.
struct NothingAllowed;

/// Whether a mask allows this id.
fn is_allowed(mask: &[u32], id: u32) -> bool {
    mask.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
}

/// A bit for each id of the vocabulary, and no others.
fn whole_mask(allowed: &[u32], vocab_size: usize) -> Result<Vec<u32>, NothingAllowed> {
    let mut mask = allowed.to_vec();
    mask.resize(vocab_size.div_ceil(32), 0);
    if let (Some(last), n @ 1..) = (mask.last_mut(), vocab_size % 32) {
        *last &= (1 << n) - 1;
    }
    if mask.iter().all(|&word| word == 0) { Err(NothingAllowed) } else { Ok(mask) }
}

impl Extras {
    /// Takes note of what a request asks for.
    pub(crate) fn add(&mut self, request: RequestId, extra: Extra) {
        self.requests.insert(request, extra);
    }

    pub(crate) fn clear(&mut self) {
        self.requests.clear();
    }

    /// Whether any row of a step asks for something.
    pub(crate) fn are_in(&self, step: &Step) -> bool {
        !self.requests.is_empty() && step.logit_rows.iter().any(|row| self.requests.contains_key(&row.request()))
    }

    /// How many of a request's drafts may come, one after the other. The next step may have rows for this many.
    pub(crate) fn n_allowed(&mut self, request: RequestId, drafts: &[u32], vocab_size: usize) -> usize {
        self.requests.get_mut(&request).map_or(drafts.len(), |extra| extra.n_allowed(drafts, vocab_size))
    }

    /// What the rows of a step ask for, when all tokens before them are known: of several at the same time.
    pub(crate) fn rows(&mut self, step: &Step, vocab_size: usize) -> ExtraRows {
        let mut places: HashMap<RequestId, (u32, Vec<u32>)> = HashMap::new();
        let mut rows = ExtraRows::default();
        for (row, of) in (0..).zip(&step.logit_rows) {
            if of.given.is_some() {
                if let Some(n) = self.requests.get(&of.request()).and_then(|extra| extra.n_prompt_logprobs) {
                    rows.logprob_rows.push(row);
                    rows.logprobs_of.push((of.request(), n));
                }
                continue;
            }
            let made_with = step.rows[of.row as usize].token;
            match (places.entry(of.request()), made_with) {
                (Entry::Vacant(place), _) => drop(place.insert((row, Vec::new()))),
                (Entry::Occupied(mut place), RowToken::Id(draft)) => place.get_mut().1.push(draft),
                (Entry::Occupied(_), RowToken::Sampled(_)) => {}
            }
        }
        let asking = self.requests.iter_mut();
        let mut asking: Vec<_> = asking.filter_map(|(id, extra)| Some((places.remove(id)?, *id, extra))).collect();
        asking.sort_unstable_by_key(|((first, _), ..)| *first);
        let changed =
            asking.par_iter_mut().map(|((first, drafts), _, extra)| extra.changed(*first, drafts, vocab_size));
        let changed: Vec<_> = changed.collect();

        for (((first, drafts), id, extra), changed) in asking.into_iter().zip(changed) {
            let Ok(changed) = changed else {
                rows.stuck.push(id);
                continue;
            };
            rows.changed.extend(changed);
            if let Some(n) = extra.n_logprobs {
                for row in first..=first + drafts.len() as u32 {
                    rows.logprob_rows.push(row);
                    rows.logprobs_of.push((id, n));
                }
            }
        }
        rows
    }

    /// Takes note of what happened to requests.
    pub(crate) fn take(&mut self, events: &[Event]) {
        if self.requests.is_empty() {
            return;
        }
        for event in events {
            match event {
                Event::Token { request, token, .. } => {
                    if let Some(extra) = self.requests.get_mut(request) {
                        extra.push(*token);
                    }
                }
                Event::Finished { request, .. } => drop(self.requests.remove(request)),
                Event::Admitted { .. } | Event::PromptToken { .. } => {}
            }
        }
    }
}

impl ExtraRows {
    /// The ends of requests whose masks allow no token.
    pub(crate) fn endings(&self) -> impl Iterator<Item = Event> {
        let reason = FinishReason::Length;
        self.stuck.iter().map(move |&request| Event::Finished { request, reason })
    }
}

impl Logprobs {
    /// Whether a logit of one of the rows was none.
    pub(crate) fn have_none(&self) -> bool {
        self.logprob.iter().any(|logprob| logprob.is_nan())
    }

    /// Gives the tokens among these events their log-probabilities. `of`: whose the rows are, and how many they want;
    /// rows of drafts that were wrong gave none.
    pub(crate) fn attach(&self, of: &[(RequestId, usize)], events: &mut [Event]) {
        for (i, &(asking, n)) in of.iter().enumerate() {
            let mut told = events.iter_mut().filter_map(told);
            if let Some((_, logprobs)) = told.find(|(request, logprobs)| *request == asking && logprobs.is_none()) {
                *logprobs = Some(Box::new(self.row(i, n)));
            }
        }
    }

    fn row(&self, i: usize, n: usize) -> LogitRowLogprobs {
        let logprob = &self.logprob[i * (N_TOP + 1)..][..N_TOP + 1];
        let top = self.top_token[i * N_TOP..][..n].iter().zip(&logprob[1..]);
        let top = top.map(|(&token, &logprob)| TokenLogprob { token, logprob });
        LogitRowLogprobs { chosen: logprob[0], top: top.filter(|one| one.logprob > f32::NEG_INFINITY).collect() }
    }
}

/// Whose token an event tells, and where its log-probabilities go.
fn told(event: &mut Event) -> Option<(RequestId, &mut Option<Box<LogitRowLogprobs>>)> {
    match event {
        Event::Token { request, logprobs, .. } | Event::PromptToken { request, logprobs, .. } => {
            Some((*request, logprobs))
        }
        Event::Admitted { .. } | Event::Finished { .. } => None,
    }
}

/// The rows in groups of which each has at most so many biases together, or is one row.
pub(super) fn rounds(rows: &[ChangedRow], max_biases: usize) -> Vec<&[ChangedRow]> {
    let (mut rounds, mut first, mut n_biases) = (Vec::new(), 0, 0);
    for (i, row) in rows.iter().enumerate() {
        if n_biases + row.biases.len() > max_biases && i > first {
            rounds.push(&rows[first..i]);
            (first, n_biases) = (i, 0);
        }
        n_biases += row.biases.len();
    }
    if first < rows.len() {
        rounds.push(&rows[first..]);
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::Sampling;

    fn extra(changes: LogitChanges) -> Extra {
        let mut request = Request { changes, ..Request::new(vec![1], 9, vec![], Sampling::GREEDY) };
        Extra::take(&mut request, 40).expect("right").expect("something")
    }

    #[test]
    fn penalties_grow_with_what_was_generated_and_add_to_biases() {
        let changes = LogitChanges {
            bias: vec![(7, 1.5), (3, -100.0), (7, 1.0)],
            frequency_penalty: 0.25,
            presence_penalty: -0.5,
            ..LogitChanges::default()
        };
        let mut extra = extra(changes);
        let biases = |extra: &Extra| extra.biases().iter().map(|one| (one.id, one.bias)).collect::<Vec<_>>();
        assert_eq!(biases(&extra), [(3, -100.0), (7, 2.5)]);
        [7, 9, 7].into_iter().for_each(|token| extra.push(token));
        assert_eq!(biases(&extra), [(3, -100.0), (7, 2.5 - 2.0 * 0.25 + 0.5), (9, -0.25 + 0.5)]);
    }

    #[test]
    fn a_repetition_is_one_of_the_prompt_or_of_the_answer() {
        let changes = LogitChanges { bias: vec![(7, 1.5)], repetition_penalty: 1.25, ..LogitChanges::default() };
        let mut extra = extra(changes); // of a prompt of token 1
        let changed = |id, divisor, bias| ChangedLogit { id, divisor, bias };
        assert_eq!(extra.biases(), [changed(1, 1.25, 0.0), changed(7, 1.0, 1.5)]);
        [7, 9, 9].into_iter().for_each(|token| extra.push(token));
        assert_eq!(extra.biases(), [changed(1, 1.25, 0.0), changed(7, 1.25, 1.5), changed(9, 1.25, 0.0)]);
    }

    #[test]
    fn a_mask_has_a_bit_for_each_id_and_one_that_allows_nothing_is_told() {
        assert_eq!(whole_mask(&[5], 40).ok(), Some(vec![5, 0]));
        assert_eq!(whole_mask(&[0, !0, !0], 40).ok(), Some(vec![0, 0xff]));
        assert_eq!(whole_mask(&[0, 1], 64).ok(), Some(vec![0, 1]));
        for (allowed, vocab_size) in [(&[][..], 40), (&[0, !0xff], 40), (&[0, 0, 1], 64)] {
            assert!(whole_mask(allowed, vocab_size).is_err(), "{allowed:?}");
        }
    }

    #[test]
    fn rounds_hold_as_many_biases_as_there_is_room_for() {
        let one = |id| ChangedLogit { id, divisor: 1.0, bias: 1.0 };
        let row = |n: u32| ChangedRow { row: n, biases: (0..n).map(one).collect(), mask: None, min_p: 0.0 };
        let rows = [3, 2, 5, 0, 1].map(row);
        let lengths = |most| rounds(&rows, most).iter().map(|round| round.len()).collect::<Vec<_>>();
        assert_eq!(lengths(5), [2, 2, 1]);
        assert_eq!(lengths(100), [5]);
        assert_eq!(rounds(&[], 5).len(), 0);
    }

    #[test]
    fn what_cannot_be_is_an_error_and_asking_for_nothing_is_nothing() {
        let taken = |change: fn(&mut Request)| {
            let mut request = Request::new(vec![1], 9, vec![], Sampling { temperature: 1.0, ..Sampling::GREEDY });
            change(&mut request);
            Extra::take(&mut request, 40)
        };
        assert!(taken(|_| {}).expect("right").is_none());
        assert!(taken(|request| request.n_logprobs = Some(0)).expect("right").is_some());
        assert!(taken(|request| request.sampling.min_p = 0.1).expect("right").is_some());
        let error = |change: fn(&mut Request)| taken(change).expect_err("wrong").to_string();
        assert!(error(|request| request.changes.bias = vec![(40, 1.0)]).contains("token id 40"));
        assert!(error(|request| request.changes.bias = vec![(4, f32::NAN)]).contains("bias of a request is NaN"));
        assert!(error(|request| request.changes.presence_penalty = f32::INFINITY).contains("presence penalty"));
        assert!(error(|request| request.changes.repetition_penalty = 0.0).contains("repetition penalty"));
        assert!(error(|request| request.changes.repetition_penalty = -1.0).contains("is -1,"));
        assert!(error(|request| request.changes.repetition_penalty = f32::INFINITY).contains("is inf,"));
        assert!(error(|request| request.n_logprobs = Some(21)).contains("21 best tokens; at most 20"));
    }
}
