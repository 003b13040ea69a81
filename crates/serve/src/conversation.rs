//! A conversation as the client sent it, and as the model reads it: the common part of the chat APIs.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::error::ApiError;
use super::history::{self, AssistantTurn, History, Scope};
use chat::{AssistantMessage, MessagePart, Phase, Turn};

/// A piece of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConversationItem {
    Developer(String),
    /// A message of the user.
    User(String),
    /// A turn of the assistant, as its client has it.
    Assistant(Vec<AssistantMessage>),
    /// A turn that is known to be this server's.
    Made(Arc<AssistantTurn>),
    /// What a call came to.
    Result {
        call_id: String,
        text: String,
        /// The place of the id in the request, for errors.
        path: String,
    },
}

impl ConversationItem {
    /// Whether it is a turn of the assistant that ends in a text, with which the model can go on.
    pub(crate) fn ends_in_text(&self) -> bool {
        let Self::Assistant(turn) = self else { return false };
        matches!(turn.last().map(|made| &made.part), Some(MessagePart::Content { text, .. }) if !text.is_empty())
    }

    /// Its approximate size in bytes.
    pub(crate) fn size_bytes(&self) -> usize {
        64 + match self {
            Self::Developer(text) | Self::User(text) | Self::Result { text, .. } => text.len(),
            Self::Assistant(turn) => history::size_bytes(turn),
            Self::Made(turn) => history::size_bytes(turn),
        }
    }
}

/// A turn of the prompt before it is known whether its reasoning is still wanted.
enum PromptLine<'a> {
    Plain(Turn),
    Made(&'a AssistantMessage),
    Given { made: &'a AssistantMessage, is_final: bool },
}

/// The turns of the prompt of a conversation.
///
/// Reasoning is kept if no final answer comes after it. Every call is followed by its result. A turn that `history`
/// knows is put in as it was made.
///
/// # Errors
/// A result of a call that is not there, or a second one.
pub(crate) fn turns(entries: &[&ConversationItem], history: &History, scope: Scope) -> Result<Vec<Turn>, ApiError> {
    let known: Vec<Option<Arc<AssistantTurn>>> = entries
        .iter()
        .map(|entry| match entry {
            ConversationItem::Assistant(given) => history.find(scope, given.iter().map(|made| &made.part)),
            ConversationItem::Made(turn) => Some(Arc::clone(turn)),
            _ => None,
        })
        .collect();
    let lines = lines(entries, &known)?;
    let last_final = lines.iter().rposition(PromptLine::is_final);
    let is_kept =
        |(i, line): &(usize, PromptLine)| !line.is_reasoning() || last_final.is_none_or(|last_final| *i > last_final);
    Ok(lines.into_iter().enumerate().filter(is_kept).filter_map(|(_, line)| line.turn()).collect())
}

/// Results by the call that they are of, with the places of their ids.
type Results<'a> = HashMap<&'a str, VecDeque<(&'a str, &'a str)>>;

fn lines<'a>(
    entries: &'a [&'a ConversationItem],
    known: &'a [Option<Arc<AssistantTurn>>],
) -> Result<Vec<PromptLine<'a>>, ApiError> {
    let mut results = Results::new();
    for entry in entries {
        if let ConversationItem::Result { call_id, text, path } = entry {
            results.entry(call_id).or_default().push_back((text, path));
        }
    }
    let mut lines = Vec::new();
    for (entry, known) in entries.iter().zip(known) {
        match (entry, known) {
            (_, Some(turn)) => {
                let last_call = turn.iter().rposition(|made| matches!(made.part, MessagePart::Call { .. }));
                for (i, made) in turn.iter().enumerate() {
                    lines.push(PromptLine::Made(made));
                    lines.extend(result_of(&made.part, last_call == Some(i), &mut results));
                }
            }
            (ConversationItem::Assistant(given), None) => {
                let last_call = given.iter().rposition(|made| matches!(made.part, MessagePart::Call { .. }));
                for (i, made) in given.iter().enumerate() {
                    let is_final = match &made.part {
                        MessagePart::Content { phase, .. } => {
                            phase.map_or(last_call.is_none_or(|last| i > last), |phase| phase == Phase::FinalAnswer)
                        }
                        _ => false,
                    };
                    lines.push(PromptLine::Given { made, is_final });
                    lines.extend(result_of(&made.part, last_call == Some(i), &mut results));
                }
            }
            (ConversationItem::Developer(text), None) if text.is_empty() => {}
            (ConversationItem::Developer(text), None) => lines.push(PromptLine::Plain(Turn::Developer(text.clone()))),
            (ConversationItem::User(text), None) => lines.push(PromptLine::Plain(Turn::User(text.clone()))),
            // Behind its call already. A turn that was made has its place above.
            (ConversationItem::Result { .. } | ConversationItem::Made(_), None) => {}
        }
    }
    let left_over = results.iter().find_map(|(id, results)| results.front().map(|(_, path)| (id, path)));
    match left_over {
        None => Ok(lines),
        Some((id, path)) => Err(ApiError::invalid(*path, format!("`{path}`: no call `{id}` waits for a result"))),
    }
}

fn result_of<'a>(part: &MessagePart, is_last: bool, results: &mut Results) -> Option<PromptLine<'a>> {
    let MessagePart::Call { id, name, .. } = part else { return None };
    let (text, _) = results.get_mut(id.as_str())?.pop_front()?;
    Some(PromptLine::Plain(Turn::Result { name: name.clone(), text: text.to_owned(), is_last }))
}

impl PromptLine<'_> {
    fn part(&self) -> Option<&MessagePart> {
        match self {
            Self::Plain(_) => None,
            Self::Made(made) => Some(&made.part),
            Self::Given { made, .. } => Some(&made.part),
        }
    }

    fn is_reasoning(&self) -> bool {
        matches!(self.part(), Some(MessagePart::Reasoning(_)))
    }

    fn is_final(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Made(made) => matches!(made.part, MessagePart::Content { phase: Some(Phase::FinalAnswer), .. }),
            Self::Given { is_final, .. } => *is_final,
        }
    }

    /// None if it says nothing.
    fn turn(self) -> Option<Turn> {
        let is_final = self.is_final();
        let made = match self {
            Self::Plain(turn) => return Some(turn),
            Self::Made(made) | Self::Given { made, .. } => made,
        };
        let part = match (&made.ids, &made.part) {
            (None, MessagePart::Reasoning(text) | MessagePart::Content { text, .. }) if text.is_empty() => return None,
            (None, MessagePart::Content { text, .. }) => {
                let phase = Some(if is_final { Phase::FinalAnswer } else { Phase::Commentary });
                MessagePart::Content { text: text.clone(), phase }
            }
            (_, part) => part.clone(),
        };
        Some(Turn::Assistant(AssistantMessage { part, ids: made.ids.clone() }))
    }
}
