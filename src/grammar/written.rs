//! The grammar of a generation, in `llguidance`'s dialect of Lark.

use serde_json::{Value, json};

use super::{Format, GrammarError, ToolChoice, Wanted};
use crate::harmony::{TextInput, Tool, is_tool_name};
use crate::tokenizer::Tokenizer;

/// The special tokens, as grammars name tokens: by id.
pub(super) struct Marks {
    start: String,
    end: String,
    message: String,
    channel: String,
    constrain: String,
    call: String,
    return_: String,
    /// `<|return|>`
    pub end_of_answer: u32,
}

impl Marks {
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, GrammarError> {
        let mut names = Vec::new();
        let mut id = |name: &'static str| {
            tokenizer.special(name).unwrap_or_else(|| {
                names.push(name);
                0
            })
        };
        let end_of_answer = id("<|return|>");
        let mut mark = |name| format!("<[{}]>", id(name));
        let marks = Self {
            start: mark("<|start|>"),
            end: mark("<|end|>"),
            message: mark("<|message|>"),
            channel: mark("<|channel|>"),
            constrain: mark("<|constrain|>"),
            call: mark("<|call|>"),
            return_: format!("<[{end_of_answer}]>"),
            end_of_answer,
        };
        if names.is_empty() { Ok(marks) } else { Err(GrammarError::MissingSpecials { names }) }
    }
}

/// White space between the tokens of JSON: what models write, bounded, so that a generation ends.
const WHITE_SPACE: &str = r" {1,2}|\n[ \t]{0,40}";

/// The grammar of a generation.
pub(super) fn grammar(wanted: &Wanted, marks: &Marks) -> Result<String, GrammarError> {
    let Marks { start, end, message, channel, constrain, return_, .. } = marks;
    let tools = callable(wanted)?;
    let must_call = !matches!(wanted.choice, ToolChoice::None | ToolChoice::Auto);
    let form = wanted.format.as_ref().map(format_schema).transpose()?;
    let answer = if form.is_some() { "form" } else { "TEXT" };
    let mut rules = vec![format!("TEXT: {ANY_TEXT}")];
    if let Some(schema) = &form {
        rules.push(format!("form: {}", inline(schema)));
    }
    if !wanted.reasoning {
        if must_call {
            return Err(GrammarError::NoRoomForCalls);
        }
        rules.push(format!("start: {answer} {return_}"));
        return Ok(rules.join("\n"));
    }

    rules.push(format!("next: {start} \"assistant\""));
    rules.push(format!("analysis: {channel} \"analysis\" {message} TEXT {end}"));
    rules.push(format!("preamble: {channel} \"commentary\" {message} TEXT {end}"));
    let json = |head: &str| format!("\"{head} json\" | (\"{head} \" | \"{head}\") {constrain} \"json\"");
    let typed = if form.is_some() { format!("(\"final\" | {})", json("final")) } else { "\"final\"".into() };
    rules.push(format!("answer: {channel} {typed} {message} {answer} {return_}"));
    // Tools with the same schema, as all are that are not strict, share its grammar.
    let mut schemas: Vec<String> = Vec::new();
    for (i, tool) in tools.iter().enumerate() {
        let recipient = format!("to={}.{}", tool.namespace, tool.name);
        let recipient = recipient.replace('\\', "\\\\");
        let (arguments, kind): (_, &dyn Fn(&str) -> String) = match &tool.text {
            Some(text) => (text_input(text), &|head| format!("\"{head}\" | \"{head} code\"")),
            None => (inline(&arguments_schema(tool)?), &json),
        };
        let shared = schemas.iter().position(|schema| *schema == arguments).unwrap_or_else(|| {
            rules.push(format!("arguments_{}: {arguments}", schemas.len()));
            schemas.push(arguments);
            schemas.len() - 1
        });
        let (before, inside) = (kind("commentary"), kind(&format!("commentary {recipient}")));
        let before = format!("\" {recipient}\" {channel} ({before})");
        rules.push(format!("tool_{i}: ({before} | {channel} ({inside})) {message} arguments_{shared} {}", marks.call));
    }
    let calls: Vec<String> = (0..tools.len()).map(|i| format!("tool_{i}")).collect();
    let has_calls = !calls.is_empty();
    if has_calls {
        rules.push(format!("tool: {}", calls.join(" | ")));
    }
    let blocks = "((analysis | preamble) next)*";
    rules.push(match (must_call, has_calls, &form) {
        (true, ..) => format!("start: {blocks} tool"),
        (false, true, None) => format!("start: {blocks} (tool | answer)"),
        (false, false, None) => format!("start: {blocks} answer"),
        // What stands beside an answer that must be JSON would be a part of it: only a call may follow such words.
        (false, true, Some(_)) => format!("start: (analysis next)* (answer | tool | preamble next {blocks} tool)"),
        (false, false, Some(_)) => "start: (analysis next)* answer".to_owned(),
    });
    Ok(rules.join("\n"))
}

/// A grammar of nothing but a schema, to see whether it compiles.
pub(super) fn schema_alone(schema: &Value, marks: &Marks) -> String {
    format!("start: {} {}", inline(schema), marks.return_)
}

/// The same for the text of a tool.
pub(super) fn text_alone(text: &TextInput, marks: &Marks) -> String {
    format!("TEXT: {ANY_TEXT}\nstart: {} {}", text_input(text), marks.call)
}

/// The grammar of a tool's text. One that is somebody's own is nested, so that its names are its own.
fn text_input(text: &TextInput) -> String {
    match text {
        TextInput::Any => "TEXT".to_owned(),
        text => format!("%lark {{\n{}\n}}", text_of_its_own(text).unwrap_or_default()),
    }
}

/// What somebody wrote, as a grammar in no other. What is right so stays inside of what it is put into: its braces,
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

const ANY_TEXT: &str = r"/(.|\n)*/";

/// The tools that may be called.
fn callable(wanted: &Wanted) -> Result<Vec<&Tool>, GrammarError> {
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
fn arguments_schema(tool: &Tool) -> Result<Value, GrammarError> {
    let wrong = |why: String| GrammarError::Tool { name: tool.name.clone(), why };
    match &tool.parameters {
        _ if !tool.strict => Ok(json!({"type": "object"})),
        None => Ok(json!({"type": "object", "properties": {}, "additionalProperties": false})),
        Some(schema) => match schema.get("type") {
            _ if !is_within(schema, MAX_LEVELS) => Err(wrong(too_deep())),
            _ if !schema.is_object() => Err(wrong(format!("expected a schema that is an object, found {schema}"))),
            Some(kind) if kind != "object" => Err(wrong(format!("expected the type \"object\", found {kind}"))),
            _ => Ok(schema.clone()),
        },
    }
}

fn format_schema(format: &Format) -> Result<Value, GrammarError> {
    match format {
        Format::JsonObject => Ok(json!({"type": "object"})),
        Format::Schema(schema) if !is_within(schema, MAX_LEVELS) => Err(GrammarError::Format { why: too_deep() }),
        Format::Schema(schema) if schema.is_object() => Ok(schema.clone()),
        Format::Schema(schema) => {
            Err(GrammarError::Format { why: format!("expected a schema that is an object, found {schema}") })
        }
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
fn inline(schema: &Value) -> String {
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
