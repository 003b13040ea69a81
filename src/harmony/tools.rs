//! What the developer message says beside instructions: which functions there are, and what an answer must look like.

use std::collections::BTreeMap;

use serde_json::Value;

use super::typescript::{comment, parameters};
use super::{Message, Role};

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// [`FUNCTIONS`](super::FUNCTIONS) for those that a developer defines.
    pub namespace: String,
    /// As the model writes it behind the namespace and a dot: see [`is_tool_name`].
    pub name: String,
    /// What it does, for the model.
    pub description: Option<String>,
    /// A JSON schema of its arguments, in the order in which the model is to see it; None if it takes none.
    pub parameters: Option<Value>,
    /// Whether arguments must be as the schema says, and not just any object.
    pub strict: bool,
    /// What text it takes, if that and not JSON is what it takes: then it has no parameters.
    pub text: Option<TextInput>,
}

/// The text that a tool takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextInput {
    /// Any.
    Any,
    /// That of a grammar in `llguidance`'s dialect of Lark, which is OpenAI's.
    Lark(String),
    /// What a regular expression matches, whole.
    Regex(String),
}

/// A form of the answer. The prompt tells the model of it; what enforces it is a grammar.
#[derive(Clone, Debug, PartialEq)]
pub struct ResponseFormat {
    /// Its heading.
    pub name: String,
    /// What it is for, for the model.
    pub description: Option<String>,
    /// A JSON schema.
    pub schema: Value,
}

/// What the developer message says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Developer {
    /// What other formats call the system prompt; may be empty.
    pub instructions: String,
    /// The functions.
    pub tools: Vec<Tool>,
    /// The forms of the answer.
    pub formats: Vec<ResponseFormat>,
}

impl Developer {
    /// The message, or None where there is nothing in it.
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

/// Whether a header can carry a name, and whoever reads it finds its end: no white space, nothing that begins a special
/// token or arguments, and no more than 256 bytes. OpenAI allows less (`[a-zA-Z0-9_-]{1,64}`), MCP's servers use more.
pub fn is_tool_name(name: &str) -> bool {
    let is_fit = |c: char| !c.is_whitespace() && !c.is_control() && !"<{[\"".contains(c);
    (1..=256).contains(&name.len()) && name.chars().all(is_fit)
}
