//! The grammar of a generation in harmony.

use crate::grammar::written::{ANY_TEXT, arguments_schema, callable, form, inline, mark, text_input};
use crate::grammar::{AnswerFormat, GrammarError, Thoughts, ToolChoice, Wanted};
use crate::harmony::Marks;

/// The grammar of a generation: headers, calls by their schemas, JSON.
pub(super) fn grammar(wanted: &Wanted, marks: &Marks) -> Result<String, GrammarError> {
    let [start, end, message, channel] = [marks.start, marks.end, marks.message, marks.channel].map(mark);
    let [constrain, call, return_] = [marks.constrain, marks.call, marks.end_of_answer].map(mark);
    let tools = callable(wanted)?;
    let must_call = !matches!(wanted.choice, ToolChoice::None | ToolChoice::Auto);
    let form = wanted.format.as_ref().map(form).transpose()?;
    let is_json = wanted.format.as_ref().is_some_and(|format| !matches!(format, AnswerFormat::Text(_)));
    let answer = if form.is_some() { "form" } else { "TEXT" };
    let mut rules = vec![format!("TEXT: {ANY_TEXT}")];
    if let Some(form) = &form {
        rules.push(format!("form: {form}"));
    }
    if wanted.thoughts == Thoughts::None {
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
    let typed = if is_json { format!("(\"final\" | {})", json("final")) } else { "\"final\"".into() };
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
        rules.push(format!("tool_{i}: ({before} | {channel} ({inside})) {message} arguments_{shared} {call}"));
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
