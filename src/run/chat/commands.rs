//! Commands that are typed at the terminal instead of messages.

use std::path::Path;

use anyhow::Context;

use super::{Chat, saved};
use chat::Turn;

/// A command, and what it does.
pub(super) const COMMANDS: [(&str, &str); 9] = [
    ("/help", "list the commands"),
    ("/clear", "start a new conversation"),
    ("/drop N", "forget the oldest N messages and their answers, to make room; without a number, one"),
    ("/save FILE", "write the conversation to a file"),
    ("/load FILE", "continue a conversation from a file"),
    ("/system TEXT", "set the system message; without a text, show it"),
    ("/regenerate", "another answer to the last message"),
    ("/stats", "tokens and times so far"),
    ("/quit", "end the chat, as ctrl-d does"),
];

/// Whether the chat goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    GoOn,
    End,
}

/// The name and the argument of a line that begins as a command does: `/` and one word. `/etc/hosts` is none.
pub(super) fn command(line: &str) -> Option<(&str, &str)> {
    let (name, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let word = name.strip_prefix('/')?;
    let is_word = !word.is_empty() && word.chars().all(|c| c.is_ascii_alphabetic());
    is_word.then_some((name, argument.trim()))
}

impl Chat<'_> {
    /// Does what a command says.
    ///
    /// # Errors
    /// Whatever went wrong; the conversation is then as it was.
    pub(super) fn obey(&mut self, name: &str, argument: &str) -> anyhow::Result<After> {
        let needs_file = || match argument {
            "" => Err(anyhow::anyhow!("`{name}` needs the name of a file")),
            name => Ok(Path::new(name)),
        };
        match name {
            "/help" => self.help(),
            "/quit" | "/exit" => return Ok(After::End),
            "/clear" => {
                self.conversation.clear();
                self.told.context_tokens = 0;
                self.output.aside("forgotten");
            }
            "/drop" => {
                let n = self.drop_oldest(argument)?;
                self.output.aside(&format!("{n} messages forgotten"));
            }
            "/save" => {
                saved::save(needs_file()?, self.system.as_deref(), &self.conversation)?;
                self.output.aside(&format!("{} messages written to `{argument}`", self.conversation.len()));
            }
            "/load" => {
                (self.system, self.conversation) = saved::load(needs_file()?)?;
                self.output.aside(&format!("{} messages read from `{argument}`", self.conversation.len()));
            }
            "/system" if argument.is_empty() => {
                self.output.aside(self.system.as_deref().unwrap_or("nothing was told"));
            }
            "/system" => {
                self.system = Some(argument.to_owned());
                self.output.aside("applies from the next message on");
            }
            "/regenerate" => self.regenerate()?,
            "/stats" => self.stats(),
            _ => anyhow::bail!("there is no command `{name}`: `/help` lists them"),
        }
        Ok(After::GoOn)
    }

    /// Forgets what was said first: so many messages of the user, each with what followed. Gives how many messages that
    /// were.
    fn drop_oldest(&mut self, argument: &str) -> anyhow::Result<usize> {
        let n = match argument {
            "" => 1,
            text => text.parse().context("`/drop` takes a number of messages")?,
        };
        let is_users = |(i, turn): (usize, &Turn)| matches!(turn, Turn::User(_)).then_some(i);
        let begins: Vec<usize> = self.conversation.iter().enumerate().filter_map(is_users).collect();
        if begins.is_empty() {
            anyhow::bail!("there is no message to forget");
        }
        let end = begins.get(n).copied().unwrap_or(self.conversation.len());
        Ok(self.conversation.drain(..end).count())
    }

    fn help(&self) {
        let width = COMMANDS.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, what) in COMMANDS {
            self.output.note(&format!("{name:width$}  {what}"));
        }
        self.output.note(
            "A line that ends in \\ goes on in the next; several lines can be pasted. Ctrl-c stops an answer, ctrl-d ends \
             the chat.",
        );
    }

    fn regenerate(&mut self) -> anyhow::Result<()> {
        let last = self.conversation.iter().rposition(|turn| matches!(turn, Turn::User(_)));
        let Some(last) = last else { anyhow::bail!("there is no message to answer") };
        let before = self.conversation.split_off(last + 1);
        let answered = self.answer();
        if answered.is_err() {
            self.conversation.extend(before);
        }
        answered
    }

    fn stats(&self) {
        let told = &self.told;
        let rate = told.new_tokens as f64 / told.seconds.max(1e-9);
        let layout = self.engine.kv_layout();
        self.output.note(&format!(
            "{} answers: {} tokens in {:.1} s, {rate:.1} tok/s\n{} tokens of prompts, of which {} were there already\n\
             {} of {} tokens in the context",
            self.n_answers,
            told.new_tokens,
            told.seconds,
            told.prompt_tokens,
            told.cached_tokens,
            told.context_tokens,
            layout.capacity_tokens,
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_a_slash_and_one_word() {
        assert_eq!(command("/save a b.json "), Some(("/save", "a b.json")));
        assert_eq!(command("/help"), Some(("/help", "")));
        assert_eq!(command("/system Be\nkind"), Some(("/system", "Be\nkind")));
        assert_eq!(command("/system\nBe"), Some(("/system", "Be")));
        for message in ["/etc/hosts is what?", "/", "// x", "1/2", "", "/2 is half"] {
            assert_eq!(command(message), None, "{message}");
        }
    }
}
