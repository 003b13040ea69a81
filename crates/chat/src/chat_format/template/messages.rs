//! Conversations in the form that templates take.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::call::{INPUT, text_parameters};
use crate::chat_template::TemplateMessage;
use crate::{BETWEEN_MESSAGES, MessagePart, Tool, Turn};

/// A tool as OpenAI's API has it, which is how templates take it. One that takes text is a function of a text.
pub(super) fn tool(tool: &Tool) -> Value {
    let mut function = Map::from_iter([("name".to_owned(), Value::from(tool.name.as_str()))]);
    function.extend(tool.description.iter().map(|text| ("description".to_owned(), text.as_str().into())));
    let parameters = tool.text.as_ref().map(text_parameters).or_else(|| tool.parameters.clone());
    function.extend(parameters.map(|schema| ("parameters".to_owned(), schema)));
    json!({"type": "function", "function": function})
}

/// Messages. Instructions are system messages, those at the beginning one: many templates look for one, there. What
/// the assistant said in several messages is one, with what it thought and with its calls; what these came to follows.
pub(super) fn messages(turns: &[Turn], id_length: Option<usize>) -> Vec<TemplateMessage> {
    let mut made = Made { messages: Vec::new(), thinking: None, results: Vec::new(), goes_on: false };
    for turn in turns {
        made.take(turn, id_length);
    }
    made.end_of_calls();
    made.messages
}

struct Made {
    messages: Vec<TemplateMessage>,
    /// Thoughts of a message that has not come yet.
    thinking: Option<String>,
    /// What calls of the last message came to.
    results: Vec<TemplateMessage>,
    /// Whether more calls of the same message may follow.
    goes_on: bool,
}

impl Made {
    fn take(&mut self, turn: &Turn, id_length: Option<usize>) {
        match turn {
            Turn::System(text) | Turn::Developer(text) if text.is_empty() => {}
            Turn::System(text) | Turn::Developer(text) => {
                self.end_of_calls();
                let is_first = self.messages.len() == 1;
                self.join("system", text, is_first);
            }
            Turn::User(text) => {
                self.end_of_calls();
                self.messages.push(TemplateMessage::new("user", text.as_str()));
            }
            Turn::Assistant(made) => match &made.part {
                MessagePart::Reasoning(text) => {
                    self.end_of_calls();
                    self.thinking = Some(text.clone());
                }
                MessagePart::Content { text, .. } => {
                    self.end_of_calls();
                    self.join("assistant", text, true);
                    self.thought();
                }
                MessagePart::Call { id, name, arguments, is_text } => {
                    if !self.goes_on {
                        self.end_of_calls();
                    }
                    if self.messages.last().is_none_or(|last| last.role != "assistant") {
                        self.messages.push(TemplateMessage::new("assistant", ""));
                    }
                    self.thought();
                    self.goes_on = true;
                    if let Some(last) = self.messages.last_mut() {
                        last.tool_calls.push(call(&id_of(id, id_length), name, arguments, *is_text));
                    }
                }
            },
            Turn::Result { name, text, is_last } => {
                let calls = self.messages.last().map(|last| last.tool_calls.as_slice()).unwrap_or_default();
                let id = calls.last().and_then(|call| call["id"].as_str()).unwrap_or_default().to_owned();
                let result = TemplateMessage { call: Some((id, name.clone())), ..TemplateMessage::new("tool", text) };
                self.results.push(result);
                self.goes_on = !is_last;
            }
        }
    }

    /// What was thought goes before the message that is the last.
    fn thought(&mut self) {
        if let (Some(thought), Some(last)) = (self.thinking.take(), self.messages.last_mut()) {
            last.thinking.get_or_insert(thought);
        }
    }

    /// The message with calls is whole: what they came to follows.
    fn end_of_calls(&mut self) {
        self.messages.append(&mut self.results);
        self.goes_on = false;
    }

    /// Adds a message, or its text to the last one, if that is of the same role, has no calls, and may be one with it.
    fn join(&mut self, role: &str, text: &str, may_join: bool) {
        let is_one = |last: &&mut TemplateMessage| may_join && last.role == role && last.tool_calls.is_empty();
        match self.messages.last_mut().filter(is_one) {
            Some(last) if last.content.is_empty() => last.content = text.to_owned(),
            Some(last) => last.content += &[BETWEEN_MESSAGES, text].concat(),
            None => self.messages.push(TemplateMessage::new(role, text)),
        }
    }
}

/// A call as OpenAI's API has it, its arguments as a value, if they are one: templates write them as JSON or each.
fn call(id: &str, name: &str, arguments: &str, is_text: bool) -> Value {
    let arguments = match serde_json::from_str::<Value>(arguments) {
        _ if is_text => json!({INPUT: arguments}),
        Ok(object @ Value::Object(_)) => object,
        _ => Value::from(arguments),
    };
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

/// The id of a call as it may stand in a prompt: of letters, digits, `_` and `-`, and as many as there must be.
fn id_of(id: &str, length: Option<usize>) -> String {
    const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let is_fit = match length {
        Some(length) => id.len() == length && id.bytes().all(|byte| byte.is_ascii_alphanumeric()),
        None => id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte)),
    };
    if is_fit {
        return id.to_owned();
    }
    let digest = Sha256::digest(id);
    let digits = digest.iter().map(|byte| char::from(DIGITS[usize::from(byte % 32)]));
    digits.take(length.unwrap_or(24)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AssistantMessage;

    fn made(part: MessagePart) -> Turn {
        Turn::Assistant(AssistantMessage::from(part))
    }

    fn called(id: &str, arguments: &str) -> Turn {
        let (id, name, arguments) = (id.to_owned(), "f".to_owned(), arguments.to_owned());
        made(MessagePart::Call { id, name, arguments, is_text: false })
    }

    fn result(text: &str, is_last: bool) -> Turn {
        Turn::Result { name: "f".into(), text: text.into(), is_last }
    }

    fn roles(messages: &[TemplateMessage]) -> Vec<(&str, &str, usize)> {
        let of = |message: &TemplateMessage| message.tool_calls.len();
        messages.iter().map(|message| (message.role.as_str(), message.content.as_str(), of(message))).collect()
    }

    #[test]
    fn calls_made_together_are_of_one_message_and_their_results_follow() {
        let turns = [
            Turn::User("Go.".into()),
            made(MessagePart::Reasoning("Hm.".into())),
            made(MessagePart::Content { text: "Look:".into(), phase: None }),
            called("call_1", "{\"a\": 1}"),
            result("one", false),
            called("call:2", "no JSON"),
            result("two", true),
            called("call_3", "{}"),
            result("three", true),
            made(MessagePart::answer("Done.")),
        ];
        let all = messages(&turns, None);
        let want = [
            ("user", "Go.", 0),
            ("assistant", "Look:", 2),
            ("tool", "one", 0),
            ("tool", "two", 0),
            ("assistant", "", 1),
            ("tool", "three", 0),
            ("assistant", "Done.", 0),
        ];
        assert_eq!(roles(&all), want);
        assert_eq!(all[1].thinking.as_deref(), Some("Hm."));
        assert_eq!(all[1].tool_calls[0]["function"]["arguments"], json!({"a": 1}));
        assert_eq!(all[1].tool_calls[1]["function"]["arguments"], "no JSON");
        let ids = |message: &TemplateMessage| message.call.clone().map(|(id, _)| id).unwrap_or_default();
        assert_eq!((ids(&all[2]), ids(&all[5])), ("call_1".into(), "call_3".into()));
        assert_eq!(Value::from(ids(&all[3])), all[1].tool_calls[1]["id"]);
        assert_eq!(ids(&all[3]).len(), 24, "nobody writes into a prompt by an id");
        let nine = messages(&turns, Some(9));
        assert!(nine[1].tool_calls.iter().all(|call| call["id"].as_str().is_some_and(|id| id.len() == 9)));
        assert_ne!(nine[1].tool_calls[0]["id"], nine[1].tool_calls[1]["id"]);
    }
}
