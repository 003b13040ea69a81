//! What a model writes, token by token, as messages.
//!
//! A sampled model can write anything, so nothing here is an error but an id outside of the vocabulary: what is not in
//! the format is kept as text.

use std::mem;

use super::{Channel, Harmony, HarmonyError, Message, Role};
use crate::tokenizer::stream::TextStream;

/// Something that became known with a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A header is complete: the message has everything but its text.
    Started(Message),
    /// The next whole characters of a message.
    Text {
        /// The channel of that message.
        channel: Option<Channel>,
        /// The characters.
        text: String,
    },
    /// A message is complete.
    Ended {
        /// All of it.
        message: Message,
        /// What ended it.
        ending: Ending,
    },
}

/// What ended a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// `<|end|>`: the model goes on with another message.
    End,
    /// `<|return|>`: the answer is complete.
    Return,
    /// `<|call|>`: the model waits for a tool.
    Call,
    /// The output, or another message, which began without an end of this one.
    Unfinished,
}

/// Parses what a model writes after a prompt that ends in `<|start|>assistant`.
#[derive(Clone, Debug)]
pub struct HarmonyParser {
    harmony: Harmony,
    state: State,
    stream: TextStream,
}

#[derive(Clone, Debug)]
enum State {
    /// After a message: only `<|start|>` is expected.
    Between,
    Header(Header),
    /// In the text of a message.
    Text(Message),
}

/// The texts of a header, by the special token in front of them.
#[derive(Clone, Debug, Default)]
struct Header {
    is_assistant: bool,
    section: Section,
    role: Vec<u8>,
    channel: Vec<u8>,
    content_type: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Section {
    #[default]
    Role,
    Channel,
    ContentType,
}

impl HarmonyParser {
    pub(super) fn new(harmony: Harmony) -> Self {
        let state = State::Header(Header { is_assistant: true, ..Header::default() });
        Self { harmony, state, stream: TextStream::default() }
    }

    /// Takes the next token.
    ///
    /// # Errors
    /// [`HarmonyError::Tokenizer`] if the vocabulary has no such id.
    pub fn push(&mut self, id: u32) -> Result<Vec<Event>, HarmonyError> {
        let mut events = Vec::new();
        let harmony = &self.harmony;
        if id == harmony.start {
            self.end(Ending::Unfinished, &mut events);
            self.state = State::Header(Header::default());
        } else if id == harmony.end {
            self.end(Ending::End, &mut events);
        } else if id == harmony.end_of_answer {
            self.end(Ending::Return, &mut events);
        } else if id == harmony.call {
            self.end(Ending::Call, &mut events);
        } else {
            self.push_inside(id, &mut events)?;
        }
        Ok(events)
    }

    /// Ends the output: a message that is still open is unfinished.
    pub fn finish(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.end(Ending::Unfinished, &mut events);
        events
    }

    /// A token that begins and ends no message.
    fn push_inside(&mut self, id: u32, events: &mut Vec<Event>) -> Result<(), HarmonyError> {
        let piece = self.harmony.tokenizer.decode(id)?;
        if matches!(self.state, State::Between) {
            // The model forgot `<|start|>assistant`, and speaks all the same.
            self.state = State::Header(Header { is_assistant: true, ..Header::default() });
        }
        match &mut self.state {
            State::Between => unreachable!("left above"),
            State::Text(message) => {
                let text = self.stream.push(piece);
                tell_text(message, text, events);
            }
            State::Header(header) => {
                if id == self.harmony.message {
                    let message = mem::take(header).parse();
                    events.push(Event::Started(message.clone()));
                    self.state = State::Text(message);
                } else if id == self.harmony.channel {
                    header.section = Section::Channel;
                } else if id == self.harmony.constrain {
                    header.section = Section::ContentType;
                } else {
                    header.current().extend_from_slice(piece);
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, ending: Ending, events: &mut Vec<Event>) {
        let mut message = match mem::replace(&mut self.state, State::Between) {
            State::Between => return,
            State::Text(message) => message,
            State::Header(header) => {
                // No text came: what there is of a header is all that the model had to say.
                let Some(message) = header.into_text() else { return };
                events.push(Event::Started(Message { text: String::new(), ..message.clone() }));
                let Message { channel, text, .. } = message.clone();
                events.push(Event::Text { channel, text });
                message
            }
        };
        let rest = self.stream.finish();
        tell_text(&mut message, rest, events);
        events.push(Event::Ended { message, ending });
    }
}

fn tell_text(message: &mut Message, text: String, events: &mut Vec<Event>) {
    if !text.is_empty() {
        message.text += &text;
        events.push(Event::Text { channel: message.channel.clone(), text });
    }
}

impl Header {
    fn current(&mut self) -> &mut Vec<u8> {
        match self.section {
            Section::Role => &mut self.role,
            Section::Channel => &mut self.channel,
            Section::ContentType => &mut self.content_type,
        }
    }

    /// `{role} to={recipient}<|channel|>{channel} to={recipient} <|constrain|>{type}`, all but the role optional, and
    /// the recipient in either place. A word that is none of these after the channel is a type too.
    fn parse(self) -> Message {
        let [role, channel, content_type] =
            [self.role, self.channel, self.content_type].map(|text| String::from_utf8_lossy(&text).into_owned());
        let mut message = Message::new(Role::Assistant, "");
        let mut role_words = named_words(&role, &mut message.recipient).into_iter();
        if let (false, Some(name)) = (self.is_assistant, role_words.next()) {
            message.role = Role::from_name(name);
        }
        let mut channel_words = named_words(&channel, &mut message.recipient).into_iter();
        message.channel = channel_words.next().map(Channel::from_name);
        let type_words = named_words(&content_type, &mut message.recipient);
        message.content_type = type_words.first().copied().or(channel_words.next()).map(str::to_owned);
        message
    }

    /// What a header says that no text followed: `None` if that is nothing, or just a role.
    fn into_text(self) -> Option<Message> {
        let words = if self.is_assistant { String::from_utf8_lossy(&self.role).into_owned() } else { String::new() };
        if words.trim().is_empty() && self.channel.is_empty() {
            return None;
        }
        if self.channel.is_empty() { Some(Message::new(Role::Assistant, words)) } else { Some(self.parse()) }
    }
}

/// The words of a header's part, less `to=…`, which goes to `recipient`.
fn named_words<'a>(text: &'a str, recipient: &mut Option<String>) -> Vec<&'a str> {
    let mut words = Vec::new();
    for word in text.split_whitespace() {
        match word.strip_prefix("to=") {
            Some(name) => *recipient = Some(name.to_owned()),
            None => words.push(word),
        }
    }
    words
}
