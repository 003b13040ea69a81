//! Renders in a bounded process: its request, its answer, and the template engine.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::{Deserialize, Serialize};

use super::moment::Moment;
use super::percent::with_format;
use super::{Given, TemplateMessage, filters, methods};

/// Steps that a template may take: gpt-oss' takes some hundreds for each message.
const FUEL: u64 = 10_000_000;

/// Conversations to render.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PromptRenderJob {
    pub(crate) template: String,
    pub(crate) conversations: Vec<Given>,
}

/// The longest prompt: ids of four bytes each would fill a context of two million tokens.
const MAX_PROMPT_BYTES: usize = 8 << 20;

impl TemplateMessage {
    fn value(&self) -> Value {
        let mut pairs: Vec<(&str, Value)> =
            vec![("role", self.role.as_str().into()), ("content", self.content.as_str().into())];
        // gpt-oss' template and those of most others have a name of their own for it.
        let thinking = self.thinking.as_deref();
        let thinking = thinking.into_iter().flat_map(|text| [("thinking", text), ("reasoning_content", text)]);
        pairs.extend(thinking.map(|(key, text)| (key, text.into())));
        if !self.tool_calls.is_empty() {
            pairs.push(("tool_calls", Value::from(Serde(&self.tool_calls))));
        }
        if let Some((id, name)) = &self.call {
            pairs.extend([("tool_call_id", id.as_str().into()), ("name", name.as_str().into())]);
        }
        Value::from_pairs(pairs)
    }
}

impl Given {
    fn value(&self) -> Value {
        let messages: Value = self.messages.iter().map(TemplateMessage::value).collect();
        let tools = if self.tools.is_empty() { Value::from(()) } else { Value::from(Serde(&self.tools)) };
        let own = [("messages", messages), ("tools", tools), ("add_generation_prompt", (!self.is_continued).into())];
        let words = self.words_of_others.iter().filter(|(name, _)| !own.iter().any(|(own, _)| own == name));
        let words = self.words.iter().chain(words).map(|(name, word)| (name.as_str(), Value::from(Serde(word))));
        // Of two with one name, the last.
        Value::from_pairs(words.chain(own.iter().map(|(name, value)| (*name, value.clone()))))
    }
}

/// The result of a job: why the template does not compile, or the result for each conversation.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum PromptRenderResult {
    NoTemplate(String),
    Rendered(Vec<Result<String, String>>),
}

/// Does a job, with no bound but on steps.
pub(super) fn render(job: &PromptRenderJob) -> PromptRenderResult {
    let mut environment = environment();
    let lines = job.template.replace("\r\n", "\n").replace('\r', "\n");
    let template = with_format(&without_generation(&lines));
    if let Err(error) = environment.add_template("chat", &template) {
        return PromptRenderResult::NoTemplate(said(&error));
    }
    let rendered = job.conversations.iter().map(|given| {
        let template = environment.get_template("chat").map_err(|error| said(&error))?;
        let prompt = template.render(given.value());
        match prompt.map_err(|error| said(&error))? {
            prompt if prompt.len() > MAX_PROMPT_BYTES => {
                Err(format!("it writes {} bytes, expected {MAX_PROMPT_BYTES} at most", prompt.len()))
            }
            prompt => Ok(prompt),
        }
    });
    PromptRenderResult::Rendered(rendered.collect())
}

/// An error with its causes.
fn said(error: &Error) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.fold(error.to_string(), |said, cause| format!("{said}: {cause}"))
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the default delimiters are legal"));
    environment.set_fuel(Some(FUEL));
    environment.add_function("raise_exception", |why: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, why))
    });
    environment.add_function("strftime_now", now);
    filters::add_to(&mut environment);
    // Jinja's strings have Python's methods.
    environment.set_unknown_method_callback(methods::call);
    environment
}

/// The present in UTC, spelled as Python's `strftime` does.
fn now(format: String) -> Result<String, Error> {
    Moment::now().spelled(&format).map_err(|unknown| {
        let what = format!("strftime_now: expected {}, found `{unknown}` in `{format}`", Moment::KNOWN);
        Error::new(ErrorKind::InvalidOperation, what)
    })
}

/// A template in which `{% generation %}`, by which trainers find what the assistant says, does nothing: the names of
/// the two tags are others, of the same meaning for blanks around them.
fn without_generation(template: &str) -> String {
    let mut written = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        written.push_str(before);
        let Some(end) = tag.find("%}") else { break };
        let inner = &tag[2..end];
        let name = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let plain = match name {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        written.push_str("{%");
        rest = match plain {
            Some(plain) => {
                written += &inner.replacen(name, &format!(" {plain} "), 1);
                &tag[end..]
            }
            None => &tag[2..],
        };
    }
    written + rest
}
