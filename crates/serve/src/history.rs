//! Exact history: the token ids of the turns that this server generated. A turn that a client sends back goes into the
//! prompt exactly as the model wrote it.
//!
//! Clients drop reasoning, and rendering does not always give the model's own spelling. With the ids, the next prompt
//! begins with all of the last one's tokens, and has the reasoning before a call again.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::Value;

use super::lru_map::{LruLimits, LruMaps};
use super::request_log;
use chat::{AssistantMessage, BETWEEN_MESSAGES, MessagePart};

/// Whose turns: one scope does not see those of another. It is what a request's API key comes to.
pub(crate) type Scope = u64;

/// All that was made in one answer.
pub(crate) type AssistantTurn = Vec<AssistantMessage>;

/// The turns with calls that were made lately, by the calls' ids.
#[derive(Debug)]
pub struct History {
    turns: Mutex<LruMaps<(Scope, String), Arc<AssistantTurn>>>,
}

const LIMITS: LruLimits =
    LruLimits { max_entries: 100_000, max_bytes: 256 << 20, max_age: Duration::from_secs(24 * 60 * 60) };

impl Default for History {
    fn default() -> Self {
        Self::new(LIMITS)
    }
}

impl History {
    pub(crate) fn new(limits: LruLimits) -> Self {
        Self { turns: Mutex::new(LruMaps::new(limits)) }
    }

    /// Keeps a turn; one without calls cannot be found again, and is not kept.
    pub(crate) fn keep(&self, scope: Scope, turn: &Arc<AssistantTurn>) {
        let bytes = size_bytes(turn);
        for made in turn.iter() {
            if let MessagePart::Call { id, .. } = &made.part {
                self.lock().insert((scope, id.clone()), Arc::clone(turn), bytes, request_log::is_background());
            }
        }
    }

    /// The turn that a client gives back as these parts: the same calls with the same arguments, the same content, and
    /// the same reasoning or none.
    pub(crate) fn find<'a>(
        &self,
        scope: Scope,
        parts: impl IntoIterator<Item = &'a MessagePart>,
    ) -> Option<Arc<AssistantTurn>> {
        let parts: Vec<&MessagePart> = parts.into_iter().collect();
        let id = parts.iter().find_map(|part| match part {
            MessagePart::Call { id, .. } => Some(id.clone()),
            _ => None,
        })?;
        let turn = self.lock().get(&(scope, id)).cloned()?;
        comes_back(&parts, &turn).then_some(turn)
    }

    fn lock(&self) -> MutexGuard<'_, LruMaps<(Scope, String), Arc<AssistantTurn>>> {
        self.turns.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Bytes that a turn takes, about.
pub(crate) fn size_bytes(turn: &AssistantTurn) -> usize {
    turn.iter().map(|made| made.part.size_bytes() + 4 * made.ids.as_ref().map_or(0, Vec::len)).sum()
}

/// Several messages of a kind as the one text that chat has for them.
pub(crate) fn joined<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join(BETWEEN_MESSAGES)
}

fn comes_back(parts: &[&MessagePart], turn: &AssistantTurn) -> bool {
    let made = || turn.iter().map(|made| &made.part);
    let given = || parts.iter().copied();
    let reasoning = reasoning_of(given());
    let calls = |parts: &mut dyn Iterator<Item = &MessagePart>| -> Vec<(String, String, Value)> {
        parts.filter_map(call_of).collect()
    };
    calls(&mut given()) == calls(&mut made())
        && content_of(given()) == content_of(made())
        && (reasoning.is_empty() || reasoning == reasoning_of(made()))
}

fn reasoning_of<'a>(parts: impl Iterator<Item = &'a MessagePart>) -> String {
    joined(parts.filter_map(|part| match part {
        MessagePart::Reasoning(text) => Some(text.as_str()),
        _ => None,
    }))
}

fn content_of<'a>(parts: impl Iterator<Item = &'a MessagePart>) -> String {
    joined(parts.filter_map(|part| match part {
        MessagePart::Content { text, .. } => Some(text.as_str()),
        _ => None,
    }))
}

/// A call with its arguments as what they mean: clients write JSON anew.
fn call_of(part: &MessagePart) -> Option<(String, String, Value)> {
    let MessagePart::Call { id, name, arguments, is_text } = part else { return None };
    let as_it_is = || Value::String(arguments.clone());
    let meaning = if *is_text { as_it_is() } else { serde_json::from_str(arguments).unwrap_or_else(|_| as_it_is()) };
    Some((id.clone(), name.clone(), meaning))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str, arguments: &str) -> MessagePart {
        MessagePart::Call { id: id.into(), name: "f".into(), arguments: arguments.into(), is_text: false }
    }

    fn content(text: &str) -> MessagePart {
        MessagePart::Content { text: text.into(), phase: None }
    }

    fn kept() -> History {
        let history = History::new(LruLimits::for_tests());
        let made = |part, id| AssistantMessage { part, ids: Some(vec![id]) };
        let reasoning = MessagePart::Reasoning("Hm.".into());
        let turn = vec![made(reasoning, 1), made(content("Look:"), 2), made(call("call_1", r#"{"a": 1, "b": []}"#), 3)];
        history.keep(7, &Arc::new(turn));
        history
    }

    #[test]
    fn a_turn_that_comes_back_is_found_with_or_without_its_reasoning() {
        let history = kept();
        let call = call("call_1", r#"{"a": 1, "b": []}"#);
        let found = history.find(7, &[content("Look:"), call.clone()]).expect("it is the same");
        assert_eq!(
            found.iter().map(|made| made.ids.clone()).collect::<Vec<_>>(),
            [Some(vec![1]), Some(vec![2]), Some(vec![3])]
        );
        assert!(history.find(7, &[MessagePart::Reasoning("Hm.".into()), content("Look:"), call]).is_some());
    }

    #[test]
    fn arguments_that_a_client_wrote_anew_are_the_same() {
        assert!(kept().find(7, &[content("Look:"), call("call_1", r#"{"b":[],"a":1}"#)]).is_some());
    }

    #[test]
    fn a_turn_that_was_changed_or_is_anothers_is_not_found() {
        let history = kept();
        let same = call("call_1", r#"{"a": 1, "b": []}"#);
        assert!(history.find(8, &[content("Look:"), same.clone()]).is_none(), "another scope");
        assert!(history.find(7, &[content("Look!"), same.clone()]).is_none(), "other content");
        assert!(history.find(7, std::slice::from_ref(&same)).is_none(), "no content");
        assert!(history.find(7, &[content("Look:"), call("call_1", "{}")]).is_none(), "other arguments");
        assert!(history.find(7, &[content("Look:"), call("call_2", "{}")]).is_none(), "another id");
        let thought_otherwise = [MessagePart::Reasoning("Aha.".into()), content("Look:"), same];
        assert!(history.find(7, &thought_otherwise).is_none(), "other reasoning");
    }
}
