//! Turns a model's output, token by token, into messages.
//!
//! A sampled model can write anything, so nothing here is an error. Violations of the format are read as they were most
//! likely meant, and counted ([`Repair`]); special tokens never become text. After the message that ends a turn the
//! parser is [over](HarmonyParser::is_over).

use std::mem;

use super::header::{Beginning, Fields, Header, Mark};
use super::{Channel, Harmony, Message, MessageKind, Role};
use model::tokenizer::stream::TextStream;

/// Something that became known with a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParserEvent {
    /// A header is complete: the message has everything but its text.
    Started(Message),
    /// The next whole characters of the message that was started last.
    Text {
        /// The channel of that message.
        channel: Option<Channel>,
        text: String,
    },
    /// A message is complete.
    Ended { message: Message, ending: Ending },
}

/// What ended a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// `<|end|>`: the model goes on with another message.
    End,
    /// `<|return|>` or `<|endoftext|>`: the answer is complete.
    Return,
    /// `<|call|>`: the model waits for a tool.
    Call,
    /// The output, or another message, which began without an end of this one.
    Unfinished,
}

/// What was read otherwise than it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Repair {
    /// A message begins without `<|start|>`.
    MissingStart,
    /// A header is followed by its text, or nothing, without `<|message|>`.
    MissingMessage,
    /// A message is followed by `<|start|>` without an end.
    MissingEnd,
    /// A misplaced special token in a text; `<|channel|>` and `<|message|>` begin a header there.
    MarkInText,
    /// The name of a special token is spelled in ordinary ones, in a header.
    SpelledMark,
    /// A header has several channels: the last counts.
    SecondChannel,
    /// A channel is none of the format's.
    OddChannel,
    /// A header has several recipients: the last counts.
    SecondRecipient,
    /// A message's recipient is not a tool.
    OddRecipient,
    /// A header has words too many.
    OddWords,
    /// The arguments of a call are empty: they are taken for `{}`.
    EmptyArguments,
    /// The model speaks for the user or a tool: the turn ends before that.
    OtherSpeaker,
    /// Tokens after the end of the turn, which are ignored; they count once.
    AfterEnd,
    /// An id that the vocabulary does not have, which is ignored.
    UnknownToken,
}

impl Repair {
    pub(crate) const ALL: [Self; 14] = [
        Self::MissingStart,
        Self::MissingMessage,
        Self::MissingEnd,
        Self::MarkInText,
        Self::SpelledMark,
        Self::SecondChannel,
        Self::OddChannel,
        Self::SecondRecipient,
        Self::OddRecipient,
        Self::OddWords,
        Self::EmptyArguments,
        Self::OtherSpeaker,
        Self::AfterEnd,
        Self::UnknownToken,
    ];

    /// As metrics name it: `missing_start`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::MissingStart => "missing_start",
            Self::MissingMessage => "missing_message",
            Self::MissingEnd => "missing_end",
            Self::MarkInText => "mark_in_text",
            Self::SpelledMark => "spelled_mark",
            Self::SecondChannel => "second_channel",
            Self::OddChannel => "odd_channel",
            Self::SecondRecipient => "second_recipient",
            Self::OddRecipient => "odd_recipient",
            Self::OddWords => "odd_words",
            Self::EmptyArguments => "empty_arguments",
            Self::OtherSpeaker => "other_speaker",
            Self::AfterEnd => "after_end",
            Self::UnknownToken => "unknown_token",
        }
    }
}

/// Parses what a model writes after a prompt that ends in `<|start|>assistant`.
#[derive(Clone, Debug)]
pub struct HarmonyParser {
    harmony: Harmony,
    state: State,
    stream: TextStream,
    /// Whether it reads on after the end of a turn, for any speaker.
    reads_on: bool,
    /// A message that the prompt began and that was not reported yet.
    begun: Option<Message>,
    was_analysis: bool,
    repairs: [usize; Repair::ALL.len()],
    /// Tokens since the last of a message.
    n_pending: usize,
    n_reasoning_tokens: usize,
}

#[derive(Clone, Debug)]
enum State {
    /// After a message: only `<|start|>` is expected.
    Between,
    Header(Header),
    /// In the text of a message.
    Text(Message),
    Over,
}

impl HarmonyParser {
    pub(super) fn new(harmony: Harmony, begun: Option<Message>, reads_on: bool) -> Self {
        let state = State::Header(Header::new(Beginning::Prompt));
        let (stream, repairs) = (TextStream::default(), [0; Repair::ALL.len()]);
        let (was_analysis, n_pending, n_reasoning_tokens) = (false, 0, 0);
        Self { harmony, state, stream, reads_on, begun, was_analysis, repairs, n_pending, n_reasoning_tokens }
    }

    /// Takes the next token.
    pub fn push(&mut self, id: u32) -> Vec<ParserEvent> {
        let mut events = Vec::new();
        self.begin(&mut events);
        self.n_pending += 1;
        let harmony = &self.harmony;
        if matches!(self.state, State::Over) {
            self.repairs[Repair::AfterEnd as usize] = 1;
        } else if id == harmony.start {
            let is_text = matches!(self.state, State::Text(_));
            self.count(Repair::MissingEnd, usize::from(is_text));
            self.end(Ending::Unfinished, &mut events);
            self.turn_to(State::Header(Header::new(Beginning::Start)));
        } else if id == harmony.end {
            self.end(Ending::End, &mut events);
        } else if id == harmony.call {
            self.end(Ending::Call, &mut events);
            self.end_turn();
        } else if id == harmony.end_of_answer || Some(id) == harmony.end_of_text {
            self.end(Ending::Return, &mut events);
            self.end_turn();
        } else if id == harmony.channel {
            self.push_mark(Mark::Channel, &mut events);
        } else if id == harmony.message {
            self.push_mark(Mark::Message, &mut events);
        } else if id == harmony.constrain && matches!(self.state, State::Header(_)) {
            self.push_mark(Mark::Constrain, &mut events);
        } else if harmony.tokenizer.is_special(id) {
            self.repair(Repair::MarkInText);
        } else {
            match harmony.tokenizer.decode(id).map(<[u8]>::to_vec) {
                Ok(piece) => self.push_bytes(&piece, &mut events),
                Err(_) => self.repair(Repair::UnknownToken),
            }
        }
        self.count_reasoning(&events);
        events
    }

    /// Ends the output: a message that is still open is unfinished.
    pub fn finish(&mut self) -> Vec<ParserEvent> {
        let mut events = Vec::new();
        self.begin(&mut events);
        match mem::replace(&mut self.state, State::Over) {
            State::Header(header) if !self.ends_turn(&header, false) => {
                if let Some((fields, text)) = header.end(true) {
                    self.repair(Repair::MissingMessage);
                    self.start(header.beginning, fields, &text, &mut events);
                    self.end_text(Ending::Unfinished, &mut events);
                }
            }
            State::Text(message) => {
                self.state = State::Text(message);
                self.end_text(Ending::Unfinished, &mut events);
            }
            _ => {}
        }
        self.state = State::Over;
        events
    }

    /// Whether the turn is over: the answer is complete, a tool is called, or the model began to speak for others.
    /// Later tokens are ignored.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// The message whose text is being written.
    pub fn open(&self) -> Option<&Message> {
        match &self.state {
            State::Text(message) => Some(message),
            _ => None,
        }
    }

    /// How many tokens so far were analysis, headers and ends included.
    pub fn n_reasoning_tokens(&self) -> usize {
        self.n_reasoning_tokens
    }

    /// What was repaired so far, and how often.
    pub fn repairs(&self) -> impl Iterator<Item = (Repair, usize)> {
        Repair::ALL.into_iter().zip(self.repairs).filter(|&(_, n)| n > 0)
    }

    fn repair(&mut self, repair: Repair) {
        self.count(repair, 1);
    }

    fn count(&mut self, repair: Repair, n: usize) {
        self.repairs[repair as usize] += n;
    }

    /// Tells of the message that the prompt began.
    fn begin(&mut self, events: &mut Vec<ParserEvent>) {
        if let Some(message) = self.begun.take() {
            events.push(ParserEvent::Started(message.clone()));
            self.state = State::Text(message);
        }
    }

    /// Goes on, unless the turn is over.
    fn turn_to(&mut self, state: State) {
        if !matches!(self.state, State::Over) {
            self.state = state;
        }
    }

    fn end_turn(&mut self) {
        if !self.reads_on {
            self.state = State::Over;
        }
    }

    /// Whether a header is another speaker's, whose words the model must not write.
    fn ends_turn(&mut self, header: &Header, is_whole: bool) -> bool {
        let ends = !self.reads_on && header.is_from_others(is_whole);
        self.count(Repair::OtherSpeaker, usize::from(ends));
        ends
    }

    fn count_reasoning(&mut self, events: &[ParserEvent]) {
        let ended = events.iter().find_map(|event| match event {
            ParserEvent::Ended { message, .. } => Some(message),
            _ => None,
        });
        if let Some(message) = ended.or(self.open()) {
            let is_reasoning = message.part() == MessageKind::Reasoning;
            self.n_reasoning_tokens += if is_reasoning { self.n_pending } else { 0 };
            self.n_pending = 0;
        }
    }

    /// The header that is being written. Where there should be none, it begins all the same.
    fn header(&mut self, events: &mut Vec<ParserEvent>) -> &mut Header {
        if matches!(self.state, State::Text(_)) {
            self.repair(Repair::MarkInText);
            self.end(Ending::Unfinished, events);
            self.state = State::Header(Header::new(Beginning::Nothing));
        } else if matches!(self.state, State::Between) {
            self.repair(Repair::MissingStart);
            self.state = State::Header(Header::new(Beginning::Nothing));
        }
        match &mut self.state {
            State::Header(header) => header,
            _ => unreachable!("what is over takes no tokens, and else there is one now"),
        }
    }

    fn push_mark(&mut self, mark: Mark, events: &mut Vec<ParserEvent>) {
        let mut header = self.header(events).clone();
        if self.ends_turn(&header, true) {
            return self.end_turn();
        }
        if let Some((fields, text)) = header.speech() {
            self.repair(Repair::MarkInText);
            self.start(header.beginning, fields, &text, events);
            self.end_text(Ending::Unfinished, events);
            header = Header::new(Beginning::Nothing);
        }
        header.push_mark(mark);
        if mark == Mark::Message {
            let beginning = header.beginning;
            self.start(beginning, header.into_fields(), b"", events);
        } else {
            self.state = State::Header(header);
        }
    }

    /// Takes the bytes of an ordinary token: text of a message, or a part of its header.
    fn push_bytes(&mut self, bytes: &[u8], events: &mut Vec<ParserEvent>) {
        if let State::Text(message) = &mut self.state {
            let text = self.stream.push(bytes);
            return tell_text(message, text, events);
        }
        let header = self.header(events);
        if let Some((mark, behind)) = header.push(bytes) {
            self.repair(Repair::SpelledMark);
            self.push_mark(mark, events);
            if !self.is_over() {
                self.push_bytes(&behind, events);
            }
            return;
        }
        let (text, header) = (header.text_so_far(), header.clone());
        if self.ends_turn(&header, false) {
            self.end_turn();
        } else if let Some((fields, text)) = text {
            self.count(Repair::MissingMessage, 1);
            self.start(header.beginning, fields, &text, events);
        }
    }

    /// Begins a message whose header is complete.
    fn start(&mut self, beginning: Beginning, fields: Fields, text: &[u8], events: &mut Vec<ParserEvent>) {
        let Fields { role, mut channel, mut recipient, content_type, oddities } = fields;
        let role = role.unwrap_or(Role::Assistant);
        self.count(Repair::SecondChannel, oddities.channels);
        self.count(Repair::OddChannel, oddities.channel_names);
        self.count(Repair::SecondRecipient, oddities.recipients);
        self.count(Repair::OddWords, oddities.words);
        if role == Role::Assistant {
            let is_tool = |name: &String| !NO_TOOLS.contains(&name.as_str());
            self.count(Repair::OddRecipient, usize::from(recipient.as_ref().is_some_and(|name| !is_tool(name))));
            recipient = recipient.filter(is_tool);
            if channel.is_none() && recipient.is_none() && beginning == Beginning::Nothing && self.was_analysis {
                channel = Some(Channel::Analysis);
            }
        }
        let mut message = Message { role, channel, recipient, content_type, text: String::new() };
        events.push(ParserEvent::Started(message.clone()));
        let text = self.stream.push(text);
        tell_text(&mut message, text, events);
        self.state = State::Text(message);
    }

    /// The end of a message, if there is one.
    fn end(&mut self, ending: Ending, events: &mut Vec<ParserEvent>) {
        if let State::Header(header) = &self.state {
            let header = header.clone();
            if self.ends_turn(&header, true) {
                return self.end_turn();
            }
            self.state = State::Between;
            let Some((fields, text)) = header.end(false) else { return };
            self.repair(Repair::MissingMessage);
            self.start(header.beginning, fields, &text, events);
        }
        self.end_text(ending, events);
    }

    /// The end of a text, if there is one.
    fn end_text(&mut self, ending: Ending, events: &mut Vec<ParserEvent>) {
        match mem::replace(&mut self.state, State::Between) {
            State::Text(mut message) => {
                let rest = self.stream.finish();
                tell_text(&mut message, rest, events);
                let is_empty_call =
                    message.role == Role::Assistant && message.recipient.is_some() && message.text.trim().is_empty();
                if is_empty_call && ending != Ending::Unfinished && !self.reads_on {
                    self.repair(Repair::EmptyArguments);
                    tell_text(&mut message, "{}".into(), events);
                }
                self.was_analysis = message.part() == MessageKind::Reasoning;
                events.push(ParserEvent::Ended { message, ending });
            }
            other => self.state = other,
        }
    }
}

/// Recipients that are no tools.
const NO_TOOLS: [&str; 9] = ["", "assistant", "user", "all", "system", "developer", "analysis", "commentary", "final"];

fn tell_text(message: &mut Message, text: String, events: &mut Vec<ParserEvent>) {
    if !text.is_empty() {
        message.text += &text;
        events.push(ParserEvent::Text { channel: message.channel.clone(), text });
    }
}
