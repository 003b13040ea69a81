//! Splits an answer's text, as it arrives, into reasoning, content and tool calls.
//!
//! Text that may begin a marker is held back until more text decides, and so are blanks before it. Arguments of an
//! offered tool are streamed as far as they are JSON; other calls are sent when they are complete. Nothing is lost or
//! sent twice: text that turns out not to be a call becomes content. If arguments break, or lack their end, the rest
//! becomes content; the call stays, because streamed parts cannot be taken back and clients check arguments.

use std::sync::Arc;

use serde::de::IgnoredAny;

use super::call::{Call, CallHead, CallReader, Reading, Scan};
use super::json_prefix::{JsonPrefix, PrefixEnd};
use super::markup::{CallMarks, Markup, Shape};
use crate::Tool;

/// A piece of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Thought(String),
    /// The reasoning ends here.
    ThoughtEnds,
    Words(String),
    Call(Call),
    /// A call whose arguments follow, of this name.
    CallBegins(String),
    Arguments(String),
    CallEnds {
        /// Its arguments are no whole object.
        is_unfinished: bool,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Reader {
    markup: Arc<Markup>,
    /// The tools that may be called.
    tools: Arc<[Tool]>,
    /// Text that is not decided yet.
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
    Call {
        scan: Scan,
        around: Around,
    },
    Arguments {
        json: JsonPrefix,
        around: Around,
    },
    /// After the arguments of a streamed call.
    Tail {
        scan: Scan,
        around: Around,
    },
}

/// The text around a call.
#[derive(Clone, Copy, Debug, Default)]
struct Around {
    is_marked: bool,
    in_list: bool,
    /// The object with its name is open.
    in_object: bool,
    /// The call is sent only when it is complete.
    is_untold: bool,
}

impl State {
    fn call(around: Around) -> Self {
        Self::Call { scan: Scan::default(), around }
    }
}

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
        let mut pieces = self.pieces(true);
        if matches!(self.state, State::Arguments { .. }) {
            pieces.push(Piece::CallEnds { is_unfinished: true });
            self.state = State::Words;
        }
        pieces
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
                State::Call { scan, around } => self.call(scan, around, is_all, &mut pieces),
                State::Arguments { json, around } => self.arguments(json, around, &mut pieces),
                State::Tail { scan, around } => self.tail(scan, around, is_all),
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
            // Blanks after thoughts and calls belong to their marks.
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
            self.state = State::call(Around::default());
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
            self.state = State::call(Around::default());
        }
        found.is_some()
    }

    fn call(&mut self, mut scan: Scan, mut around: Around, is_all: bool, pieces: &mut Vec<Piece>) -> bool {
        let markup = Arc::clone(&self.markup);
        let Some(marks) = self.calls(&markup) else { return false };
        let n_blanks = self.pending.len() - self.pending.trim_start().len();
        let text = &self.pending[n_blanks..];
        let reader = CallReader { marks, tools: &self.tools };
        if !around.is_untold {
            match reader.head(text) {
                CallHead::Open => {}
                CallHead::None => around.is_untold = true,
                CallHead::Named(name, at) => {
                    let is_marked = !marks.begin.is_empty() && text.starts_with(&marks.begin);
                    let json = if is_marked { &text[marks.begin.len()..] } else { text };
                    around.is_marked |= is_marked;
                    around.in_list |= marks.shape == Shape::List && json.trim_start().starts_with('[');
                    around.in_object = matches!(marks.shape, Shape::Object | Shape::List);
                    self.take(n_blanks + at);
                    pieces.push(Piece::CallBegins(name));
                    self.state = State::Arguments { json: JsonPrefix::default(), around };
                    return true;
                }
            }
        }
        match reader.read(text, &mut scan, is_all) {
            Reading::Whole { calls, len } => {
                self.take(n_blanks + len);
                pieces.extend(calls.into_iter().map(Piece::Call));
                self.state = if around.in_list {
                    State::Tail { scan: Scan::default(), around: Around { in_object: false, ..around } }
                } else {
                    State::Between { after: After::Call }
                };
                true
            }
            Reading::Open if !is_all => {
                self.state = State::Call { scan, around };
                false
            }
            Reading::Open | Reading::Malformed => {
                let is_marked = !marks.begin.is_empty() && text.starts_with(&marks.begin);
                let n_first = text.chars().next().map_or(0, char::len_utf8);
                let n_told = n_blanks + if is_marked { marks.begin.len() } else { n_first };
                // Of a list, calls were told before.
                let comma = if around.in_list { "," } else { "" };
                pieces.push(Piece::Words([comma, &self.pending[..n_told]].concat()));
                self.take(n_told);
                self.state = State::Words;
                true
            }
        }
    }

    fn arguments(&mut self, mut json: JsonPrefix, around: Around, pieces: &mut Vec<Piece>) -> bool {
        let (n_bytes, end) = json.read(&self.pending);
        if n_bytes > 0 {
            pieces.push(Piece::Arguments(self.pending[..n_bytes].to_owned()));
        }
        self.take(n_bytes);
        self.state = match end {
            PrefixEnd::Open => State::Arguments { json, around },
            PrefixEnd::Whole => State::Tail { scan: Scan::in_object(), around },
            PrefixEnd::Wrong => State::Words,
        };
        if end != PrefixEnd::Open {
            pieces.push(Piece::CallEnds { is_unfinished: end == PrefixEnd::Wrong });
        }
        end != PrefixEnd::Open
    }

    /// After a streamed call: the rest of its object, the next call of a list, or the end marker. Anything else is
    /// text.
    fn tail(&mut self, mut scan: Scan, mut around: Around, is_all: bool) -> bool {
        let markup = Arc::clone(&self.markup);
        let Some(marks) = self.calls(&markup) else { return false };
        let n_blanks = self.pending.len() - self.pending.trim_start().len();
        let (text, first) = (&self.pending[n_blanks..], self.pending[n_blanks..].chars().next());
        if around.in_object && matches!(first, Some('}' | ',')) {
            let Some(end) = scan.end_of_json(&self.pending, 0) else {
                self.state = if is_all { State::Words } else { State::Tail { scan, around } };
                return is_all;
            };
            let whole = ["{\"\":0", &self.pending[..end]].concat();
            if serde_json::from_str::<IgnoredAny>(&whole).is_err() {
                self.state = State::Words;
                return true;
            }
            self.take(end);
            around.in_object = false;
            self.state = State::Tail { scan: Scan::default(), around };
            return true;
        }
        let goes_on = match first {
            None if is_all => false,
            None => {
                self.state = State::Tail { scan, around };
                return false;
            }
            Some(_) => !around.in_object,
        };
        let is_marked_end = around.is_marked && !marks.end.is_empty();
        self.state = match first {
            Some(',') if goes_on && around.in_list => {
                self.take(n_blanks + 1);
                State::call(Around { is_untold: false, ..around })
            }
            Some(']') if goes_on && around.in_list => {
                self.take(n_blanks + 1);
                State::Tail { scan, around: Around { in_list: false, ..around } }
            }
            Some(_) if goes_on && !around.in_list && !is_marked_end => State::Between { after: After::Call },
            Some(_) if goes_on && !around.in_list && text.starts_with(&marks.end) => {
                self.take(n_blanks + marks.end.len());
                State::Between { after: After::Call }
            }
            Some(_) if goes_on && !around.in_list && marks.end.starts_with(text) => {
                self.state = State::Tail { scan, around };
                if is_all {
                    self.pending.clear();
                }
                return false;
            }
            None if !around.in_object && !around.in_list => State::Between { after: After::Call },
            _ => State::Words,
        };
        true
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
