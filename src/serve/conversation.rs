//! A conversation as its client gives it, and as the model is to read it: what both chat APIs have in common.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::error::ApiError;
use super::history::{self, History, Made, Part, Phase, Scope, Turn as MadeTurn};
use crate::harmony::{Channel, Developer, Message, Reasoning, ResponseFormat, Role, SystemMessage, Tool, Turn};

/// A piece of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Instructions.
    Developer(String),
    /// What the person says.
    User(String),
    /// A turn of the assistant, as its client has it.
    Assistant(Vec<Made>),
    /// A turn that is known to be this server's.
    Made(Arc<MadeTurn>),
    /// What a call came to.
    Result {
        /// Which call.
        call_id: String,
        /// What the tool says.
        text: String,
        /// Where the id stands in the request, for errors.
        path: String,
    },
}

impl Entry {
    /// Bytes that it takes, about.
    pub fn size_bytes(&self) -> usize {
        64 + match self {
            Self::Developer(text) | Self::User(text) | Self::Result { text, .. } => text.len(),
            Self::Assistant(turn) => history::size_bytes(turn),
            Self::Made(turn) => history::size_bytes(turn),
        }
    }
}

/// All that a prompt is made of.
#[derive(Debug)]
pub struct Conversation<'a> {
    /// `2025-06-28`, if the model is told.
    pub current_date: Option<String>,
    /// How long to think.
    pub reasoning: Reasoning,
    /// Functions, in order.
    pub tools: &'a [Tool],
    /// What the answer is to look like.
    pub format: Option<ResponseFormat>,
    /// What is said, in order.
    pub entries: &'a [&'a Entry],
}

/// A message of the prompt before it is known whether its reasoning is still wanted.
enum Line<'a> {
    Plain(Message),
    Made(&'a Made),
    Given { made: &'a Made, is_final: bool },
}

impl Conversation<'_> {
    /// The turns of the prompt.
    ///
    /// Leading instructions are one developer message. Reasoning is kept if no final answer comes after it. Every
    /// call is followed by its result. A turn that `history` knows is put in as it was made.
    ///
    /// # Errors
    /// A result of a call that is not there, or a second one.
    pub fn turns(&self, history: &History, scope: Scope) -> Result<Vec<Turn>, ApiError> {
        let n_leading = self.entries.iter().take_while(|entry| matches!(entry, Entry::Developer(_))).count();
        let (leading, entries) = self.entries.split_at(n_leading);
        let mut turns = self.head(leading);
        let known: Vec<Option<Arc<MadeTurn>>> = entries
            .iter()
            .map(|entry| match entry {
                Entry::Assistant(given) => history.find(scope, given.iter().map(|made| &made.part)),
                Entry::Made(turn) => Some(Arc::clone(turn)),
                _ => None,
            })
            .collect();
        let lines = lines(entries, &known)?;
        let last_final = lines.iter().rposition(Line::is_final);
        for (i, line) in lines.iter().enumerate() {
            if !line.is_reasoning() || last_final.is_none_or(|last_final| i > last_final) {
                turns.extend(line.turn());
            }
        }
        Ok(turns)
    }

    fn head(&self, leading: &[&Entry]) -> Vec<Turn> {
        let system = SystemMessage {
            current_date: self.current_date.clone(),
            reasoning: self.reasoning,
            has_functions: !self.tools.is_empty(),
        };
        let instructions: Vec<&str> = leading
            .iter()
            .filter_map(|entry| match entry {
                Entry::Developer(text) if !text.is_empty() => Some(text.as_str()),
                _ => None,
            })
            .collect();
        let developer = Developer {
            instructions: instructions.join("\n\n"),
            tools: self.tools.to_vec(),
            formats: self.format.iter().cloned().collect(),
        };
        [Some(system.message()), developer.message()].into_iter().flatten().map(Turn::Message).collect()
    }
}

/// Results by the call that they are of, with the places of their ids.
type Results<'a> = HashMap<&'a str, VecDeque<(&'a str, &'a str)>>;

fn lines<'a>(entries: &'a [&'a Entry], known: &'a [Option<Arc<MadeTurn>>]) -> Result<Vec<Line<'a>>, ApiError> {
    let mut results = Results::new();
    for entry in entries {
        if let Entry::Result { call_id, text, path } = entry {
            results.entry(call_id).or_default().push_back((text, path));
        }
    }
    let mut lines = Vec::new();
    for (entry, known) in entries.iter().zip(known) {
        match (entry, known) {
            (_, Some(turn)) => {
                for made in turn.iter() {
                    lines.push(Line::Made(made));
                    lines.extend(result_of(&made.part, &mut results));
                }
            }
            (Entry::Assistant(given), None) => {
                let last_call = given.iter().rposition(|made| matches!(made.part, Part::Call { .. }));
                for (i, made) in given.iter().enumerate() {
                    let is_final = match &made.part {
                        Part::Content { phase, .. } => {
                            phase.map_or(last_call.is_none_or(|last| i > last), |phase| phase == Phase::FinalAnswer)
                        }
                        _ => false,
                    };
                    lines.push(Line::Given { made, is_final });
                    lines.extend(result_of(&made.part, &mut results));
                }
            }
            (Entry::Developer(text), None) => {
                let developer = Developer { instructions: text.clone(), ..Developer::default() };
                lines.extend(developer.message().map(Line::Plain));
            }
            (Entry::User(text), None) => lines.push(Line::Plain(Message::new(Role::User, text.as_str()))),
            // Behind its call already. A turn that was made has its place above.
            (Entry::Result { .. } | Entry::Made(_), None) => {}
        }
    }
    let left_over = results.iter().find_map(|(id, results)| results.front().map(|(_, path)| (id, path)));
    match left_over {
        None => Ok(lines),
        Some((id, path)) => Err(ApiError::invalid(*path, format!("`{path}`: no call `{id}` waits for a result"))),
    }
}

fn result_of<'a>(part: &Part, results: &mut Results) -> Option<Line<'a>> {
    let Part::Call { id, name, .. } = part else { return None };
    let (text, _) = results.get_mut(id.as_str())?.pop_front()?;
    Some(Line::Plain(Message::result(name, text)))
}

impl Line<'_> {
    fn part(&self) -> Option<&Part> {
        match self {
            Self::Plain(_) => None,
            Self::Made(made) => Some(&made.part),
            Self::Given { made, .. } => Some(&made.part),
        }
    }

    fn is_reasoning(&self) -> bool {
        matches!(self.part(), Some(Part::Reasoning(_)))
    }

    fn is_final(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Made(made) => matches!(made.part, Part::Content { phase: Some(Phase::FinalAnswer), .. }),
            Self::Given { is_final, .. } => *is_final,
        }
    }

    /// None if it says nothing.
    fn turn(&self) -> Option<Turn> {
        if let Self::Made(Made { ids: Some(ids), .. }) | Self::Given { made: Made { ids: Some(ids), .. }, .. } = self {
            return Some(Turn::Exact(ids.clone()));
        }
        let message = match (self, self.part()) {
            (Self::Plain(message), _) => message.clone(),
            (_, Some(Part::Call { name, arguments, is_text: false, .. })) => Message::call(name, arguments),
            (_, Some(Part::Call { name, arguments, is_text: true, .. })) => Message::text_call(name, arguments),
            (_, Some(Part::Reasoning(text) | Part::Content { text, .. })) if text.is_empty() => return None,
            (_, Some(Part::Reasoning(text))) => Message::assistant(Channel::Analysis, text.as_str()),
            (_, Some(Part::Content { text, .. })) => {
                let channel = if self.is_final() { Channel::Final } else { Channel::Commentary };
                Message::assistant(channel, text.as_str())
            }
            (_, None) => return None,
        };
        Some(Turn::Message(message))
    }
}
