//! Messages typed at a terminal: a prompt mark, lines that can be edited, the history of earlier chats, and commands.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::Context;
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Editor, Helper};
use signal_hook::consts::SIGINT;

use super::commands::{After, COMMANDS, command};
use super::{Chat, ConversationTooLong};
use hint::Hint;

/// Lines of earlier chats that are kept.
const HISTORY_LINES: usize = 1000;

/// Talks until the input ends.
pub(super) fn talk(chat: &mut Chat<'_>) -> anyhow::Result<()> {
    // However often it comes: whoever is impatient with an answer wants to keep the chat. Ctrl-\ ends it as ever.
    signal_hook::flag::register(SIGINT, Arc::clone(&chat.is_stopped))?;
    let config = Config::builder().max_history_size(HISTORY_LINES)?.history_ignore_space(true).build();
    let mut editor: Editor<Words, FileHistory> = Editor::with_config(config)?;
    editor.set_helper(Some(Words));
    let history = history_file();
    if let Some(path) = &history {
        let _ = editor.load_history(path); // there is none yet
    }
    chat.output
        .note("a message ends with the line; /help lists commands; ctrl-c stops an answer, ctrl-d ends the chat");
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                chat.output.aside("ctrl-d ends the chat");
                continue;
            }
            Err(ReadlineError::Signal(_)) => continue, // the window has another size
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(error).context("could not read the next message"),
        };
        if line.trim().is_empty() {
            continue;
        }
        chat.is_stopped.store(false, Ordering::Relaxed); // what comes from here on is meant for the answer
        let _ = editor.add_history_entry(line.as_str());
        if let Some(path) = &history {
            // Now, since nobody knows how the chat ends. Whoever cannot keep lines can talk all the same.
            let _ = editor.append_history(path);
        }
        if take(chat, &line.replace("\\\n", "\n"))? == After::End {
            break;
        }
    }
    Ok(())
}

/// Takes a command or a message. Its error is printed, and the chat goes on.
fn take(chat: &mut Chat<'_>, line: &str) -> anyhow::Result<After> {
    let taken = match command(line) {
        Some((name, argument)) => chat.obey(name, argument),
        None => chat.turn(line).map(|()| After::GoOn),
    };
    let error = match taken {
        Ok(after) => return Ok(after),
        Err(error) => error,
    };
    // An engine that failed does not answer the next message either.
    if error
        .chain()
        .any(|cause| cause.is::<engine::EngineError>() || cause.is::<std::io::Error>() && command(line).is_none())
    {
        return Err(error);
    }
    chat.output.error(&error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": "));
    if let Some(too_long) = error.downcast_ref::<ConversationTooLong>() {
        let hint = too_long.hint().unwrap_or_default();
        chat.output.aside(&format!("the message was not sent: shorten it, `/drop` the oldest messages, or {hint}"));
    }
    Ok(After::GoOn)
}

/// Where lines of earlier chats are kept, for their owner alone to read.
fn history_file() -> Option<PathBuf> {
    let folder = dirs::state_dir().or_else(dirs::data_local_dir)?.join("gptoss-jit");
    fs::create_dir_all(&folder).ok()?;
    Some(folder.join("chat_history"))
}

/// Completes commands, and asks for more after a line that ends in `\`.
struct Words;

impl Helper for Words {}

impl Highlighter for Words {}

impl Hinter for Words {
    type Hint = String;
}

impl Validator for Words {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let goes_on = context.input().ends_with('\\');
        Ok(if goes_on { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

impl Completer for Words {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &rustyline::Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let begun = &line[..position];
        let names = COMMANDS.iter().map(|(usage, _)| usage.split(' ').next().unwrap_or_default());
        let matching = names.filter(|name| begun.starts_with('/') && name.starts_with(begun));
        Ok((0, matching.map(|name| Pair { display: name.into(), replacement: name.into() }).collect()))
    }
}
