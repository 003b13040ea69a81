//! The parts of which all grammars of generations are composed, in `llguidance`'s dialect of Lark.

use serde_json::{Value, json};

use super::{AnswerFormat, GrammarError, ToolChoice, Wanted, schema};
use crate::{TextInput, Tool, is_tool_name};

/// A token, as grammars name it: by id.
pub(crate) fn mark(id: u32) -> String {
    format!("<[{id}]>")
}

/// White space between the tokens of JSON: what models write, bounded, so that a generation ends.
const WHITE_SPACE: &str = r" {1,2}|\n[ \t]{0,40}";

/// A grammar of nothing but a schema, to see whether it compiles.
pub(super) fn schema_alone(schema: &Value, end: u32) -> String {
    format!("start: {} {}", inline(schema), mark(end))
}

/// The same for the text of a tool.
pub(super) fn text_alone(text: &TextInput, end: u32) -> String {
    format!("TEXT: {ANY_TEXT}\nstart: {} {}", text_input(text), mark(end))
}

/// The grammar of a tool's text; `TEXT` is any text. A client's grammar is nested, so that its names stay separate.
pub(crate) fn text_input(text: &TextInput) -> String {
    match text {
        TextInput::Any => "TEXT".to_owned(),
        text => format!("%lark {{\n{}\n}}", text_of_its_own(text).unwrap_or_default()),
    }
}

/// A client's grammar by itself. If it is valid alone, it stays inside the text that it is put into: its braces,
/// strings and expressions are closed.
pub(super) fn text_of_its_own(text: &TextInput) -> Option<String> {
    match text {
        TextInput::Any => None,
        TextInput::Lark(grammar) => Some(grammar.clone()),
        TextInput::Regex(regex) => Some(format!("start: /{}/", delimited(regex))),
    }
}

/// A regular expression between two slashes: those in it are escaped, and line breaks spelled.
fn delimited(regex: &str) -> String {
    let mut written = String::with_capacity(regex.len());
    let mut is_escaped = false;
    for c in regex.chars() {
        match c {
            '/' if !is_escaped => written.push_str("\\/"),
            '\n' => written.push_str(if is_escaped { "n" } else { "\\n" }),
            c => written.push(c),
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    written
}

/// The expression of any text.
pub(crate) const ANY_TEXT: &str = r"/(.|\n)*/";

/// The tools that may be called.
///
/// # Errors
/// One that must be is not there, or has a name that no header can carry.
pub(crate) fn callable(wanted: &Wanted) -> Result<Vec<&Tool>, GrammarError> {
    let tools: Vec<&Tool> = match &wanted.choice {
        ToolChoice::None => Vec::new(),
        ToolChoice::Auto => wanted.tools.iter().collect(),
        ToolChoice::Required if wanted.tools.is_empty() => return Err(GrammarError::NoTools),
        ToolChoice::Required => wanted.tools.iter().collect(),
        ToolChoice::Named(name) => match wanted.tools.iter().find(|tool| tool.name == *name) {
            Some(tool) => vec![tool],
            None => return Err(GrammarError::NoSuchTool { name: name.clone() }),
        },
    };
    match tools.iter().find(|tool| !is_tool_name(&tool.name) || !is_tool_name(&tool.namespace)) {
        Some(tool) => Err(GrammarError::ToolName { name: tool.name.clone() }),
        None => Ok(tools),
    }
}

/// What a tool's arguments must be: as its schema says if it is strict, else any object.
///
/// # Errors
/// [`GrammarError::Tool`]: its schema is none of an object.
pub(crate) fn arguments_schema(tool: &Tool) -> Result<Value, GrammarError> {
    let wrong = |why: String| GrammarError::Tool { name: tool.name.clone(), why };
    match &tool.parameters {
        _ if !tool.strict => Ok(json!({"type": "object"})),
        None => Ok(json!({"type": "object", "properties": {}, "additionalProperties": false})),
        Some(schema) => match schema.get("type") {
            _ if !is_within(schema, MAX_LEVELS) => Err(wrong(too_deep())),
            _ if !schema.is_object() => Err(wrong(format!("expected a schema that is an object, found {schema}"))),
            Some(kind) if kind != "object" => Err(wrong(format!("expected the type \"object\", found {kind}"))),
            _ => schema::adapted(schema).map_err(wrong),
        },
    }
}

/// The grammar of an answer's text.
///
/// # Errors
/// [`GrammarError::Format`]: it is none.
pub(crate) fn form(format: &AnswerFormat) -> Result<String, GrammarError> {
    let wrong = |why| GrammarError::Format { why };
    match format {
        AnswerFormat::JsonObject => Ok(inline(&json!({"type": "object"}))),
        AnswerFormat::Text(text) => Ok(text_input(text)),
        AnswerFormat::Schema(schema) if !is_within(schema, MAX_LEVELS) => Err(wrong(too_deep())),
        AnswerFormat::Schema(schema) if schema.is_object() => Ok(inline(&schema::adapted(schema).map_err(wrong)?)),
        AnswerFormat::Schema(schema) => Err(wrong(format!("expected a schema that is an object, found {schema}"))),
    }
}

/// JSON in a grammar is read with a stack, as everywhere.
const MAX_LEVELS: usize = 100;

fn is_within(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(values) => levels > 0 && values.iter().all(|value| is_within(value, levels - 1)),
        Value::Object(entries) => levels > 0 && entries.values().all(|value| is_within(value, levels - 1)),
        _ => true,
    }
}

fn too_deep() -> String {
    format!("it has more than {MAX_LEVELS} levels")
}

/// A schema inside of a grammar. Options that it brings along for the engine, which could loosen it, are replaced.
pub(crate) fn inline(schema: &Value) -> String {
    let mut schema = schema.clone();
    if let Value::Object(entries) = &mut schema {
        let options = json!({
            "whitespace_flexible": true,
            "whitespace_pattern": WHITE_SPACE,
            "json_allow_general_unicode_escapes": true,
        });
        entries.insert("x-guidance".into(), options);
    }
    format!("%json {schema}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_closed_by_its_own_slash_alone() {
        let written = |regex: &str| text_of_its_own(&TextInput::Regex(regex.into()));
        assert_eq!(written("a/b").as_deref(), Some(r"start: /a\/b/"));
        assert_eq!(written(r"a\/b").as_deref(), Some(r"start: /a\/b/"), "it is escaped");
        assert_eq!(written(r"a\\/b").as_deref(), Some(r"start: /a\\\/b/"), "the backslash is what was escaped");
        assert_eq!(written("a\nb\\\nc").as_deref(), Some(r"start: /a\nb\nc/"));
        assert_eq!(written("").as_deref(), Some("start: //"));
        assert_eq!(text_of_its_own(&TextInput::Any), None);
        let alone = text_alone(&TextInput::Lark("start: \"a\"".into()), 7);
        assert!(alone.ends_with("start: %lark {\nstart: \"a\"\n} <[7]>"), "{alone}");
    }

    #[test]
    fn a_schema_that_is_too_deep_is_refused_as_that() {
        let nested =
            |levels: usize| (1..levels).fold(json!({"type": "object"}), |inner, _| json!({"properties": inner}));
        let tool = |schema: Value| Tool {
            namespace: "functions".into(),
            name: "f".into(),
            description: None,
            parameters: Some(schema),
            strict: true,
            text: None,
        };
        let why = |schema| match arguments_schema(&tool(schema)) {
            Err(GrammarError::Tool { why, .. }) => Some(why),
            _ => None,
        };
        assert_eq!(why(nested(MAX_LEVELS + 1)), Some(too_deep()));
        assert_ne!(why(nested(MAX_LEVELS)), Some(too_deep()));
    }

    #[test]
    fn a_schema_alone_is_all_of_a_grammar() {
        let grammar = schema_alone(&json!({"type": "null"}), 7);
        assert!(grammar.starts_with("start: %json {\"type\":\"null\"") && grammar.ends_with("} <[7]>"), "{grammar}");
    }
}
