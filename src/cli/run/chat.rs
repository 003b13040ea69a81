//! `run -m chat`: a conversation, in the format of the checkpoint's chat template or OpenAI's harmony; answers are
//! harmony.
//!
//! The first message is `-i` or the first line of stdin, every further line is another; the end of stdin ends the
//! conversation. Only the assistant's final words are printed; its analysis is shown with `--verbose`.

use std::io::{BufRead, IsTerminal, stdin};

use anyhow::Context;
use serde_json::json;

use super::{Args, ChatFormat};
use crate::bounded_process::this_program;
use crate::chat_template::ChatTemplate;
use crate::cli::model::kernel_counts;
use crate::cli::output::Output;
use crate::cli::usage::UsageError;
use crate::engine::{Engine, Sizes};
use crate::error::Hint;
use crate::harmony::parser::Event as Parsed;
use crate::harmony::{Channel, Harmony, Message, Reasoning, Role, SystemMessage, developer_text, today};
use crate::scheduler::{Event, Request};
use crate::tokenizer::Tokenizer;

/// Talks until stdin ends.
pub(super) fn run(args: &Args, output: &Output) -> anyhow::Result<()> {
    let first = args.input.as_ref().map(|text| text.to_str().ok_or_else(not_utf8)).transpose()?;
    let checkpoint = args.model.open(output)?;
    let tokenizer = args.model.tokenizer(&args.tokenizer, &checkpoint)?;
    let harmony = Harmony::new(tokenizer.clone())?;
    let template = match args.chat_format {
        ChatFormat::Checkpoint => checkpoint.origin.chat_template.as_deref().map(compiled).transpose()?,
        ChatFormat::Harmony => None,
    };
    let capacity_tokens = args.steps(&checkpoint.config);
    let sizes = Sizes { n_slots: 1, capacity_tokens, max_logit_rows: 1 };
    let engine = args.load(&checkpoint, sizes, output)?;
    let mut stop = args.stop_ids(&tokenizer)?;
    stop.extend(harmony.stop_ids());

    let conversation = opening(args, template.is_some());
    let mut chat = Chat { args, output, tokenizer, harmony, template, engine, stop, conversation, n_turns: 0 };
    if let Some(text) = first {
        chat.turn(text)?;
    }
    let prompts = stdin().is_terminal() && !output.is_json();
    if prompts {
        output.note("one message a line; the end of input (ctrl-d) ends the chat");
    }
    for line in stdin().lock().split(b'\n') {
        let line = line.context("could not read the next message")?;
        // A byte that is no text does not end a conversation.
        chat.turn(String::from_utf8_lossy(&line).trim_end_matches('\r'))?;
    }
    let (from_cache, compiled) = kernel_counts(&chat.engine);
    output.note(&format!("kernels: {from_cache} from cache, {compiled} compiled"));
    super::show_profile(&mut chat.engine, output)
}

/// A template that this program, started again, renders.
fn compiled(source: &str) -> anyhow::Result<ChatTemplate> {
    Ok(ChatTemplate::new(source, &this_program())?)
}

fn not_utf8() -> UsageError {
    UsageError("the first message, given with `-i`, is not UTF-8".into())
}

/// What stands before the first message. The models of OpenAI expect their own system message, and instructions in a
/// developer message; the built-in tiny one was trained on a plain system text, or none. A chat template writes what
/// its model expects.
fn opening(args: &Args, has_template: bool) -> Vec<Message> {
    let given = args.system.as_deref().filter(|text| !text.is_empty());
    if args.model.is_built_in() || has_template {
        return given.map(|text| Message::new(Role::System, text)).into_iter().collect();
    }
    let instructions = given.map(|text| Message::new(Role::Developer, developer_text(text)));
    let system = SystemMessage { current_date: Some(today()), reasoning: Reasoning::default(), has_functions: false };
    std::iter::once(system.message()).chain(instructions).collect()
}

/// The context has no room for another answer.
#[derive(Debug, thiserror::Error)]
#[error("the conversation has {n_tokens} tokens, the context {capacity_tokens}")]
pub(in crate::cli) struct ConversationTooLong {
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
    tokenizer: Tokenizer,
    harmony: Harmony,
    /// The checkpoint's, if it has one; else prompts are written in harmony.
    template: Option<ChatTemplate>,
    engine: Engine,
    stop: Vec<u32>,
    conversation: Vec<Message>,
    n_turns: usize,
}

impl Chat<'_> {
    /// One message and the answer to it.
    ///
    /// # Errors
    /// When the context has no room for it, among others.
    fn turn(&mut self, text: &str) -> anyhow::Result<()> {
        self.conversation.push(Message::new(Role::User, text));
        let prompt = match &self.template {
            Some(template) => template.prompt(&self.conversation, &self.tokenizer)?,
            None => self.harmony.prompt(&self.conversation)?,
        };
        let capacity_tokens = self.engine.kv_layout().capacity_tokens;
        let room = (capacity_tokens + 1).saturating_sub(prompt.len());
        if room == 0 {
            return Err(ConversationTooLong { n_tokens: prompt.len(), capacity_tokens }.into());
        }
        let max_new_tokens = self.args.max_new_tokens.map_or(room, |n| n.min(room));
        let request = Request::new(prompt, max_new_tokens, self.stop.clone(), self.args.sampling(self.n_turns));
        self.n_turns += 1;
        self.answer(request)
    }

    fn answer(&mut self, request: Request) -> anyhow::Result<()> {
        let mut parser = self.harmony.parser();
        let mut answer = Answer::default();
        self.engine.submit(request)?;
        while !self.engine.is_idle() {
            for event in self.engine.step()? {
                let Event::Token { token, .. } = event else { continue };
                answer.n_tokens += 1;
                // `<|endoftext|>` and what `--stop` names end the answer and are no part of it.
                if self.stop.contains(&token) && !self.harmony.stop_ids().contains(&token) {
                    continue;
                }
                for parsed in parser.push(token) {
                    answer.take(parsed, self.output)?;
                }
            }
            if answer.is_over || parser.is_over() {
                self.engine.abort();
            }
        }
        for parsed in parser.finish() {
            answer.take(parsed, self.output)?;
        }
        answer.end(self.output)?;
        self.conversation.extend(answer.messages);
        Ok(())
    }
}

/// What the model says in one turn.
#[derive(Default)]
struct Answer {
    messages: Vec<Message>,
    n_tokens: usize,
    /// Whether words of an earlier message are on the screen.
    has_words: bool,
    /// A final message is complete, even where the model ends it as if more came.
    is_over: bool,
}

impl Answer {
    /// Words for the user go to stdout as they come, the rest to stderr for those who ask.
    fn take(&mut self, parsed: Parsed, output: &Output) -> anyhow::Result<()> {
        match parsed {
            _ if self.is_over => {}
            Parsed::Started(message) => {
                if self.has_words && is_for_user(message.channel.as_ref()) && !output.is_json() {
                    output.text("\n")?;
                }
            }
            Parsed::Text { channel, text } => {
                if is_for_user(channel.as_ref()) && !output.is_json() {
                    output.text(&text)?;
                    self.has_words = true;
                }
            }
            Parsed::Ended { message, .. } => {
                if message.channel == Some(Channel::Analysis) {
                    output.detail(&format!("[analysis] {}", message.text));
                }
                self.is_over = message.channel == Some(Channel::Final);
                self.messages.push(message);
            }
        }
        Ok(())
    }

    fn end(&self, output: &Output) -> anyhow::Result<()> {
        if !output.is_json() {
            return Ok(output.text("\n")?);
        }
        let of = |wanted: &dyn Fn(Option<&Channel>) -> bool| {
            let matching = self.messages.iter().filter(|message| wanted(message.channel.as_ref()));
            matching.map(|message| message.text.as_str()).collect::<Vec<_>>().join("\n")
        };
        output.json(&json!({
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
fn is_for_user(channel: Option<&Channel>) -> bool {
    !matches!(channel, Some(Channel::Analysis | Channel::Commentary))
}
