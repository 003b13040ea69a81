//! What the model says in one turn, as it comes.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::cli::output::Output;
use crate::harmony::parser::Event as Parsed;
use crate::harmony::{Channel, Message};

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

pub(super) struct Answer<'a> {
    manner: Manner,
    output: &'a Output,
    messages: Vec<Message>,
    n_tokens: usize,
    /// Tokens of analysis.
    n_thought: usize,
    thinks: bool,
    /// When the count of thoughts was shown last, if it is on the screen.
    counted: Option<Instant>,
    /// Whether words of an earlier message are on the screen.
    has_words: bool,
    /// Whether thoughts are on the screen that no line end follows yet.
    has_open_thoughts: bool,
    /// A final message is complete, even where the model ends it as if more came, or it began to speak for somebody
    /// else.
    is_over: bool,
}

/// A count that changes faster cannot be read.
const COUNT_INTERVAL: Duration = Duration::from_millis(100);

impl<'a> Answer<'a> {
    pub(super) fn new(manner: Manner, output: &'a Output) -> Self {
        Self {
            manner,
            output,
            messages: Vec::new(),
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

    pub(super) fn into_messages(self) -> Vec<Message> {
        self.messages
    }

    /// A token, and what became known with it.
    ///
    /// - `n_thought`: tokens of analysis so far
    pub(super) fn take_token(&mut self, parsed: Vec<Parsed>, n_thought: usize) -> anyhow::Result<()> {
        self.n_tokens += 1;
        for parsed in parsed {
            self.take(parsed)?;
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
    pub(super) fn take(&mut self, parsed: Parsed) -> anyhow::Result<()> {
        match parsed {
            _ if self.is_over => {}
            Parsed::Started(message) => {
                self.thinks = message.channel == Some(Channel::Analysis);
                if self.has_words && is_for_user(message.channel.as_ref()) && self.manner != Manner::Json {
                    self.output.text("\n")?;
                }
            }
            Parsed::Text { channel, text } => {
                if is_for_user(channel.as_ref()) && self.manner != Manner::Json {
                    self.end_thoughts();
                    self.output.text(&text)?;
                    self.has_words = true;
                } else if channel == Some(Channel::Analysis) && self.manner == Manner::Thinking {
                    self.output.dimmed(&text);
                    self.has_open_thoughts = true;
                }
            }
            Parsed::Ended { message, .. } => {
                self.thinks = false;
                if message.channel == Some(Channel::Analysis) && self.manner != Manner::Thinking {
                    self.output.detail(&format!("[analysis] {}", message.text));
                }
                self.is_over = message.channel == Some(Channel::Final);
                self.messages.push(message);
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
        let of = |wanted: &dyn Fn(Option<&Channel>) -> bool| {
            let matching = self.messages.iter().filter(|message| wanted(message.channel.as_ref()));
            matching.map(|message| message.text.as_str()).collect::<Vec<_>>().join("\n")
        };
        self.output.json(&json!({
            "schema": 1,
            "mode": "chat",
            "text": of(&is_for_user),
            "analysis": of(&|channel| channel == Some(&Channel::Analysis)),
            "new_tokens": self.n_tokens,
        }))?;
        Ok(())
    }
}

/// Whether what is said on a channel is for the user to read; a model that forgets the channel means it so.
pub(super) fn is_for_user(channel: Option<&Channel>) -> bool {
    !matches!(channel, Some(Channel::Analysis | Channel::Commentary))
}
