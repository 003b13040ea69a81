//! Conversations in files: `{"messages": […]}`, as OpenAI's API takes them. On one line it is a prompt of getp too.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use serde_json::{Map, Value, json};

use crate::output_file::OutputFile;
use batch::request_line::messages;
use chat::{AssistantMessage, MessagePart, Phase, Turn};

/// Writes a conversation: whole or not at all. What the model thought stands beside what it said then.
pub(super) fn save(path: &Path, system: Option<&str>, conversation: &[Turn]) -> anyhow::Result<()> {
    let mut messages: Vec<Value> = system.iter().map(|text| json!({ "role": "system", "content": text })).collect();
    let mut thoughts = String::new();
    for turn in conversation {
        let (role, text) = match turn {
            Turn::System(text) => ("system", text),
            Turn::Developer(text) => ("developer", text),
            Turn::User(text) => ("user", text),
            Turn::Assistant(AssistantMessage { part: MessagePart::Reasoning(text), .. }) => {
                thoughts += text;
                continue;
            }
            Turn::Assistant(AssistantMessage {
                part: MessagePart::Content { phase: Some(Phase::Commentary), .. },
                ..
            }) => continue,
            Turn::Assistant(AssistantMessage { part: MessagePart::Content { text, .. }, .. }) => ("assistant", text),
            Turn::Assistant(AssistantMessage { part: MessagePart::Call { .. }, .. }) | Turn::Result { .. } => continue, // there are no tools
        };
        let mut saved = json!({ "role": role, "content": text });
        if !thoughts.is_empty() {
            saved["reasoning"] = std::mem::take(&mut thoughts).into();
        }
        messages.push(saved);
    }
    let text = format!("{}\n", json!({ "messages": messages }));
    OutputFile::create(path, "the conversation")?.fill(|file| file.write_all(text.as_bytes()))
}

/// Reads one: its instructions, and what was said.
pub(super) fn load(path: &Path) -> anyhow::Result<(Option<String>, Vec<Turn>)> {
    let could_not = || format!("could not read a conversation from `{}`", path.display());
    let text = std::fs::read(path).with_context(could_not)?;
    let mut object: Map<String, Value> = serde_json::from_slice(&text).with_context(could_not)?;
    let Some(Value::Array(values)) = object.remove("messages") else {
        anyhow::bail!("{}: it has no list of `messages`", could_not());
    };
    let mut conversation = messages(values).with_context(could_not)?;
    let is_instruction = |turn: &Turn| matches!(turn, Turn::System(_) | Turn::Developer(_));
    let n_first = conversation.iter().take_while(|turn| is_instruction(turn)).count();
    let text = |turn| match turn {
        Turn::System(text) | Turn::Developer(text) => Some(text),
        _ => None,
    };
    let system: Vec<String> = conversation.drain(..n_first).filter_map(text).collect();
    Ok((Some(system.join("\n\n")).filter(|text| !text.is_empty()), conversation))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_saved_is_loaded_but_for_what_was_thought() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("chat.json");
        let user = Turn::User("2 + 2?\n\"é\"".into());
        let words = Turn::Assistant(MessagePart::answer("4").into());
        let thought = Turn::Assistant(MessagePart::Reasoning("Easy.".into()).into());
        let conversation = [user.clone(), thought, words.clone()];
        save(&path, Some("Be brief."), &conversation).expect("written");
        let saved: Value = serde_json::from_slice(&std::fs::read(&path).expect("there")).expect("JSON");
        assert_eq!(saved["messages"][2], json!({ "role": "assistant", "content": "4", "reasoning": "Easy." }));
        assert_eq!(load(&path).expect("read"), (Some("Be brief.".into()), vec![user, words]));
        std::fs::write(&path, "{\"messages\": [{\"role\": \"robot\"}]}").expect("written");
        assert!(format!("{:#}", load(&path).expect_err("a robot")).contains("`messages[0]`: role `robot`"));
    }
}
