//! Conversations to prompts.

use super::{Channel, Harmony, HarmonyError, Message, MessageKind, Role};
use model::tokenizer::limit::Limit;

/// A part of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HarmonyTurn {
    /// A message, to be written in the format.
    Message(Message),
    /// What a model wrote, as ids, from `<|start|>assistant` on or from after it. They go into the prompt as they are,
    /// so that it begins as the one before and what followed it; but see [`Harmony::prompt_of`].
    Exact(Vec<u32>),
}

impl From<Message> for HarmonyTurn {
    fn from(message: Message) -> Self {
        Self::Message(message)
    }
}

/// A message on its way into a prompt.
struct Item<'a> {
    content: Content<'a>,
    is_reasoning: bool,
    is_final: bool,
}

enum Content<'a> {
    Message(&'a Message),
    Ids(Vec<u32>),
}

impl Harmony {
    /// The prompt for the assistant's next words, as ids.
    ///
    /// Reasoning is omitted before a later `final` message. A message ends in `<|end|>` even if the model wrote
    /// `<|return|>`, which a prompt never has; so does a cut message. Names of special tokens inside a message are
    /// text: no one can end a message by writing `<|end|>`. From model output, words for others and a header without a
    /// message are omitted.
    ///
    /// # Errors
    /// [`HarmonyError::Tokenizer`]: more than `limit` takes. With a tokenizer that takes any bytes, and for ids that it
    /// has, there are no others.
    pub fn prompt_of(&self, turns: &[HarmonyTurn], limit: &Limit) -> Result<Vec<u32>, HarmonyError> {
        let mut items = Vec::new();
        for turn in turns {
            match turn {
                HarmonyTurn::Message(message) => items.push(Item::new(message)),
                HarmonyTurn::Exact(ids) => self.written_items(ids, &mut items)?,
            }
        }
        self.join(items, limit)
    }

    /// [`Self::prompt_of`] messages alone, however many tokens they have.
    ///
    /// # Errors
    /// As there.
    pub fn prompt(&self, conversation: &[Message]) -> Result<Vec<u32>, HarmonyError> {
        self.join(conversation.iter().map(Item::new).collect(), &Limit::NONE)
    }

    /// Makes the answer begin at once, without reasoning: a prompt goes on with the head of a `final` message. What
    /// follows is for [`Self::parser_in_final`].
    ///
    /// # Errors
    /// As [`Self::prompt_of`].
    pub fn begin_final(&self, prompt: &mut Vec<u32>) -> Result<(), HarmonyError> {
        prompt.push(self.channel);
        prompt.extend(self.tokenizer.encode(Channel::Final.name().as_bytes())?);
        prompt.push(self.message);
        Ok(())
    }

    /// A prompt as text, special tokens by their names. Ids that the vocabulary lacks, and bytes that are no
    /// characters, are U+FFFD.
    pub fn spelled(&self, prompt: &[u32]) -> String {
        let mut bytes = Vec::new();
        for &id in prompt {
            bytes.extend_from_slice(self.tokenizer.decode(id).unwrap_or("\u{fffd}".as_bytes()));
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn join(&self, items: Vec<Item>, limit: &Limit) -> Result<Vec<u32>, HarmonyError> {
        let last_final = items.iter().rposition(|item| item.is_final);
        let is_kept = |i: usize, item: &Item| !item.is_reasoning || last_final.is_none_or(|last| i > last);
        let mut ids = Vec::new();
        for (_, item) in items.into_iter().enumerate().filter(|(i, item)| is_kept(*i, item)) {
            match item.content {
                Content::Message(message) => self.write(message, limit, &mut ids)?,
                Content::Ids(written) => ids.extend(written),
            }
        }
        ids.extend(self.head()?);
        limit.check(ids.len())?;
        Ok(ids)
    }

    /// `<|start|>assistant`
    fn head(&self) -> Result<Vec<u32>, HarmonyError> {
        let role = self.tokenizer.encode(Role::Assistant.name().as_bytes())?;
        Ok([&[self.start][..], &role].concat())
    }

    /// Writes a message in the format, after what is there.
    fn write(&self, message: &Message, limit: &Limit, ids: &mut Vec<u32>) -> Result<(), HarmonyError> {
        let text = |text: &str, ids: &mut Vec<u32>| self.tokenizer.encode_within(text.as_bytes(), limit, ids);
        ids.push(self.start);
        text(message.role.name(), ids)?;
        if let Some(recipient) = &message.recipient {
            text(&format!(" to={recipient}"), ids)?;
        }
        if let Some(channel) = &message.channel {
            ids.push(self.channel);
            text(channel.name(), ids)?;
        }
        if let Some(content_type) = &message.content_type {
            text(&format!(" {content_type}"), ids)?;
        }
        ids.push(self.message);
        text(&message.text, ids)?;
        ids.push(if message.is_tool_call() { self.call } else { self.end });
        Ok(())
    }

    /// The messages of what a model wrote.
    fn written_items(&self, ids: &[u32], items: &mut Vec<Item<'_>>) -> Result<(), HarmonyError> {
        let head = self.head()?;
        let ids = if ids.first() == Some(&self.start) { ids.to_vec() } else { [&head, ids].concat() };
        for message in ids.split(|&id| id == self.start).skip(1) {
            let ends = [self.end, self.call, self.end_of_answer];
            let is_end = |id: &u32| ends.contains(id) || Some(*id) == self.end_of_text;
            let end = message.iter().position(is_end);
            let text_at = message.iter().position(|&id| id == self.message);
            if end.is_none() && text_at.is_none() {
                continue;
            }
            let header =
                String::from_utf8_lossy(&self.tokenizer.decode_all(&message[..text_at.unwrap_or(0)])?).into_owned();
            if text_at.is_some() && !header.starts_with(Role::Assistant.name()) {
                break;
            }
            let channel = header.rsplit("<|channel|>").next().and_then(|words| words.split_whitespace().next());
            let channel = channel.filter(|_| header.contains("<|channel|>"));
            let last = end.map_or(self.end, |end| if message[end] == self.call { self.call } else { self.end });
            items.push(Item {
                content: Content::Ids([&[self.start], &message[..end.unwrap_or(message.len())], &[last]].concat()),
                is_reasoning: channel == Some(Channel::Analysis.name()) && !header.contains("to="),
                is_final: channel == Some(Channel::Final.name()),
            });
        }
        Ok(())
    }
}

impl<'a> Item<'a> {
    fn new(message: &'a Message) -> Self {
        let is_ours = message.role == Role::Assistant;
        Self {
            content: Content::Message(message),
            is_reasoning: is_ours && message.part() == MessageKind::Reasoning,
            is_final: is_ours && message.channel == Some(Channel::Final),
        }
    }
}
