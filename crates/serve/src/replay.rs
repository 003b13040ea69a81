//! A backend that answers from a script instead of a model: to debug clients, and to test outputs that no model can be
//! made to write.
//!
//! The file has a JSON object on each line, the script of an answer:
//!
//! | field | meaning |
//! |---|---|
//! | `text` | what is answered; names of special tokens are these tokens |
//! | `ids` | the same as token ids, instead |
//! | `prompt` | only for prompts that contain this, special tokens spelled; the first line that fits is taken |
//! | `delay_ms` | milliseconds before each token |
//! | `finish_reason` | `stop` or `length`, where no token of the script stops the request; if absent, `length` |
//! | `fail` | the engine fails after the last token, with these words |
//!
//! Lines without `prompt` are answers in turn, to requests that no other line fits; after the last comes the first
//! again. A script is cut at the request's first stop token, or at as many tokens as it may have, as a model's output
//! is.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio::sync::{Semaphore, watch};

use super::backend::{Backend, Figures, Health, ModelFacts, Refused};
use super::intake::{Intake, IntakeLimits};
use super::mailbox::{Ending, Failed, Generation, Mailbox};
use super::metrics::Metrics;
use engine::scheduler::{FinishReason, LogitRowLogprobs, Request, TokenLogprob};
use hint::Hint;
use model::tokenizer::{Tokenizer, TokenizerError};

/// The scripts of a file.
#[derive(Clone, Debug)]
pub struct Scripts {
    /// For prompts that contain a text.
    matching: Vec<(String, Arc<Script>)>,
    in_turn: Vec<Arc<Script>>,
}

#[derive(Debug)]
struct Script {
    tokens: Vec<u32>,
    delay: Duration,
    ending: Ending,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptLine {
    text: Option<String>,
    ids: Option<Vec<u32>>,
    prompt: Option<String>,
    delay_ms: Option<u64>,
    finish_reason: Option<Finish>,
    fail: Option<String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Finish {
    Stop,
    Length,
}

/// Why there are no scripts.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The file could not be read.
    #[error("could not read the script `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A line is no script.
    #[error("line {line} is no script")]
    Json {
        /// Counted from 1.
        line: usize,
        #[source]
        source: serde_json::Error,
    },
    /// A line has neither `text` nor `ids`, or both.
    #[error("line {line} has {found}, expected one of `text` and `ids`")]
    WhichTokens {
        /// Counted from 1.
        line: usize,
        /// `both` or `neither`.
        found: &'static str,
    },
    /// A text that the tokenizer does not take, or an id that it does not have.
    #[error("could not encode line {line}")]
    Tokens {
        /// Counted from 1.
        line: usize,
        #[source]
        source: TokenizerError,
    },
    #[error("the script has no lines")]
    Empty,
}

impl Hint for ReplayError {
    fn hint(&self) -> Option<String> {
        Some(r#"a line is a JSON object such as {"text": "<|channel|>final<|message|>Hello<|return|>"}"#.into())
    }
}

impl Scripts {
    /// Reads a file of scripts.
    ///
    /// # Errors
    /// [`ReplayError`] names the line.
    pub fn read(path: &Path, tokenizer: &Tokenizer) -> Result<Self, ReplayError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| ReplayError::Read { path: path.to_owned(), source })?;
        Self::parse(text.strip_prefix('\u{feff}').unwrap_or(&text), tokenizer)
    }

    /// Reads the lines of a text.
    ///
    /// # Errors
    /// [`ReplayError`] names the line.
    pub(crate) fn parse(text: &str, tokenizer: &Tokenizer) -> Result<Self, ReplayError> {
        let mut scripts = Self { matching: Vec::new(), in_turn: Vec::new() };
        for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
            let parsed: ScriptLine = serde_json::from_str(text).map_err(|source| ReplayError::Json { line, source })?;
            let tokens = match (&parsed.text, parsed.ids) {
                (Some(text), None) => tokenizer.encode_with_specials(text.as_bytes()),
                (None, Some(ids)) => tokenizer.decode_all(&ids).map(|_| ids),
                (Some(_), Some(_)) => return Err(ReplayError::WhichTokens { line, found: "both" }),
                (None, None) => return Err(ReplayError::WhichTokens { line, found: "neither" }),
            };
            let tokens = tokens.map_err(|source| ReplayError::Tokens { line, source })?;
            let ending = match (parsed.fail, parsed.finish_reason) {
                (Some(why), _) => Ending::Failed(Failed::Engine(why)),
                (None, Some(Finish::Stop)) => Ending::Finished(FinishReason::Stop),
                (None, Some(Finish::Length) | None) => Ending::Finished(FinishReason::Length),
            };
            let delay = Duration::from_millis(parsed.delay_ms.unwrap_or(0));
            let script = Arc::new(Script { tokens, delay, ending });
            match parsed.prompt {
                Some(prompt) => scripts.matching.push((prompt, script)),
                None => scripts.in_turn.push(script),
            }
        }
        if scripts.matching.is_empty() && scripts.in_turn.is_empty() { Err(ReplayError::Empty) } else { Ok(scripts) }
    }

    /// The script for a prompt; `turn` counts those that no line fits.
    fn script(&self, prompt: &str, turn: &AtomicUsize) -> Option<Arc<Script>> {
        let fits = self.matching.iter().find(|(part, _)| prompt.contains(part.as_str())).map(|(_, script)| script);
        let next = || self.in_turn.get(turn.fetch_add(1, Ordering::Relaxed) % self.in_turn.len().max(1));
        fits.or_else(next).cloned()
    }
}

/// Answers by script. Made and used within a tokio runtime.
pub struct Replay {
    scripts: Scripts,
    turn: AtomicUsize,
    tokenizer: Tokenizer,
    facts: ModelFacts,
    intake: Arc<Intake>,
    slots: Arc<Semaphore>,
    is_over: watch::Sender<bool>,
}

impl Replay {
    /// Scripts with a model's facts and an engine's limits.
    pub fn new(
        scripts: Scripts,
        tokenizer: Tokenizer,
        facts: ModelFacts,
        limits: IntakeLimits,
        metrics: Metrics,
    ) -> Self {
        let slots = Arc::new(Semaphore::new(limits.n_slots));
        let (intake, is_over) = (Intake::new(limits, metrics), watch::Sender::new(false));
        Self { scripts, turn: AtomicUsize::new(0), tokenizer, facts, intake, slots, is_over }
    }
}

impl Backend for Replay {
    fn submit(&self, mut request: Request) -> Result<Generation, Refused> {
        let mailbox = self.intake.take(&mut request)?;
        let prompt = self.tokenizer.decode_all(&request.prompt).unwrap_or_default();
        let Some(script) = self.scripts.script(&String::from_utf8_lossy(&prompt), &self.turn) else {
            mailbox.end(Ending::Failed(Failed::Engine("no line of the script fits this prompt".into())));
            return Ok(Generation::new(mailbox, || {}));
        };
        let (slots, mut is_over, told) = (self.slots.clone(), self.is_over.subscribe(), mailbox.clone());
        let task = tokio::spawn(async move {
            let over = async move { is_over.wait_for(|is_over| *is_over).await.is_ok() };
            tokio::select! {
                () = script.play(request, &slots, &told) => {}
                _ = over => told.end(Ending::Failed(Failed::ShuttingDown)),
            }
        });
        let cancelled = mailbox.clone();
        Ok(Generation::new(mailbox, move || {
            task.abort();
            cancelled.cancelled();
        }))
    }

    fn model(&self) -> &ModelFacts {
        &self.facts
    }

    fn figures(&self) -> Figures {
        self.intake.figures()
    }

    fn health(&self) -> Health {
        if self.intake.closed().is_some() { Health::ShuttingDown } else { Health::Ok }
    }

    fn drain(&self) {
        self.intake.close(Failed::ShuttingDown);
    }

    fn end_all(&self) {
        self.drain();
        self.is_over.send_replace(true);
    }
}

impl Script {
    async fn play(&self, request: Request, slots: &Semaphore, mailbox: &Mailbox) {
        let _slot = slots.acquire().await.expect("nobody closes it");
        mailbox.admitted(Instant::now(), 0);
        // What a prompt or a script says is certain.
        let certain = |token| LogitRowLogprobs { chosen: 0.0, top: vec![TokenLogprob { token, logprob: 0.0 }] };
        let of_prompt = request.prompt.iter().skip(1).filter(|_| request.prompt_logprobs.is_some());
        of_prompt.for_each(|&token| mailbox.prompt_token(certain(token)));
        for (i, &token) in self.tokens.iter().enumerate() {
            if i == request.max_new_tokens {
                return mailbox.end(Ending::Finished(FinishReason::Length));
            }
            if !self.delay.is_zero() {
                tokio::time::sleep(self.delay).await;
            }
            let logprobs = request.n_logprobs.map(|_| Box::new(certain(token)));
            mailbox.token(Instant::now(), token, logprobs);
            if request.stop.contains(&token) {
                return mailbox.end(Ending::Finished(FinishReason::Stop));
            }
        }
        mailbox.end(self.ending.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::scheduler::Sampling;

    const FILE: &str = r#"
{"text": "one<|return|>two"}

{"prompt": "weather", "text": "sunny", "finish_reason": "stop"}
{"ids": [1, 2, 3]}
{"prompt": "the engine", "text": "", "fail": "lost"}
"#;

    fn replay() -> Replay {
        let tokenizer = Tokenizer::o200k_harmony();
        let scripts = Scripts::parse(FILE, &tokenizer).unwrap();
        let (context_tokens, vocab_size) = (100, tokenizer.vocab_size());
        let limits = IntakeLimits { n_slots: 1, max_queue: 9, max_queued_tokens: 1000, context_tokens, vocab_size };
        let facts = limits.facts("fp_0".into(), 0);
        Replay::new(scripts, tokenizer, facts, limits, Metrics::default())
    }

    async fn answer(replay: &Replay, prompt: &str, max_new_tokens: usize) -> (Vec<u32>, Ending) {
        let ids = replay.tokenizer.encode(prompt.as_bytes()).unwrap();
        let stop = vec![replay.tokenizer.special("<|return|>").unwrap()];
        let request = Request::new(ids, max_new_tokens, stop, Sampling::GREEDY);
        let mut generation = replay.submit(request).unwrap();
        let mut tokens = Vec::new();
        loop {
            let chunk = generation.next().await;
            tokens.extend(chunk.tokens);
            if let Some(ending) = chunk.ending {
                return (tokens, ending);
            }
        }
    }

    #[test]
    fn lines_that_fit_go_first_and_the_others_come_in_turn() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let replay = replay();
            let (stop, length) = (Ending::Finished(FinishReason::Stop), Ending::Finished(FinishReason::Length));
            let one = replay.tokenizer.encode_with_specials(b"one<|return|>").unwrap();
            let sunny = replay.tokenizer.encode(b"sunny").unwrap();
            assert_eq!(answer(&replay, "hello", 9).await, (one.clone(), stop.clone()));
            assert_eq!(answer(&replay, "the weather", 9).await, (sunny, stop.clone()));
            assert_eq!(answer(&replay, "hello", 9).await, (vec![1, 2, 3], length.clone()));
            assert_eq!(answer(&replay, "hello", 1).await, (one[..1].to_vec(), length));
            let failed = answer(&replay, "the engine", 9).await.1;
            assert_eq!(failed, Ending::Failed(Failed::Engine("lost".into())));
            assert_eq!(replay.figures(), Figures::default());
        });
    }

    #[test]
    fn a_line_that_is_no_script_is_named() {
        let of = |text: &str| Scripts::parse(text, &Tokenizer::o200k_harmony()).unwrap_err().to_string();
        assert_eq!(of("\n{"), "line 2 is no script");
        assert_eq!(of(r#"{"text": "a", "wait": 1}"#), "line 1 is no script");
        assert_eq!(of(r#"{"delay_ms": 1}"#), "line 1 has neither, expected one of `text` and `ids`");
        assert_eq!(of(r#"{"ids": [4294967295]}"#), "could not encode line 1");
        assert_eq!(of(" \n"), "the script has no lines");
    }
}
