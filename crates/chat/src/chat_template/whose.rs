//! Decides which characters of a prompt come from messages, and which from the template.
//!
//! A template may cut, split and replace a message's text, so searching the prompt for it fails. Instead the prompt is
//! rendered again with masked messages, each character replaced by one mask character. If that prompt has the same
//! length and differs only in masks, these are the characters that came from messages. A template that searches
//! messages for words may behave differently when they are masked. So there are weaker masks: only of punctuation,
//! which names of special tokens contain and words do not, and only of bars, which most names contain and tags like
//! `</think>` do not. Conservative rules decide the rest: see [`Whose::origin`].

use serde_json::Value;

use super::{Given, TemplateMessage};

/// Stands for a character of a message: the last one of Unicode's last private plane.
const MASK: char = '\u{10fffd}';

/// Which characters are masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Masked {
    /// All but blanks, by which templates split and which they trim.
    AllButBlanks,
    /// Those that are no blanks, letters or digits.
    Signs,
    Bars,
}

impl Masked {
    pub(crate) const ALL: [Self; 3] = [Self::AllButBlanks, Self::Signs, Self::Bars];

    fn masks(self, c: char) -> bool {
        match self {
            Self::AllButBlanks => !c.is_whitespace(),
            Self::Signs => is_sign(c),
            Self::Bars => is_bar(c),
        }
    }

    /// A call, masked where others wrote it: its name and its arguments.
    fn call(self, call: &Value) -> Value {
        let mut call = call.clone();
        for part in ["name", "arguments"] {
            call["function"][part] = self.value(&call["function"][part]);
        }
        call
    }

    fn value(self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.in_json(text).into(),
            Value::Array(values) => values.iter().map(|value| self.value(value)).collect(),
            Value::Object(entries) => {
                entries.iter().map(|(key, value)| (self.in_json(key), self.value(value))).collect()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }

    /// A text that templates write as JSON, where some characters become two: these stay, no name has them.
    fn in_json(self, text: &str) -> String {
        let is_masked = |c: char| self.masks(c) && !c.is_control() && !matches!(c, '"' | '\\');
        text.chars().map(|c| if is_masked(c) { MASK } else { c }).collect()
    }

    /// The same conversation, masked.
    pub(crate) fn given(self, given: &Given) -> Given {
        let text = |text: &String| text.chars().map(|c| if self.masks(c) { MASK } else { c }).collect();
        let masked = |message: &TemplateMessage| TemplateMessage {
            role: message.role.clone(),
            content: text(&message.content),
            thinking: message.thinking.as_ref().map(text),
            tool_calls: message.tool_calls.iter().map(|call| self.call(call)).collect(),
            call: message.call.as_ref().map(|(id, name)| (id.clone(), self.in_json(name))),
        };
        Given { messages: given.messages.iter().map(masked).collect(), ..given.clone() }
    }
}

fn is_sign(c: char) -> bool {
    !c.is_whitespace() && !c.is_alphanumeric()
}

fn is_bar(c: char) -> bool {
    matches!(c, '|' | '\u{ff5c}') // and the wide one, which some vocabularies have
}

/// The origin of a name in a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextOrigin {
    Template,
    /// A message's, at least in part.
    Message,
    Unclear,
}

/// Whose the bytes of a prompt are.
pub(super) struct Whose<'a> {
    pub(crate) text: &'a str,
    template: &'a str,
    conversation: &'a [TemplateMessage],
    /// The masks under which the template took the same way, and which bytes of the prompt they mark as of messages.
    masks: Vec<(Masked, Vec<bool>)>,
}

impl<'a> Whose<'a> {
    /// Of a prompt, and what the template made of masked conversations: `None` where it failed.
    pub(crate) fn new<'m>(
        text: &'a str,
        masked: impl IntoIterator<Item = (Masked, Option<&'m str>)>,
        template: &'a str,
        conversation: &'a [TemplateMessage],
    ) -> Self {
        let known = |(kind, masked): (Masked, Option<&str>)| Some((kind, of_messages(text, masked?)?));
        Self { text, template, conversation, masks: masked.into_iter().filter_map(known).collect() }
    }

    /// Whose the name of a special token is that stands at this offset.
    ///
    /// Where everything could be masked, that is certain. Else a name is the template's if its signs are, and its
    /// letters could not be a message's: because the template has the whole name, or no message has them. What this
    /// takes for granted is that a template that has a name does not also put the name's signs around words of a
    /// message whose letters it looks at.
    pub(crate) fn origin(&self, offset: usize, len: usize) -> TextOrigin {
        let name = &self.text[offset..offset + len];
        if self.is_marked(offset, len) {
            return TextOrigin::Message;
        }
        let took_the_same_way = |kind| self.masks.iter().any(|(masked, _)| *masked == kind);
        if took_the_same_way(Masked::AllButBlanks) {
            return TextOrigin::Template; // blanks that are a token are one wherever they come from
        }
        let signs_are_its_own = took_the_same_way(Masked::Signs)
            || (took_the_same_way(Masked::Bars) && name.contains(is_bar))
            || !self.messages_have(|text| text.contains(|c| is_sign(c) && name.contains(c)));
        let mut words = name.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        let letters_are_its_own = (name.contains(is_sign) && self.template.contains(name))
            || !words.any(|word| self.messages_have(|text| text.contains(word)));
        if signs_are_its_own && letters_are_its_own { TextOrigin::Template } else { TextOrigin::Unclear }
    }

    /// Whether a mask marks some of these bytes as a message's.
    pub(crate) fn is_marked(&self, offset: usize, len: usize) -> bool {
        self.masks.iter().any(|(_, bytes)| bytes[offset..offset + len].contains(&true))
    }

    fn messages_have(&self, is_such: impl Fn(&str) -> bool) -> bool {
        self.conversation.iter().flat_map(TemplateMessage::texts).any(is_such)
    }
}

/// Which bytes of a prompt came from messages, if the masked one differs from it in masks alone.
fn of_messages(text: &str, masked: &str) -> Option<Vec<bool>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut masks = masked.chars();
    for c in text.chars() {
        let mask = masks.next()?;
        if mask != MASK && mask != c {
            return None;
        }
        bytes.resize(bytes.len() + c.len_utf8(), mask == MASK);
    }
    masks.next().is_none().then_some(bytes)
}
