//! The chat template of a checkpoint: Jinja that turns messages into a prompt, rendered as Hugging Face's
//! `apply_chat_template` does: `messages`, `add_generation_prompt`, `raise_exception` and `strftime_now`, blocks
//! trimmed.
//!
//! A template sees marks where people's and the model's words will be. Names of special tokens that the template writes
//! are those tokens; inside of a message they are text, so nobody ends a message by writing `<|end|>`.

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value, context};

use crate::error::Hint;
use crate::harmony::{Channel, Message, Role, today};
use crate::tokenizer::{Part, Tokenizer, TokenizerError};

/// Around the number of a message; the last character of Unicode's last private plane.
const MARK: char = '\u{10fffd}';

/// Steps that a template may take: gpt-oss' takes some hundreds for each message.
const FUEL: u64 = 10_000_000;

/// A template that could be compiled.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
}

/// Why a template cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ChatTemplateError {
    /// It is not what the language allows.
    #[error("could not compile the chat template")]
    Compile(#[source] Error),
    /// It refused the messages, or took too long.
    #[error("could not render the chat template")]
    Render(#[source] Error),
    /// Its words are not in the vocabulary.
    #[error("could not convert what the chat template wrote")]
    Tokenizer(#[from] TokenizerError),
}

impl Hint for ChatTemplateError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Compile(_) | Self::Render(_) => Some("`--chat-format harmony` leaves it alone".into()),
            Self::Tokenizer(source) => source.hint(),
        }
    }
}

/// A part of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece<'a> {
    /// The template's own.
    Own(String),
    /// A message's.
    Words(&'a str),
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// [`ChatTemplateError::Compile`] says where it is wrong.
    pub fn new(source: &str) -> Result<Self, ChatTemplateError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("the default delimiters are legal"));
        environment.set_fuel(Some(FUEL));
        environment.add_function("raise_exception", |why: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, why))
        });
        environment.add_function("strftime_now", now);
        environment.add_template_owned("chat", source.to_owned()).map_err(ChatTemplateError::Compile)?;
        Ok(Self { environment })
    }

    /// The prompt for the assistant's next words, as ids.
    ///
    /// # Errors
    /// [`ChatTemplateError::Render`], [`ChatTemplateError::Tokenizer`].
    pub fn prompt(&self, conversation: &[Message], tokenizer: &Tokenizer) -> Result<Vec<u32>, ChatTemplateError> {
        let pieces = self.pieces(conversation)?;
        let parts = pieces.iter().map(|piece| match piece {
            Piece::Own(text) => Part { text, is_trusted: true },
            Piece::Words(text) => Part { text, is_trusted: false },
        });
        Ok(tokenizer.encode_parts(&parts.collect::<Vec<_>>())?)
    }

    fn pieces<'a>(&self, conversation: &'a [Message]) -> Result<Vec<Piece<'a>>, ChatTemplateError> {
        let messages = Value::from(messages(conversation));
        let template = self.environment.get_template("chat").map_err(ChatTemplateError::Render)?;
        let rendered =
            template.render(context! { messages, add_generation_prompt => true }).map_err(ChatTemplateError::Render)?;
        // Marks come in pairs around a number: every second part is one.
        let part = |(i, part): (usize, &str)| match part.parse::<usize>().ok().filter(|_| i % 2 == 1) {
            Some(number) => conversation.get(number).map(|message| Piece::Words(&message.text)),
            None => Some(Piece::Own(part.to_owned())).filter(|_| !part.is_empty()),
        };
        Ok(rendered.split(MARK).enumerate().filter_map(part).collect())
    }
}

/// Messages as templates know them. The assistant's analysis is the `thinking` of the message behind it.
fn messages(conversation: &[Message]) -> Vec<Value> {
    let mut thinking = None;
    let mut messages = Vec::new();
    for (i, message) in conversation.iter().enumerate() {
        let words = format!("{MARK}{i}{MARK}");
        if message.role == Role::Assistant && message.channel == Some(Channel::Analysis) {
            thinking = Some(words);
            continue;
        }
        let mut entry = vec![("role", message.role.name().to_owned()), ("content", words)];
        entry.extend(thinking.take().filter(|_| message.role == Role::Assistant).map(|words| ("thinking", words)));
        messages.push(Value::from_pairs(entry));
    }
    messages
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harmony::prompt_text;

    /// Harmony as far as a plain conversation goes.
    const HARMONY: &str = "{%- for message in messages %}
        {%- if message.role == 'assistant' %}
            {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
        {%- else %}
            {{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}
        {%- endif %}
    {%- endfor %}
    {%- if add_generation_prompt %}{{- '<|start|>assistant' }}{% endif %}
";

    fn conversation() -> Vec<Message> {
        vec![
            Message::new(Role::System, "You are brief."),
            Message::new(Role::User, "Hello <|end|> there"),
            Message::assistant(Channel::Analysis, "A greeting."),
            Message::assistant(Channel::Final, "Hi."),
            Message::new(Role::User, "Bye"),
        ]
    }

    #[test]
    fn a_template_that_writes_harmony_gives_the_prompt_of_harmony() {
        let conversation = conversation();
        let pieces = ChatTemplate::new(HARMONY).expect("compiles").pieces(&conversation).expect("renders");
        let text = |piece: &Piece| match piece {
            Piece::Own(text) => text.clone(),
            Piece::Words(text) => (*text).to_owned(),
        };
        assert_eq!(pieces.iter().map(text).collect::<String>(), prompt_text(&conversation));
        assert!(pieces.contains(&Piece::Words("Hello <|end|> there")));
    }

    #[test]
    fn special_tokens_are_the_templates_alone() {
        let tokenizer = Tokenizer::o200k_harmony();
        let template = ChatTemplate::new(HARMONY).expect("compiles");
        let ids = template.prompt(&conversation(), &tokenizer).expect("renders");
        let end = tokenizer.special("<|end|>").expect("harmony has it");
        assert_eq!(
            ids.iter().filter(|&&id| id == end).count(),
            4,
            "of four messages, and not the one that a user wrote"
        );
    }

    #[test]
    fn words_go_from_the_template_into_a_message() {
        let tokenizer = Tokenizer::o200k_harmony();
        let template =
            ChatTemplate::new("<|start|>{{ messages[0].content }}{{ '\n\n' }}there<|end|>").expect("compiles");
        let ids = template.prompt(&[Message::new(Role::User, "Brief.")], &tokenizer).expect("renders");
        assert_eq!(ids, tokenizer.encode_with_specials(b"<|start|>Brief.\n\nthere<|end|>").expect("encodes"));
        let encode = |text: &str| tokenizer.encode(text.as_bytes()).expect("encodes");
        assert_ne!(
            ids[1..ids.len() - 1],
            [encode("Brief."), encode("\n\nthere")].concat(),
            "the full stop and the line ends are a word"
        );
    }

    #[test]
    fn what_was_thought_stands_beside_what_was_said() {
        let template = "{% for message in messages %}{% if message.thinking %}({{ message.thinking }}){% endif %}{{ message.content }};{% endfor %}";
        let conversation = conversation();
        let pieces = ChatTemplate::new(template).expect("compiles").pieces(&conversation).expect("renders");
        let at = pieces.iter().position(|piece| *piece == Piece::Words("A greeting.")).expect("it is there");
        assert_eq!(pieces[at + 2], Piece::Words("Hi."));
    }

    #[test]
    fn what_a_template_refuses_or_never_ends_is_an_error() {
        let error = |source: &str| {
            let rendered = ChatTemplate::new(source).and_then(|template| template.pieces(&conversation()).map(drop));
            let error = rendered.expect_err(source);
            format!("{error}: {}", std::error::Error::source(&error).expect("a cause"))
        };
        assert!(error("{% for %}").starts_with("could not compile the chat template: syntax error"));
        assert!(error("{{ raise_exception('no system message') }}").contains("no system message"));
        assert!(error("{{ strftime_now('%H') }}").contains("found `%H`"));
        let endless = "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}";
        assert!(error(endless).starts_with("could not render"));
        let long = "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}";
        assert!(error(long).contains("fuel"));
    }

    #[test]
    fn today_is_written_as_a_template_wants_it() {
        let template = ChatTemplate::new("{{ strftime_now('%d.%m.%Y') }}").expect("compiles");
        let [Piece::Own(date)] = &template.pieces(&[]).expect("renders")[..] else { panic!("one piece") };
        let today = today();
        assert_eq!(date.split('.').rev().collect::<Vec<_>>().join("-"), today);
    }
}
