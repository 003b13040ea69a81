//! `run -m chat`: a conversation in OpenAI's harmony format.
//!
//! The first message is `-i` or the first line of stdin, every further line is another; the end of stdin ends the
//! conversation. Only the assistant's final words are printed; its analysis is shown with `--verbose`.

use std::io::{BufRead, IsTerminal, stdin};

use anyhow::Context;
use serde_json::json;

use super::Args;
use crate::cli::model::{Sizes, kernel_counts};
use crate::cli::output::Output;
use crate::cli::report::UsageError;
use crate::engine::Engine;
use crate::harmony::parser::Event as Parsed;
use crate::harmony::{Channel, Harmony, Message, Reasoning, Role, SystemMessage, developer_text, today};
use crate::scheduler::{Event, Request};

/// Talks until stdin ends or the context is full.
pub(super) fn run(args: &Args, output: &Output) -> anyhow::Result<()> {
    let first = args.input.as_ref().map(|text| text.to_str().ok_or_else(not_utf8)).transpose()?;
    let checkpoint = args.model.open(output)?;
    let tokenizer = args.model.tokenizer(&args.tokenizer, &checkpoint.config)?;
    let harmony = Harmony::new(tokenizer.clone())?;
    let capacity_tokens = args.steps(&checkpoint.config);
    let sizes = Sizes { n_slots: 1, capacity_tokens, max_logit_rows: 1 };
    let engine = args.load(&checkpoint, sizes, output)?;
    let mut stop = args.stop_ids(&tokenizer)?;
    stop.extend(harmony.stop_ids());

    let mut chat = Chat { args, output, harmony, engine, stop, conversation: opening(args), n_turns: 0 };
    if let Some(text) = first
        && !chat.turn(text)?
    {
        return Ok(());
    }
    let prompts = stdin().is_terminal() && !output.is_json();
    if prompts {
        output.note("one message a line; the end of input (ctrl-d) ends the chat");
    }
    for line in stdin().lock().split(b'\n') {
        let line = line.context("could not read the next message")?;
        // A byte that is no text does not end a conversation.
        if !chat.turn(String::from_utf8_lossy(&line).trim_end_matches('\r'))? {
            break;
        }
    }
    super::show_profile(&chat.engine, output);
    let (from_cache, compiled) = kernel_counts(&chat.engine);
    output.note(&format!("kernels: {from_cache} from cache, {compiled} compiled"));
    Ok(())
}

fn not_utf8() -> UsageError {
    UsageError("the first message, given with `-i`, is not UTF-8".into())
}

/// What stands before the first message. The models of OpenAI expect their own system message, and instructions in a
/// developer message; the built-in tiny one was trained on a plain system text, or none.
fn opening(args: &Args) -> Vec<Message> {
    let given = args.system.as_deref().filter(|text| !text.is_empty());
    if args.model.is_built_in() {
        return given.map(|text| Message::new(Role::System, text)).into_iter().collect();
    }
    let instructions = given.map(|text| Message::new(Role::Developer, developer_text(text)));
    let system = SystemMessage { current_date: Some(today()), reasoning: Reasoning::default(), has_functions: false };
    std::iter::once(system.message()).chain(instructions).collect()
}

struct Chat<'a> {
    args: &'a Args,
    output: &'a Output,
    harmony: Harmony,
    engine: Engine,
    stop: Vec<u32>,
    conversation: Vec<Message>,
    n_turns: usize,
}

impl Chat<'_> {
    /// One message and the answer to it. False when the context has no room for it.
    fn turn(&mut self, text: &str) -> anyhow::Result<bool> {
        self.conversation.push(Message::new(Role::User, text));
        let prompt = self.harmony.prompt(&self.conversation)?;
        let capacity_tokens = self.engine.kv_layout().capacity_tokens;
        let room = (capacity_tokens + 1).saturating_sub(prompt.len());
        if room == 0 {
            self.output.warning(&format!(
                "the conversation has {} tokens, the context {capacity_tokens}: start a new one, or allow more with `-n`",
                prompt.len()
            ));
            return Ok(false);
        }
        let max_new_tokens = self.args.max_new_tokens.map_or(room, |n| n.min(room));
        let request =
            Request { prompt, max_new_tokens, stop: self.stop.clone(), sampling: self.args.sampling(self.n_turns) };
        self.n_turns += 1;
        self.answer(request)?;
        Ok(true)
    }

    fn answer(&mut self, request: Request) -> anyhow::Result<()> {
        let mut parser = self.harmony.parser();
        let mut messages = Vec::new();
        let mut n_tokens = 0;
        self.engine.submit(request)?;
        while !self.engine.is_idle() {
            for event in self.engine.step()? {
                let Event::Token { token, .. } = event else { continue };
                n_tokens += 1;
                for parsed in parser.push(token)? {
                    self.show(parsed, &mut messages)?;
                }
            }
            // A final message is the whole answer, even where the model ends it as if more came.
            if messages.iter().any(|message: &Message| message.channel == Some(Channel::Final)) {
                self.engine.abort();
            }
        }
        for parsed in parser.finish() {
            self.show(parsed, &mut messages)?;
        }
        if self.output.is_json() {
            let of = |channel: &Channel| {
                let matching = messages.iter().filter(|m: &&Message| m.channel.as_ref() == Some(channel));
                matching.map(|m| m.text.clone()).collect::<Vec<_>>().join("\n")
            };
            self.output.json(&json!({
                "schema": 1,
                "mode": "chat",
                "text": of(&Channel::Final),
                "analysis": of(&Channel::Analysis),
                "new_tokens": n_tokens,
            }))?;
        } else {
            self.output.text("\n")?;
        }
        self.conversation.extend(messages);
        Ok(())
    }

    /// Final words go to stdout as they come, the rest to stderr for those who ask.
    fn show(&self, parsed: Parsed, messages: &mut Vec<Message>) -> anyhow::Result<()> {
        match parsed {
            Parsed::Text { channel: Some(Channel::Analysis | Channel::Commentary), .. } | Parsed::Started(_) => {}
            Parsed::Text { text, .. } => {
                if !self.output.is_json() {
                    self.output.text(&text)?;
                }
            }
            Parsed::Ended { message, .. } => {
                if message.channel == Some(Channel::Analysis) {
                    self.output.detail(&format!("[analysis] {}", message.text));
                }
                messages.push(message);
            }
        }
        Ok(())
    }
}
