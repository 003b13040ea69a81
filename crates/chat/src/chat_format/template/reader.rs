//! The text of an answer as it comes: what is thought, what is said, and which tools are called.
//!
//! What may be the beginning of a mark is held back until more text decides it, and so are blanks that may stand before
//! one. A call is told when it is whole: one that turns out to be none is words like others, and nothing of it is lost.

use std::sync::Arc;

use super::call::{Call, CallReader, Reading, Scan};
use super::markup::{CallMarks, Markup};
use crate::Tool;

/// A piece of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Thought(String),
    /// What is thought ends here.
    ThoughtEnds,
    Words(String),
    Call(Call),
}

#[derive(Clone, Debug)]
pub(super) struct Reader {
    markup: Arc<Markup>,
    /// Those that may be called.
    tools: Arc<[Tool]>,
    /// What is not decided.
    pending: String,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// Where nothing was said yet, and thoughts may begin.
    Start,
    Thoughts {
        /// Blanks before them are not theirs.
        are_new: bool,
    },
    /// Where a call may begin without a mark.
    Between {
        after: After,
    },
    Words,
    Call(Scan),
}

/// What was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Nothing,
    Thoughts,
    Call,
}

impl Reader {
    pub(crate) fn new(markup: Arc<Markup>, tools: Arc<[Tool]>, in_thoughts: bool) -> Self {
        let state = if in_thoughts { State::Thoughts { are_new: true } } else { State::Start };
        Self { markup, tools, pending: String::new(), state }
    }

    pub(crate) fn is_thinking(&self) -> bool {
        matches!(self.state, State::Thoughts { .. })
    }

    /// Whether anything but words is looked for.
    pub(crate) fn has_marks(&self) -> bool {
        self.markup.reasoning.is_some() || self.calls(&self.markup).is_some()
    }

    pub(crate) fn push(&mut self, text: &str) -> Vec<Piece> {
        self.pending += text;
        self.pieces(false)
    }

    /// What is left when no more text comes.
    pub(crate) fn finish(&mut self) -> Vec<Piece> {
        self.pieces(true)
    }

    /// Marks of calls, where some may come.
    fn calls<'m>(&self, markup: &'m Markup) -> Option<&'m CallMarks> {
        markup.calls.as_ref().filter(|_| !self.tools.is_empty())
    }

    fn pieces(&mut self, is_all: bool) -> Vec<Piece> {
        let mut pieces = Vec::new();
        while !self.pending.is_empty() {
            let goes_on = match self.state.clone() {
                State::Start => self.start(is_all),
                State::Thoughts { are_new } => self.thoughts(are_new, is_all, &mut pieces),
                State::Between { after } => self.between(after, is_all),
                State::Words => self.words(is_all, &mut pieces),
                State::Call(scan) => self.call(scan, is_all, &mut pieces),
            };
            if !goes_on {
                break;
            }
        }
        pieces
    }

    fn start(&mut self, is_all: bool) -> bool {
        let markup = Arc::clone(&self.markup);
        if let Some(marks) = &markup.reasoning {
            let text = self.pending.trim_start();
            if let Some(behind) = text.strip_prefix(&marks.begin) {
                self.pending = behind.to_owned();
                self.state = State::Thoughts { are_new: true };
                return true;
            }
            if !is_all && marks.begin.starts_with(text) {
                return false;
            }
        }
        self.state = State::Between { after: After::Nothing };
        true
    }

    fn thoughts(&mut self, are_new: bool, is_all: bool, pieces: &mut Vec<Piece>) -> bool {
        let markup = Arc::clone(&self.markup);
        let end = markup.reasoning.as_ref().map_or("", |marks| marks.end.as_str());
        if are_new {
            self.take(self.pending.len() - self.pending.trim_start().len());
        }
        let found = self.pending.find(end).filter(|_| !end.is_empty());
        let n_told = match found {
            Some(at) => self.pending[..at].trim_end().len(),
            None if is_all => self.pending.len(),
            None => self.pending[..self.pending.len() - begun(&self.pending, end)].trim_end().len(),
        };
        if n_told > 0 {
            pieces.push(Piece::Thought(self.pending[..n_told].to_owned()));
        }
        self.take(found.map_or(n_told, |at| at + end.len()));
        if found.is_some() {
            pieces.push(Piece::ThoughtEnds);
            self.state = State::Between { after: After::Thoughts };
            return true;
        }
        if n_told > 0 {
            self.state = State::Thoughts { are_new: false };
        }
        false
    }

    fn between(&mut self, after: After, is_all: bool) -> bool {
        let words = |reader: &mut Self| {
            // Blanks behind thoughts and calls belong to their marks.
            let n_blanks = reader.pending.len() - reader.pending.trim_start().len();
            reader.take(if after == After::Nothing { 0 } else { n_blanks });
            reader.state = State::Words;
            true
        };
        let markup = Arc::clone(&self.markup);
        let Some(marks) = self.calls(&markup) else {
            let is_held = after == After::Thoughts && self.pending.trim_start().is_empty() && !is_all;
            return if is_held { false } else { words(self) };
        };
        if !marks.opens.is_empty() && after != After::Call && self.pending.starts_with(&marks.opens) {
            self.take(marks.opens.len());
            self.state = State::Words;
            return true;
        }
        let mut text = self.pending.trim_start();
        if after == After::Call && !marks.between.is_empty() {
            text = text.strip_prefix(&marks.between).unwrap_or(text).trim_start();
        }
        if text.is_empty() {
            return if is_all { words(self) } else { false };
        }
        let reader = CallReader { marks, tools: &self.tools };
        let is_marked = !marks.begin.is_empty() && text.starts_with(&marks.begin);
        if is_marked || reader.begins_bare(text) == Some(true) {
            self.pending = text.to_owned();
            self.state = State::Call(Scan::default());
            return true;
        }
        let is_open = marks.begin.starts_with(text) || reader.begins_bare(text).is_none();
        if is_open && !is_all { false } else { words(self) }
    }

    fn words(&mut self, is_all: bool, pieces: &mut Vec<Piece>) -> bool {
        let markup = Arc::clone(&self.markup);
        let begin = self.calls(&markup).map_or("", |marks| marks.begin.as_str());
        let found = self.pending.find(begin).filter(|_| !begin.is_empty());
        let n_told = match found {
            Some(at) => self.pending[..at].trim_end().len(),
            None if is_all || begin.is_empty() => self.pending.len(),
            None => self.pending[..self.pending.len() - begun(&self.pending, begin)].trim_end().len(),
        };
        if n_told > 0 {
            pieces.push(Piece::Words(self.pending[..n_told].to_owned()));
        }
        // What stands before a mark comes with it, should it be none.
        self.take(n_told);
        if found.is_some() {
            self.state = State::Call(Scan::default());
        }
        found.is_some()
    }

    fn call(&mut self, mut scan: Scan, is_all: bool, pieces: &mut Vec<Piece>) -> bool {
        let markup = Arc::clone(&self.markup);
        let Some(marks) = self.calls(&markup) else { return false };
        let n_blanks = self.pending.len() - self.pending.trim_start().len();
        let text = &self.pending[n_blanks..];
        match (CallReader { marks, tools: &self.tools }).read(text, &mut scan, is_all) {
            Reading::Whole { calls, len } => {
                self.take(n_blanks + len);
                pieces.extend(calls.into_iter().map(Piece::Call));
                self.state = State::Between { after: After::Call };
                true
            }
            Reading::Open if !is_all => {
                self.state = State::Call(scan);
                false
            }
            Reading::Open | Reading::Malformed => {
                let is_marked = !marks.begin.is_empty() && text.starts_with(&marks.begin);
                let n_first = text.chars().next().map_or(0, char::len_utf8);
                let n_told = n_blanks + if is_marked { marks.begin.len() } else { n_first };
                pieces.push(Piece::Words(self.pending[..n_told].to_owned()));
                self.take(n_told);
                self.state = State::Words;
                true
            }
        }
    }

    fn take(&mut self, n_bytes: usize) {
        self.pending.drain(..n_bytes);
    }
}

/// Bytes at the end of a text with which a mark may begin.
fn begun(text: &str, mark: &str) -> usize {
    let starts = text.char_indices().rev().take(mark.len()).map(|(at, _)| at);
    starts.filter(|&at| mark.starts_with(&text[at..])).map(|at| text.len() - at).max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
