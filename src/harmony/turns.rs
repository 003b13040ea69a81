//! Conversations to prompts.

use super::{Channel, Harmony, HarmonyError, Message, Part, Role};

/// A part of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// A message, to be written in the format.
    Message(Message),
    /// What a model wrote, as ids, from `<|start|>assistant` on or from behind it. They go into the prompt as they are,
    /// so that it begins as the one before and what followed it; but see [`Harmony::prompt_of`].
    Exact(Vec<u32>),
}

impl From<Message> for Turn {
    fn from(message: Message) -> Self {
        Self::Message(message)
    }
}

/// A message on its way into a prompt.
struct Item {
    ids: Vec<u32>,
    is_reasoning: bool,
    is_final: bool,
}

impl Harmony {
    /// The prompt for the assistant's next words, as ids.
    ///
    /// Reasoning is left out where a `final` message comes later. A message ends in `<|end|>` even where the model wrote
    /// `<|return|>`, which a prompt never holds; so does one that was cut. Names of special tokens inside of a message
    /// are text: nobody can end a message by writing `<|end|>`. Of what a model wrote, words for others and a header
    /// without a message are left out.
    ///
    /// # Errors
    /// [`HarmonyError::Tokenizer`]; with a tokenizer that takes any bytes, and for ids that it has, there are none.
    pub fn prompt_of(&self, turns: &[Turn]) -> Result<Vec<u32>, HarmonyError> {
        let mut items = Vec::new();
        for turn in turns {
            match turn {
                Turn::Message(message) => items.push(self.item(message)?),
                Turn::Exact(ids) => self.written_items(ids, &mut items)?,
            }
        }
        self.join(items)
    }

    /// [`Self::prompt_of`] messages alone.
    ///
    /// # Errors
    /// As there.
    pub fn prompt(&self, conversation: &[Message]) -> Result<Vec<u32>, HarmonyError> {
        self.join(conversation.iter().map(|message| self.item(message)).collect::<Result<_, _>>()?)
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

    /// A prompt as text, special tokens by their names. Ids that the vocabulary lacks, and bytes that are no characters,
    /// are U+FFFD.
    pub fn spelled(&self, prompt: &[u32]) -> String {
        let mut bytes = Vec::new();
        for &id in prompt {
            bytes.extend_from_slice(self.tokenizer.decode(id).unwrap_or("\u{fffd}".as_bytes()));
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn join(&self, items: Vec<Item>) -> Result<Vec<u32>, HarmonyError> {
        let last_final = items.iter().rposition(|item| item.is_final);
        let is_kept = |i: usize, item: &Item| !item.is_reasoning || last_final.is_none_or(|last| i > last);
        let kept = items.into_iter().enumerate().filter(|(i, item)| is_kept(*i, item));
        let mut ids: Vec<u32> = kept.flat_map(|(_, item)| item.ids).collect();
        ids.extend(self.head()?);
        Ok(ids)
    }

    /// `<|start|>assistant`
    fn head(&self) -> Result<Vec<u32>, HarmonyError> {
        let role = self.tokenizer.encode(Role::Assistant.name().as_bytes())?;
        Ok([&[self.start][..], &role].concat())
    }

    fn item(&self, message: &Message) -> Result<Item, HarmonyError> {
        let mut ids = vec![self.start];
        let text = |text: &str, ids: &mut Vec<u32>| -> Result<(), HarmonyError> {
            ids.extend(self.tokenizer.encode(text.as_bytes())?);
            Ok(())
        };
        text(message.role.name(), &mut ids)?;
        if let Some(recipient) = &message.recipient {
            text(&format!(" to={recipient}"), &mut ids)?;
        }
        if let Some(channel) = &message.channel {
            ids.push(self.channel);
            text(channel.name(), &mut ids)?;
        }
        if let Some(content_type) = &message.content_type {
            text(&format!(" {content_type}"), &mut ids)?;
        }
        ids.push(self.message);
        text(&message.text, &mut ids)?;
        ids.push(if message.is_tool_call() { self.call } else { self.end });
        let is_ours = message.role == Role::Assistant;
        Ok(Item {
            ids,
            is_reasoning: is_ours && message.part() == Part::Reasoning,
            is_final: is_ours && message.channel == Some(Channel::Final),
        })
    }

    /// The messages of what a model wrote.
    fn written_items(&self, ids: &[u32], items: &mut Vec<Item>) -> Result<(), HarmonyError> {
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
                ids: [&[self.start], &message[..end.unwrap_or(message.len())], &[last]].concat(),
                is_reasoning: channel == Some(Channel::Analysis.name()) && !header.contains("to="),
                is_final: channel == Some(Channel::Final.name()),
            });
        }
        Ok(())
    }
}
