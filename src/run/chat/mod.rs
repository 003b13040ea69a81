//! `run -m chat`: a conversation, in the model's chat format.
//!
//! At a terminal, [`terminal`] reads the messages. Elsewhere the first message is `-i` or the first line of stdin,
//! every further line is another, and the end of stdin ends the conversation. Only the assistant's final words are
//! printed; its reasoning is shown with `--verbose` or `--show-reasoning`.

mod answer;
mod commands;
mod saved;
mod terminal;

use std::io::{BufRead, IsTerminal, stdin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Context;

use super::{Args, Mode};
use crate::args::{Room, kernel_counts};
use crate::output::Output;
use crate::text_input;
use crate::usage::UsageError;
use answer::{AnswerPrinter, Manner};
use batch::prompter::Prompter;
use chat::chat_format::{self, Begun};
use chat::{AssistantMessage, MessagePart, Phase, Turn, today};
use engine::scheduler::{Event, Request, Sampling};
use engine::{Engine, Sizes};
use hint::Hint;

/// Flags of chat alone.
#[derive(clap::Args, Debug)]
pub(crate) struct ChatArgs {
    /// Show the model's reasoning, dimmed (chat)
    #[arg(long)]
    pub(crate) show_reasoning: bool,
}

/// Talks until the input ends.
pub(super) fn run(args: &Args, output: &Output) -> anyhow::Result<()> {
    let first = args.input.as_ref().map(|text| text.to_str().ok_or_else(not_utf8)).transpose()?;
    let is_at_terminal = stdin().is_terminal() && !output.is_json();
    let mut chat = Chat::new(args, is_at_terminal, output)?;
    if let Some(text) = first {
        chat.turn(text)?;
    }
    if is_at_terminal {
        terminal::talk(&mut chat)?;
    } else {
        for (i, line) in stdin().lock().split(b'\n').enumerate() {
            let mut line = line.context("could not read the next message")?;
            if i == 0 && line.len() > 2 {
                line = text_input::plain(line, "the first message")?;
            }
            // A byte that is no text does not end a conversation.
            chat.turn(String::from_utf8_lossy(&line).trim_end_matches('\r'))?;
        }
    }
    let kernels = kernel_counts(&chat.engine);
    let device = chat.engine.executor().pipeline().driver().describe();
    output.note(&format!("on {device}; kernels: {kernels}"));
    super::show_profile(&mut chat.engine, output)
}

fn not_utf8() -> UsageError {
    UsageError("the first message, given with `-i`, is not UTF-8".into())
}

/// The context has no room for another answer.
#[derive(Debug, thiserror::Error)]
#[error("the conversation has {n_tokens} tokens, the context {capacity_tokens}")]
pub(crate) struct ConversationTooLong {
    n_tokens: usize,
    capacity_tokens: usize,
}

impl Hint for ConversationTooLong {
    fn hint(&self) -> Option<String> {
        Some("start a new one, or allow more with `-n`".into())
    }
}

struct Chat<'a> {
    args: &'a Args,
    output: &'a Output,
    prompter: Prompter,
    engine: Engine,
    stop: Vec<u32>,
    manner: Manner,
    is_at_terminal: bool,
    /// The answer that is being written was stopped.
    is_stopped: Arc<AtomicBool>,
    /// The system message of `--system`, `/system` or a loaded conversation.
    system: Option<String>,
    conversation: Vec<Turn>,
    /// Answers so far: each draws from random numbers of its own.
    n_answers: usize,
    seed: u64,
    told: ChatStats,
}

/// What `/stats` tells.
#[derive(Debug, Default)]
struct ChatStats {
    prompt_tokens: usize,
    cached_tokens: usize,
    new_tokens: usize,
    seconds: f64,
    /// Tokens of the conversation, as the last prompt had it and with the answer to it.
    context_tokens: usize,
}

impl<'a> Chat<'a> {
    fn new(args: &'a Args, is_at_terminal: bool, output: &'a Output) -> anyhow::Result<Self> {
        let checkpoint = args.model.open(output)?;
        let tokenizer = args.model.tokenizer(&args.tokenizer, &checkpoint)?;
        let mut stop = args.stop_ids(&checkpoint, &tokenizer)?;
        let prompter = args.prompter(&checkpoint, tokenizer, &today(), Mode::Chat)?;
        stop.extend(prompter.chat()?.stop_ids());
        let sizes = |n_tokens: usize| Sizes { n_slots: 1, capacity_tokens: n_tokens, max_logit_rows: 1 };
        let all = checkpoint.config.max_seq_len;
        // Without `-n` as much as the model allows, if the memory holds that.
        let fitting = |room: &Room<'_>| match args.steps {
            Some(_) => sizes(args.steps(&checkpoint.config)),
            None => sizes(Room::largest(all, |n_tokens| room.holds(sizes(n_tokens)))),
        };
        let engine = args.load_sized(&checkpoint, fitting, output)?;
        let manner = match (output.is_json(), is_at_terminal, args.chat.show_reasoning) {
            (true, ..) => Manner::Json,
            (_, _, true) => Manner::Thinking,
            (_, true, false) => Manner::Counting,
            (_, false, false) => Manner::Plain,
        };
        Ok(Self {
            args,
            output,
            prompter,
            engine,
            stop,
            manner,
            is_at_terminal,
            is_stopped: Arc::default(),
            system: args.system.clone().filter(|text| !text.is_empty()),
            conversation: Vec::new(),
            n_answers: 0,
            seed: args.first_seed(),
            told: ChatStats::default(),
        })
    }

    /// One message and the answer to it.
    ///
    /// # Errors
    /// When the context has no room for it, among others; the conversation is then as it was.
    fn turn(&mut self, text: &str) -> anyhow::Result<()> {
        self.conversation.push(Turn::User(text.to_owned()));
        let answered = self.answer();
        if answered.is_err() {
            self.conversation.pop();
        }
        answered
    }

    /// The answer to what was said last.
    fn answer(&mut self) -> anyhow::Result<()> {
        let system = self.system.iter().map(|text| Turn::System(text.clone()));
        let messages: Vec<Turn> = system.chain(self.conversation.iter().cloned()).collect();
        let chat_format::Prompt { ids: prompt, begun } = self.prompter.prompt(&messages, self.args.reasoning)?;
        let capacity_tokens = self.engine.kv_layout().capacity_tokens;
        let room = (capacity_tokens + 1).saturating_sub(prompt.len());
        if room == 0 {
            return Err(ConversationTooLong { n_tokens: prompt.len(), capacity_tokens }.into());
        }
        let max_new_tokens = self.args.max_new_tokens.map_or(room, |n| n.min(room));
        let usual = if self.is_at_terminal { Sampling::ADVISED } else { super::AS_SEEDS };
        let sampling = self.args.sampling_or(usual, self.seed.wrapping_add(self.n_answers as u64));
        self.n_answers += 1;
        self.generate(Request::new(prompt, max_new_tokens, self.stop.clone(), sampling), begun)
    }

    fn generate(&mut self, request: Request, begun: Begun) -> anyhow::Result<()> {
        let (start, n_prompt) = (Instant::now(), request.prompt.len());
        let (mut first_s, mut n_cached) = (0.0, 0);
        let mut parser = self.prompter.chat()?.answer(begun, false);
        let waits = self.prompter.chat()?.stop_ids().to_vec();
        let mut answer = AnswerPrinter::new(self.manner, self.output);
        self.engine.submit(request)?;
        while !self.engine.is_idle() {
            for event in self.engine.step()? {
                let token = match event {
                    Event::Token { token, .. } => token,
                    Event::Admitted { cached_tokens, .. } => {
                        n_cached = cached_tokens;
                        continue;
                    }
                    Event::Finished { .. } | Event::PromptToken { .. } => continue,
                };
                if answer.n_tokens() == 0 {
                    first_s = start.elapsed().as_secs_f64();
                }
                // The vocabulary's ends and what `--stop` names end the answer and are no part of it.
                let is_silent = self.stop.contains(&token) && !waits.contains(&token);
                let parsed = if is_silent { Vec::new() } else { parser.push(token) };
                answer.take_token(parsed, parser.n_reasoning_tokens())?;
            }
            if answer.is_over() || parser.is_over() || self.is_stopped.load(Ordering::Relaxed) {
                self.engine.abort();
            }
        }
        let is_stopped = self.is_stopped.swap(false, Ordering::Relaxed);
        for parsed in parser.finish() {
            answer.take(parsed)?;
        }
        answer.end()?;
        let (n_tokens, n_thought) = (answer.n_tokens(), answer.n_thought());
        let seconds = start.elapsed().as_secs_f64();
        self.told.prompt_tokens += n_prompt;
        self.told.cached_tokens += n_cached;
        self.told.new_tokens += n_tokens;
        self.told.seconds += seconds;
        self.told.context_tokens = n_prompt + n_tokens;
        let mut messages = parser.messages()?;
        messages.truncate(answer.n_messages());
        // Thoughts that led to no words would be read as those before the next answer.
        if !is_stopped || messages.iter().any(is_for_user) {
            self.conversation.extend(messages.into_iter().map(Turn::Assistant));
        }
        if self.is_at_terminal {
            let thought = if n_thought > 0 { format!(", {n_thought} of them thought") } else { String::new() };
            let rate = n_tokens as f64 / seconds.max(1e-9);
            let stopped = if is_stopped { "stopped; " } else { "" };
            self.output.aside(&format!(
                "{stopped}{n_tokens} tokens{thought}, {rate:.1} tok/s, the first after {first_s:.2} s; {} of {} in the context",
                self.told.context_tokens,
                self.engine.kv_layout().capacity_tokens,
            ));
        }
        Ok(())
    }
}

/// Whether a message is for the user to read.
fn is_for_user(made: &AssistantMessage) -> bool {
    !matches!(made.part, MessagePart::Reasoning(_) | MessagePart::Content { phase: Some(Phase::Commentary), .. })
}
