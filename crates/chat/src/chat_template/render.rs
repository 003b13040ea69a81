//! Rendering, in a process with bounds: what is asked of it, what it answers, and the engine.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::{Deserialize, Serialize};

use super::json::python_json;
use super::{Given, TemplateMessage};
use crate::today;

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
        let mut pairs = vec![("role", self.role.as_str()), ("content", &self.content)];
        // gpt-oss' template and those of most others have a name of their own for it.
        let thinking = self.thinking.as_deref();
        pairs.extend(thinking.into_iter().flat_map(|text| [("thinking", text), ("reasoning_content", text)]));
        Value::from_pairs(pairs)
    }
}

impl Given {
    fn value(&self) -> Value {
        let messages: Value = self.messages.iter().map(TemplateMessage::value).collect();
        let tools = if self.tools.is_empty() { Value::from(()) } else { Value::from(Serde(&self.tools)) };
        let own = [("messages", messages), ("tools", tools), ("add_generation_prompt", true.into())];
        let words = self.words.iter().map(|(name, word)| (name.as_str(), Value::from(Serde(word))));
        Value::from_pairs(own.into_iter().chain(words))
    }
}

/// What became of a job: why the template does not compile, or what each conversation gave.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum PromptRenderResult {
    NoTemplate(String),
    Rendered(Vec<Result<String, String>>),
}

/// Does a job, with no bound but on steps.
pub(super) fn render(job: &PromptRenderJob) -> PromptRenderResult {
    let mut environment = environment();
    if let Err(error) = environment.add_template("chat", &job.template) {
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
    environment.add_filter("tojson", tojson);
    // Jinja's strings have Python's methods.
    environment.set_unknown_method_callback(unknown_method_callback);
    environment
}

/// As Hugging Face's filter: Python's JSON, characters beyond ASCII as they are.
fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let _: Option<bool> = options.get("ensure_ascii")?; // which changes how JSON is spelled, and not what it says
    options.assert_all_used()?;
    let text = python_json(value, indent);
    text.map(Value::from).map_err(|why| Error::new(ErrorKind::BadSerialization, why.to_string()))
}

/// Today in UTC, of which a template may ask for `%Y`, `%m` and `%d`.
fn now(format: String) -> Result<String, Error> {
    let today = today();
    let parts: Vec<&str> = today.split('-').collect();
    let text = format.replace("%Y", parts[0]).replace("%m", parts[1]).replace("%d", parts[2]);
    if text.contains('%') {
        let what = format!("strftime_now: expected %Y, %m and %d alone, found `{format}`");
        return Err(Error::new(ErrorKind::InvalidOperation, what));
    }
    Ok(text)
}
