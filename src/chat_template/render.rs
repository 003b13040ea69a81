//! Rendering, in a process with bounds: what is asked of it, what it answers, and the engine.

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::{Deserialize, Serialize};

use crate::harmony::{Channel, Message, Role, today};

/// Steps that a template may take: gpt-oss' takes some hundreds for each message.
const FUEL: u64 = 10_000_000;

/// Conversations to render.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub template: String,
    pub conversations: Vec<Vec<Entry>>,
}

/// A message as templates know it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    role: String,
    content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<String>,
}

/// The longest prompt: ids of four bytes each would fill a context of two million tokens.
const MAX_PROMPT_BYTES: usize = 8 << 20;

impl Entry {
    fn value(&self) -> Value {
        let mut pairs = vec![("role", self.role.as_str()), ("content", &self.content)];
        pairs.extend(self.thinking.as_deref().map(|thinking| ("thinking", thinking)));
        Value::from_pairs(pairs)
    }
}

/// What became of a job: why the template does not compile, or what each conversation gave.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    NoTemplate(String),
    Rendered(Vec<Result<String, String>>),
}

/// Messages as templates know them. The assistant's analysis is the `thinking` of the message behind it.
pub(super) fn entries(conversation: &[Message]) -> Vec<Entry> {
    let mut thinking = None;
    let mut entries = Vec::new();
    for message in conversation {
        if message.role == Role::Assistant && message.channel == Some(Channel::Analysis) {
            thinking = Some(message.text.clone());
            continue;
        }
        let thinking = thinking.take().filter(|_| message.role == Role::Assistant);
        entries.push(Entry { role: message.role.name().to_owned(), content: message.text.clone(), thinking });
    }
    entries
}

/// Does a job, with no bound but on steps.
pub(super) fn render(job: &Job) -> Answer {
    let mut environment = environment();
    if let Err(error) = environment.add_template("chat", &job.template) {
        return Answer::NoTemplate(said(&error));
    }
    let rendered = job.conversations.iter().map(|messages| {
        let template = environment.get_template("chat").map_err(|error| said(&error))?;
        let messages: Vec<Value> = messages.iter().map(Entry::value).collect();
        let prompt = template.render(context! { messages, add_generation_prompt => true });
        match prompt.map_err(|error| said(&error))? {
            prompt if prompt.len() > MAX_PROMPT_BYTES => {
                Err(format!("it writes {} bytes, expected {MAX_PROMPT_BYTES} at most", prompt.len()))
            }
            prompt => Ok(prompt),
        }
    });
    Answer::Rendered(rendered.collect())
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
    // Jinja's strings have Python's methods.
    environment.set_unknown_method_callback(unknown_method_callback);
    environment
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
