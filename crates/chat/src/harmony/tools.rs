//! The part of the developer message after the instructions: the available functions, and the required form of an
//! answer.

use std::collections::BTreeMap;

use super::typescript::{comment, parameters};
use super::{Message, Role};
use crate::{ResponseFormat, Tool};

/// What the developer message says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Developer {
    /// What other formats call the system prompt; may be empty.
    pub instructions: String,
    pub tools: Vec<Tool>,
    /// The forms of the answer.
    pub formats: Vec<ResponseFormat>,
}

impl Developer {
    /// The message, or None if there is nothing in it.
    pub fn message(&self) -> Option<Message> {
        let mut sections = Vec::new();
        if !self.instructions.is_empty() {
            sections.extend(["# Instructions".to_owned(), self.instructions.clone()]);
        }
        if !self.tools.is_empty() {
            sections.push("# Tools".to_owned());
            let mut namespaces: BTreeMap<&str, Vec<&Tool>> = BTreeMap::new();
            for tool in &self.tools {
                namespaces.entry(&tool.namespace).or_default().push(tool);
            }
            sections.extend(namespaces.into_iter().map(|(name, tools)| namespace(name, &tools)));
        }
        if !self.formats.is_empty() {
            sections.push("# Response Formats".to_owned());
            sections.extend(self.formats.iter().map(format_section));
        }
        (!sections.is_empty()).then(|| Message::new(Role::Developer, sections.join("\n\n")))
    }
}

fn namespace(name: &str, tools: &[&Tool]) -> String {
    let tools: String = tools.iter().map(|tool| function(tool)).collect();
    format!("## {name}\n\nnamespace {name} {{\n\n{tools}}} // namespace {name}")
}

fn function(tool: &Tool) -> String {
    let description = comment(tool.description.as_deref().unwrap_or_default(), "");
    let parameters = match &tool.text {
        Some(_) => Some("string".to_owned()),
        None => tool.parameters.as_ref().and_then(parameters),
    };
    let parameters = parameters.map_or("()".to_owned(), |parameters| format!("(_: {parameters})"));
    format!("{description}type {} = {parameters} => any;\n\n", tool.name)
}

fn format_section(format: &ResponseFormat) -> String {
    let description = comment(format.description.as_deref().unwrap_or_default(), "");
    format!("## {}\n\n{description}{}", format.name, format.schema)
}
