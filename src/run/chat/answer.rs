//! The model's answer in one turn, as it arrives.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::output::Output;
use chat::chat_format::{AnswerEvent, Purpose};

/// How an answer is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// Words for the user as they come.
    Plain,
    /// The same, and while the model thinks how long it has.
    Counting,
    /// The same, and what it thinks, dimmed.
    Thinking,
    /// An object when it is complete.
    Json,
}

pub(super) struct AnswerPrinter<'a> {
    manner: Manner,
    output: &'a Output,
    /// What was said so far, and what for: the last is open, if one is.
    messages: Vec<(Purpose, String)>,
    /// How many of them are complete.
    n_messages: usize,
    n_tokens: usize,
    /// Tokens of reasoning.
    n_thought: usize,
    thinks: bool,
    /// When the count of thoughts was shown last, if it is on the screen.
    counted: Option<Instant>,
    /// Whether words of an earlier message are on the screen.
    has_words: bool,
    /// Whether thoughts are on the screen that no line end follows yet.
    has_open_thoughts: bool,
    /// An answer is complete, even if the model ends it as if more came, or began to speak for another.
    is_over: bool,
}

/// A count that changes faster cannot be read.
const COUNT_INTERVAL: Duration = Duration::from_millis(100);

impl<'a> AnswerPrinter<'a> {
    pub(super) fn new(manner: Manner, output: &'a Output) -> Self {
        Self {
            manner,
            output,
            messages: Vec::new(),
            n_messages: 0,
            n_tokens: 0,
            n_thought: 0,
            thinks: false,
            counted: None,
            has_words: false,
            has_open_thoughts: false,
            is_over: false,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(super) fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    pub(super) fn n_thought(&self) -> usize {
        self.n_thought
    }

    /// Messages that are complete.
    pub(super) fn n_messages(&self) -> usize {
        self.n_messages
    }

    /// Takes a token, and prints what it adds.
    ///
    /// - `n_thought`: tokens of reasoning so far
    pub(super) fn take_token(&mut self, events: Vec<AnswerEvent>, n_thought: usize) -> anyhow::Result<()> {
        self.n_tokens += 1;
        for event in events {
            self.take(event)?;
        }
        self.n_thought = n_thought;
        let is_due = self.counted.is_none_or(|counted| counted.elapsed() >= COUNT_INTERVAL);
        if self.manner == Manner::Counting && self.thinks && is_due {
            self.output.status(&format!("thinking, {} tokens", self.n_thought));
            self.counted = Some(Instant::now());
        }
        Ok(())
    }

    /// Words for the user go to stdout as they come, the rest to stderr for those who ask.
    pub(super) fn take(&mut self, event: AnswerEvent) -> anyhow::Result<()> {
        match event {
            _ if self.is_over => {}
            AnswerEvent::Started { purpose, .. } => {
                self.messages.push((purpose, String::new()));
                self.thinks = purpose == Purpose::Reasoning;
                if self.has_words && purpose.is_for_user() && self.manner != Manner::Json {
                    self.output.text("\n")?;
                }
            }
            AnswerEvent::Text(text) => {
                let Some((purpose, said)) = self.messages.last_mut() else { return Ok(()) };
                *said += &text;
                let purpose = *purpose;
                if purpose.is_for_user() && self.manner != Manner::Json {
                    self.end_thoughts();
                    self.output.text(&text)?;
                    self.has_words = true;
                } else if purpose == Purpose::Reasoning && self.manner == Manner::Thinking {
                    self.output.dimmed(&text);
                    self.has_open_thoughts = true;
                }
            }
            AnswerEvent::Ended { .. } => {
                self.thinks = false;
                self.n_messages = self.messages.len();
                let Some((purpose, said)) = self.messages.last() else { return Ok(()) };
                if *purpose == Purpose::Reasoning && self.manner != Manner::Thinking {
                    self.output.detail(&format!("[analysis] {said}"));
                }
                self.is_over = *purpose == Purpose::Answer;
            }
        }
        Ok(())
    }

    /// Leaves the screen to words.
    fn end_thoughts(&mut self) {
        if self.counted.take().is_some() {
            self.output.status("");
        }
        if std::mem::take(&mut self.has_open_thoughts) {
            self.output.dimmed("\n");
        }
    }

    pub(super) fn end(&mut self) -> anyhow::Result<()> {
        self.end_thoughts();
        if self.manner != Manner::Json {
            return Ok(self.output.text("\n")?);
        }
        let of = |is_wanted: &dyn Fn(Purpose) -> bool| {
            let complete = self.messages.iter().take(self.n_messages);
            let matching = complete.filter(|(purpose, _)| is_wanted(*purpose));
            matching.map(|(_, said)| said.as_str()).collect::<Vec<_>>().join("\n")
        };
        self.output.json(&json!({
            "schema": 1,
            "mode": "chat",
            "text": of(&Purpose::is_for_user),
            "analysis": of(&|purpose| purpose == Purpose::Reasoning),
            "new_tokens": self.n_tokens,
        }))?;
        Ok(())
    }
}
