//! The grammar of an answer to a template's prompt: reasoning, then text, JSON or calls, and an end.

use serde_json::Value;

use super::call::text_parameters;
use super::markup::{CallMarks, Markup, Shape};
use crate::grammar::written::{ANY_TEXT, arguments_schema, callable, form, inline, mark};
use crate::grammar::{GrammarError, Thoughts, ToolChoice, Wanted};
use crate::{TextInput, Tool};
use model::tokenizer::Tokenizer;

/// Blanks around marks.
const BLANKS: &str = "BLANKS: /[ \\n]{1,3}/";

/// The grammar of a generation.
///
/// # Errors
/// What is wanted contradicts itself, or is beyond the marks.
pub(super) fn grammar(
    wanted: &Wanted,
    markup: &Markup,
    tokenizer: &Tokenizer,
    ends: &[u32],
) -> Result<String, GrammarError> {
    let tools = callable(wanted)?;
    let must_call = matches!(wanted.choice, ToolChoice::Required | ToolChoice::Named(_));
    let form = wanted.format.as_ref().map(form).transpose()?;
    let mut rules = Rules { rules: vec![format!("TEXT: {ANY_TEXT}"), BLANKS.to_owned()], tokenizer };
    let ends = ends.iter().map(|&id| mark(id)).collect::<Vec<_>>().join(" | ");
    rules.add(format!("end: BLANKS? ({ends})"));
    let thoughts = rules.thoughts(wanted.thoughts, markup);
    let calls = match (tools.is_empty(), &markup.calls) {
        (true, _) => None,
        (false, None) => return Err(GrammarError::NoCalls),
        (false, Some(marks)) => Some((marks, rules.calls(marks, &tools, &wanted.choice)?)),
    };
    let words = match (&form, &calls) {
        (Some(form), _) => {
            rules.add(format!("form: {form}"));
            "form".to_owned()
        }
        (None, Some((marks, _))) if !must_call => rules.words(marks, &tools),
        (None, _) => "TEXT".to_owned(),
    };
    rules.add(match (must_call, calls) {
        (true, Some((_, calls))) => format!("start: {thoughts}{} end", calls.alone),
        // Beside an answer that must be JSON there are no other words.
        (_, Some((_, calls))) if form.is_some() => format!("start: {thoughts}({words} | {}) end", calls.alone),
        (_, Some((_, calls))) => format!("start: {thoughts}({words} ({ends}) | {} end)", calls.behind_words),
        (_, None) => format!("start: {thoughts}{words} ({ends})"),
    });
    Ok(rules.rules.join("\n"))
}

/// The names of rules for calls.
struct Calls {
    alone: String,
    /// With words before, or without.
    behind_words: String,
}

struct Rules<'a> {
    rules: Vec<String>,
    tokenizer: &'a Tokenizer,
}

impl Rules<'_> {
    fn add(&mut self, rule: String) {
        self.rules.push(rule);
    }

    /// A mark: a special token, or characters.
    fn mark(&self, text: &str) -> String {
        self.tokenizer.special(text).map_or_else(|| quoted(text), mark)
    }

    /// A rule for any text and the mark after it.
    fn up_to(&mut self, rule: &str, text: &str) {
        let with_end = match self.tokenizer.special(text) {
            Some(id) => format!("{rule}: TEXT {}", mark(id)),
            None => format!("{rule}[suffix={}]: {ANY_TEXT}", quoted(text)),
        };
        self.add(with_end);
    }

    /// What stands before an answer.
    fn thoughts(&mut self, thoughts: Thoughts, markup: &Markup) -> String {
        let Some(marks) = markup.reasoning.as_ref().filter(|_| thoughts != Thoughts::None) else {
            return String::new();
        };
        self.up_to("thoughts", &marks.end);
        match thoughts {
            Thoughts::Begun => "thoughts BLANKS? ".to_owned(),
            _ => format!("(BLANKS? {} thoughts BLANKS?)? ", self.mark(&marks.begin)),
        }
    }

    /// Any words in which no call begins.
    fn words(&mut self, marks: &CallMarks, tools: &[&Tool]) -> String {
        if !marks.opens.is_empty() {
            return format!("{} TEXT", quoted(&marks.opens));
        }
        if !marks.bare.is_empty() {
            self.add(r"WORDS: /([ \n]*[^ \n{](.|\n)*)?/".to_owned());
            return "WORDS".to_owned();
        }
        let is_text = self.tokenizer.special(&marks.begin).is_none() && !marks.begin.is_empty();
        if is_text && !tools.is_empty() {
            self.add(format!("WORDS: {ANY_TEXT} & ~/(.|\\n)*{}(.|\\n)*/", escaped(&marks.begin)));
            return "WORDS".to_owned();
        }
        "TEXT".to_owned()
    }

    fn calls(&mut self, marks: &CallMarks, tools: &[&Tool], choice: &ToolChoice) -> Result<Calls, GrammarError> {
        if marks.shape == Shape::Pairs {
            self.up_to("key", &marks.key_end);
            self.up_to("value", &marks.value_end);
        }
        let mut schemas: Vec<String> = Vec::new();
        let mut bodies = Vec::new();
        for (i, tool) in tools.iter().enumerate() {
            let arguments = arguments(tool, marks)?;
            let shared = schemas.iter().position(|schema| *schema == arguments).unwrap_or_else(|| {
                self.add(format!("arguments_{}: {arguments}", schemas.len()));
                schemas.push(arguments);
                schemas.len() - 1
            });
            let arguments = format!("arguments_{shared}");
            let body = match marks.shape {
                Shape::Object | Shape::List => {
                    let key = marks.arguments.first().map_or("arguments", String::as_str);
                    let head = format!("{{\"name\": {}, \"{key}\": ", Value::from(tool.name.as_str()));
                    format!("{} {arguments} \"}}\"", quoted(&head))
                }
                Shape::Named => format!("{} {} {arguments}", quoted(&tool.name), self.mark(&marks.name_end)),
                Shape::Pairs => {
                    let head = [&marks.name_begin, tool.name.as_str(), &marks.name_end].concat();
                    format!("{} {arguments}", quoted(&head))
                }
            };
            self.add(format!("tool_{i}: {body}"));
            bodies.push(format!("tool_{i}"));
        }
        self.add(format!("tool: {}", bodies.join(" | ")));
        let is_one = matches!(choice, ToolChoice::Named(_));
        let many = |first: &str, next: &str| if is_one { first.to_owned() } else { format!("{first} ({next})*") };
        let end = if marks.end.is_empty() { String::new() } else { format!(" BLANKS? {}", self.mark(&marks.end)) };
        if marks.begin.is_empty() || !marks.bare.is_empty() {
            let between = if marks.between.is_empty() { String::new() } else { format!("{} ", quoted(&marks.between)) };
            self.add(format!("calls: {}", many("tool", &format!("{between}BLANKS? tool"))));
            let begin = if marks.begin.is_empty() { String::new() } else { format!("{}? ", self.mark(&marks.begin)) };
            let alone = format!("{begin}calls");
            return Ok(Calls { behind_words: alone.clone(), alone });
        }
        let begin = self.mark(&marks.begin);
        let (call, next) = match marks.shape {
            Shape::List => (format!("BLANKS? \"[\" {} \"]\"{end}", many("tool", "(\", \" | \",\") tool")), None),
            _ => (format!("BLANKS? tool{end}"), Some(format!("BLANKS? {begin} call"))),
        };
        self.add(format!("call: {call}"));
        self.up_to("before_call", &marks.begin);
        let all = next.map_or("call".to_owned(), |next| many("call", &next));
        Ok(Calls { alone: format!("BLANKS? {begin} {all}"), behind_words: format!("before_call {all}") })
    }
}

/// The arguments of a tool.
fn arguments(tool: &Tool, marks: &CallMarks) -> Result<String, GrammarError> {
    if let Some(TextInput::Lark(_)) = tool.text {
        let why = "this model calls tools with JSON, not with text that follows a grammar".to_owned();
        return Err(GrammarError::Text { name: tool.name.clone(), why });
    }
    if let (Some(text), true) = (&tool.text, marks.shape != Shape::Pairs) {
        return Ok(inline(&text_parameters(text)));
    }
    if marks.shape != Shape::Pairs {
        return Ok(inline(&arguments_schema(tool)?));
    }
    if tool.strict || matches!(tool.text, Some(TextInput::Regex(_))) {
        let why = "this model does not write arguments as JSON".to_owned();
        return Err(GrammarError::Tool { name: tool.name.clone(), why });
    }
    // Whatever stands between marks: keys and values have no schema.
    let close = if marks.close.is_empty() { String::new() } else { format!(" BLANKS? {}", quoted(&marks.close)) };
    let (key_begin, value_begin) = (quoted(&marks.key_begin), quoted(&marks.value_begin));
    Ok(format!("(BLANKS? {key_begin} key BLANKS? {value_begin} value)*{close}"))
}

/// Text as a grammar has it.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Text in a regular expression between slashes.
fn escaped(text: &str) -> String {
    let mut written = String::new();
    for c in text.chars() {
        match c {
            '\n' => written += "\\n",
            // Before others, such as `<`, a backslash has a meaning.
            c if r"\/.+*?()|[]{}^$".contains(c) => written.extend(['\\', c]),
            c => written.push(c),
        }
    }
    written
}

#[cfg(test)]
mod tests;
