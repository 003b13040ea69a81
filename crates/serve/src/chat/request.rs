//! The body of `POST /v1/chat/completions`.

use crate::ask::{self, Ask};
use crate::conversation::ConversationItem;
use crate::error::ApiError;
use crate::field::{Field, refuse};
use crate::form::TextFormat;
use crate::tools::{Hosted, Tools, checked_name};
use chat::request_fields::Place;
use chat::{AssistantMessage, MessagePart, Phase};

/// Most answers of a request.
const MAX_CHOICES: i64 = 128;

/// A request for chat completions. What becomes of fields that are not read here is in [`chat::request_fields`].
#[derive(Debug)]
pub(crate) struct ChatRequest {
    /// What it has in common with others.
    pub(crate) ask: Ask,
    pub(crate) entries: Vec<ConversationItem>,
    pub(crate) n: usize,
    /// A last chunk has the usage.
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
    /// The answer is given without its reasoning.
    pub(crate) exclude_reasoning: bool,
}

impl ChatRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// What is missing, wrong or not supported, with its path.
    pub(crate) fn read(body: &Field) -> Result<Self, ApiError> {
        refuse(body, Place::Chats)?;
        let tools = Tools::read(body, Hosted::Refused)?;
        let format = TextFormat::of_request(body, body.get("response_format"))?;
        let entries = messages(body)?;
        let goes_on_with_last = goes_on(body, &entries)?;
        let ask = Ask {
            max_tokens: Ask::max_tokens(body, &["max_completion_tokens", "max_tokens"])?,
            n_logprobs: logprobs(body)?,
            goes_on_with_last,
            ..Ask::read(body, tools, format)?
        };
        let flag = |field: Option<Field>, absent| field.map_or(Ok(absent), |field| field.flag());
        let options = body.get("stream_options");
        let option = |name| flag(options.as_ref().and_then(|options| options.get(name)), false);
        let excludes = flag(body.get("reasoning").and_then(|reasoning| reasoning.get("exclude")), false)?;
        Ok(Self {
            n: body.get("n").map_or(Ok(1), |n| n.integer(1..=MAX_CHOICES))?.unsigned_abs() as usize,
            include_usage: option("include_usage")?,
            continuous_usage: option("continuous_usage_stats")?,
            exclude_reasoning: excludes || !flag(body.get("include_reasoning"), true)?,
            entries,
            ask,
        })
    }

    /// What its prompt is made of.
    pub(crate) fn parts(&self) -> (&Ask, &[ConversationItem]) {
        (&self.ask, &self.entries)
    }
}

fn logprobs(body: &Field) -> Result<Option<usize>, ApiError> {
    let wanted = body.get("logprobs").map_or(Ok(false), |logprobs| logprobs.flag())?;
    let top = Ask::top_logprobs(body)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => {
            Err(body.need("top_logprobs")?.error("invalid_value", "`top_logprobs` needs `logprobs: true`".to_owned()))
        }
    }
}

/// Whether the model goes on with the last message, which has to be the assistant's text then. No other prompt ends
/// without the beginning of an answer.
fn goes_on(body: &Field, entries: &[ConversationItem]) -> Result<bool, ApiError> {
    let flag = |name| body.get(name).map(|field| field.flag().map(|flag| (field, flag))).transpose();
    let (continues, adds) = (flag("continue_final_message")?, flag("add_generation_prompt")?);
    let Some((field, _)) = continues.filter(|(_, continues)| *continues) else {
        return match adds {
            Some((field, false)) => {
                Err(field
                    .unsupported("a prompt without the beginning of an answer needs `continue_final_message: true`"))
            }
            _ => Ok(false),
        };
    };
    if let Some((adds, true)) = adds {
        return Err(adds.wrong("`false` beside `continue_final_message`"));
    }
    if !entries.last().is_some_and(ConversationItem::ends_in_text) {
        return Err(field.wrong("`false`, where the last message is no text of the assistant"));
    }
    Ok(true)
}

fn messages(body: &Field) -> Result<Vec<ConversationItem>, ApiError> {
    let messages = body.need("messages")?;
    let list = messages.list()?;
    if list.is_empty() {
        return Err(messages.wrong("a list of at least one message"));
    }
    list.iter().map(message).collect()
}

fn message(message: &Field) -> Result<ConversationItem, ApiError> {
    let content = || ask::content_text(&message.need("content")?);
    let role = message.need("role")?;
    let roles = [("developer", 0), ("system", 0), ("user", 1), ("assistant", 2), ("tool", 3), ("function", 4)];
    Ok(match role.one_of(&roles)? {
        0 => ConversationItem::Developer(content()?),
        1 => ConversationItem::User(content()?),
        2 => ConversationItem::Assistant(assistant(message)?),
        3 => {
            let call_id = message.need("tool_call_id")?;
            ConversationItem::Result {
                call_id: call_id.text()?.to_owned(),
                text: content()?,
                path: call_id.path().to_owned(),
            }
        }
        _ => {
            let name = message.need("name")?;
            ConversationItem::Result { call_id: old_id(name.text()?), text: content()?, path: name.path().to_owned() }
        }
    })
}

/// Functions of the old API had no ids: their results are matched by name.
fn old_id(name: &str) -> String {
    format!("function {name}")
}

fn assistant(message: &Field) -> Result<Vec<AssistantMessage>, ApiError> {
    let mut parts = Vec::new();
    let reasoning = message.get("reasoning").or_else(|| message.get("reasoning_content"));
    if let Some(reasoning) = reasoning {
        parts.push(MessagePart::Reasoning(ask::content_text(&reasoning)?));
    }
    if let Some(content) = message.get("content") {
        let phases = [("commentary", Phase::Commentary), ("final_answer", Phase::FinalAnswer)];
        let phase = message.get("phase").map(|phase| phase.one_of(&phases)).transpose()?;
        parts.push(MessagePart::Content { text: ask::content_text(&content)?, phase });
    }
    for call in message.get("tool_calls").map_or(Ok(Vec::new()), |calls| calls.list())? {
        if let Some(kind) = call.get("type") {
            kind.one_of(&[("function", ())])?;
        }
        let (id, function) = (call.need("id")?.text()?.to_owned(), call.need("function")?);
        parts.push(ask::call(id, checked_name(&function.need("name")?)?, arguments(&function)?));
    }
    if let Some(function) = message.get("function_call") {
        let name = checked_name(&function.need("name")?)?;
        parts.push(ask::call(old_id(name), name, arguments(&function)?));
    }
    Ok(parts.into_iter().map(AssistantMessage::from).collect())
}

fn arguments<'a>(function: &Field<'a>) -> Result<&'a str, ApiError> {
    function.get("arguments").map_or(Ok("{}"), |arguments| arguments.text())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(body: &Value) -> Result<ChatRequest, ApiError> {
        ChatRequest::read(&Field::body(body).expect("an object"))
    }

    fn entries(messages: Value) -> Result<Vec<ConversationItem>, (String, String)> {
        let read = read(&json!({ "messages": messages }));
        read.map(|request| request.entries).map_err(|error| {
            let error = &error.body()["error"];
            let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
            (text("code"), text("param"))
        })
    }

    #[test]
    fn an_assistants_message_is_its_parts_in_order() {
        let call = json!({"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}});
        for name in ["reasoning", "reasoning_content"] {
            let mut message = json!({"role": "assistant", "content": "", "tool_calls": [call]});
            message[name] = "Hm.".into();
            let want = vec![
                MessagePart::Reasoning("Hm.".into()),
                MessagePart::Content { text: String::new(), phase: None },
                ask::call("call_1".into(), "f", "{\"a\":1}"),
            ];
            let want = want.into_iter().map(AssistantMessage::from).collect();
            assert_eq!(entries(json!([message])), Ok(vec![ConversationItem::Assistant(want)]));
        }
        let both = json!({"role": "assistant", "content": null, "reasoning": "a", "reasoning_content": "b"});
        assert_eq!(
            entries(json!([both])),
            Ok(vec![ConversationItem::Assistant(vec![MessagePart::Reasoning("a".into()).into()])])
        );
    }

    #[test]
    fn errors_name_the_message() {
        let error = |messages: Value| entries(messages).expect_err("is wrong");
        let expected = |code: &str, param: &str| (code.to_owned(), param.to_owned());
        assert_eq!(error(json!([])), expected("invalid_value", "messages"));
        assert_eq!(error(json!("hello")), expected("invalid_value", "messages"));
        assert_eq!(error(json!([{"content": "a"}])), expected("missing_required_parameter", "messages[0].role"));
        assert_eq!(error(json!([{"role": "user"}])), expected("missing_required_parameter", "messages[0].content"));
        assert_eq!(error(json!([{"role": "bot", "content": "a"}])), expected("invalid_value", "messages[0].role"));
        let image = json!([{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "image_url"}]}]);
        assert_eq!(error(image), expected("unsupported_value", "messages[1].content[0].type"));
        let no_id = json!([{"role": "tool", "content": "a"}]);
        assert_eq!(error(no_id), expected("missing_required_parameter", "messages[0].tool_call_id"));
    }

    #[test]
    fn what_the_server_does_not_do_is_refused_and_what_means_nothing_is_not() {
        let with = |name: &str, value: Value| {
            let mut body = json!({"messages": [{"role": "user", "content": "a"}]});
            body[name] = value;
            read(&body)
                .map(|_| ())
                .map_err(|error| error.body()["error"]["param"].as_str().unwrap_or_default().to_owned())
        };
        for (name, value) in [
            ("audio", json!({"voice": "a"})),
            ("functions", json!([{"name": "f"}])),
            ("min_tokens", json!(3)),
            ("top_logprobs", json!(3)),
            ("n", json!(0)),
            ("reasoning_effort", json!("lots")),
        ] {
            assert_eq!(with(name, value), Err(name.to_owned()));
        }
        assert_eq!(with("modalities", json!(["text", "audio"])), Err("modalities".into()));
        for (name, value) in [
            ("user", json!("u")),
            ("metadata", json!({"a": "b"})),
            ("store", json!(true)),
            ("service_tier", json!("auto")),
            ("verbosity", json!("low")),
            ("modalities", json!(["text"])),
            ("parallel_tool_calls", json!(true)),
            ("response_format", json!({"type": "text"})),
            ("tools", json!([])),
            ("unheard_of", json!({"a": 1})),
        ] {
            assert_eq!(with(name, value), Ok(()), "{name}");
        }
    }
}
