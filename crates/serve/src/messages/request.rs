//! The body of `POST /v1/messages`, in the words of the other chat APIs.

use serde_json::{Map, Value, json};

use crate::ask::{self, Ask};
use crate::conversation::ConversationItem;
use crate::error::ApiError;
use crate::field::Field;
use crate::form::TextFormat;
use crate::tools::{Hosted, Tools, checked_name};
use chat::{AssistantMessage, MessagePart, Reasoning};

/// A request for a message.
#[derive(Debug)]
pub(crate) struct MessagesRequest {
    /// What it has in common with others.
    pub(crate) ask: Ask,
    pub(crate) entries: Vec<ConversationItem>,
    /// What the model thinks is told.
    pub(crate) shows_thinking: bool,
}

/// What is part of the API and not of this server.
const UNSUPPORTED: [&str; 4] = ["container", "context_management", "mcp_servers", "output_format"];

impl MessagesRequest {
    /// Reads a body. `sealed` opens reasoning that this server sealed.
    ///
    /// # Errors
    /// What is missing, wrong or not supported, with its path.
    pub(crate) fn read(body: &Field, sealed: &dyn Fn(&str) -> Option<AssistantMessage>) -> Result<Self, ApiError> {
        for name in UNSUPPORTED {
            let is_empty = |field: &Field| matches!(field.value(), Value::Array(list) if list.is_empty());
            if let Some(field) = body.get(name).filter(|field| !is_empty(field)) {
                return Err(ApiError::unsupported(name, format!("`{}` is not supported here", field.path())));
            }
        }
        let max_tokens = Ask::max_tokens(body, &["max_tokens"])?.ok_or_else(|| ApiError::missing("max_tokens"))?;
        let mut alike = Map::new();
        for (name, other) in [
            ("model", "model"),
            ("stream", "stream"),
            ("temperature", "temperature"),
            ("top_p", "top_p"),
            ("top_k", "top_k"),
            ("stop_sequences", "stop"),
        ] {
            alike.extend(body.get(name).map(|field| (other.to_owned(), field.value().clone())));
        }
        alike.insert("tools".to_owned(), tools(body)?);
        if let Some(choice) = body.get("tool_choice") {
            alike.insert("tool_choice".to_owned(), tool_choice(&choice)?);
        }
        let (effort, shows_thinking) = thinking(body)?;
        let alike = Value::Object(alike);
        let alike = Field::body(&alike)?;
        let ask = Ask {
            max_tokens: Some(max_tokens),
            effort: effort.unwrap_or_else(|| Some(Reasoning::default())),
            names_effort: matches!(effort, Some(Some(_))),
            ..Ask::read(&alike, Tools::read(&alike, Hosted::Refused)?, TextFormat::Text)?
        };
        let mut entries = Vec::new();
        if let Some(system) = body.get("system") {
            entries.push(ConversationItem::Developer(text(&system)?));
        }
        let messages = body.need("messages")?;
        let list = messages.list()?;
        if list.is_empty() {
            return Err(messages.wrong("a list of at least one message"));
        }
        for message in &list {
            match message.need("role")?.one_of(&[("user", 0), ("system", 1), ("assistant", 2)])? {
                0 => user(message, &mut entries)?,
                1 => entries.push(ConversationItem::Developer(text(&message.need("content")?)?)),
                _ => entries.push(ConversationItem::Assistant(assistant(message, sealed)?)),
            }
        }
        let mut request = Self { ask, entries, shows_thinking };
        // A last message of the assistant's is the beginning of the answer.
        request.ask.goes_on_with_last = request.entries.last().is_some_and(|last| match last {
            ConversationItem::Assistant(turn) => {
                matches!(turn.last().map(|made| &made.part), Some(MessagePart::Content { text, .. }) if !text.is_empty())
            }
            _ => false,
        });
        Ok(request)
    }
}

/// A text, or blocks of text.
fn text(content: &Field) -> Result<String, ApiError> {
    ask::content_text(content)
}

/// Tools in the form that the other APIs have.
fn tools(body: &Field) -> Result<Value, ApiError> {
    let list = body.get("tools").map_or(Ok(Vec::new()), |list| list.list())?;
    let tool = |tool: &Field| {
        if let Some(kind) = tool.get("type").filter(|kind| kind.value() != "custom") {
            return Err(kind.unsupported("only tools with an `input_schema` of their own are offered here"));
        }
        let mut function = json!({"type": "function", "name": tool.need("name")?.text()?});
        if let Some(description) = tool.get("description") {
            function["description"] = description.text()?.into();
        }
        if let Some(strict) = tool.get("strict") {
            function["strict"] = strict.flag()?.into();
        }
        function["parameters"] = tool.need("input_schema")?.object()?.value().clone();
        Ok(function)
    };
    list.iter().map(tool).collect()
}

fn tool_choice(choice: &Field) -> Result<Value, ApiError> {
    let kinds = [("auto", "auto"), ("any", "required"), ("none", "none"), ("tool", "")];
    Ok(match choice.need("type")?.one_of(&kinds)? {
        "" => json!({"type": "function", "name": choice.need("name")?.text()?}),
        word => word.into(),
    })
}

/// How long to think, if the request says, and whether that is told: it is where it was asked for.
fn thinking(body: &Field) -> Result<(Option<Option<Reasoning>>, bool), ApiError> {
    let efforts = [
        ("low", Reasoning::Low),
        ("medium", Reasoning::Medium),
        ("high", Reasoning::High),
        ("xhigh", Reasoning::High),
        ("max", Reasoning::High),
    ];
    let effort = body.get("output_config").and_then(|config| config.get("effort"));
    let effort = effort.map(|effort| effort.one_of(&efforts)).transpose()?.map(Some);
    let Some(thinking) = body.get("thinking") else { return Ok((effort, false)) };
    let kinds = [("enabled", 0), ("adaptive", 1), ("disabled", 2)];
    match thinking.need("type")?.one_of(&kinds)? {
        0 => {
            let budget = thinking.get("budget_tokens").map(|budget| budget.integer(1..=i64::MAX)).transpose()?;
            let by_budget = budget.map(|budget| match budget {
                ..=2047 => Reasoning::Low,
                2048..=16_383 => Reasoning::Medium,
                _ => Reasoning::High,
            });
            Ok((effort.or(by_budget.map(Some)), true))
        }
        1 => Ok((effort, true)),
        _ => Ok((Some(None), false)),
    }
}

/// Results of tools, and what the person says.
fn user(message: &Field, entries: &mut Vec<ConversationItem>) -> Result<(), ApiError> {
    let content = message.need("content")?;
    if content.value().is_string() {
        entries.push(ConversationItem::User(text(&content)?));
        return Ok(());
    }
    let mut said = String::new();
    for block in content.list().map_err(|_| content.wrong("a string or a list of blocks"))? {
        let kind = block.need("type")?;
        match kind.text()? {
            "text" => said += block.need("text")?.text()?,
            "tool_result" => {
                let id = block.need("tool_use_id")?;
                let mut result = block.get("content").map_or(Ok(String::new()), |content| text(&content))?;
                if block.get("is_error").map_or(Ok(false), |flag| flag.flag())? {
                    result.insert_str(0, "Error: ");
                }
                entries.push(ConversationItem::Result {
                    call_id: id.text()?.to_owned(),
                    text: result,
                    path: id.path().to_owned(),
                });
            }
            _ => return Err(kind.unsupported(&format!("this model reads text alone, and this is {}", kind.value()))),
        }
    }
    if !said.is_empty() {
        entries.push(ConversationItem::User(said));
    }
    Ok(())
}

fn assistant(
    message: &Field,
    sealed: &dyn Fn(&str) -> Option<AssistantMessage>,
) -> Result<Vec<AssistantMessage>, ApiError> {
    let content = message.need("content")?;
    let said = |text: String| AssistantMessage::from(MessagePart::Content { text, phase: None });
    if content.value().is_string() {
        return Ok(vec![said(text(&content)?)]);
    }
    let mut made = Vec::new();
    for block in content.list().map_err(|_| content.wrong("a string or a list of blocks"))? {
        let kind = block.need("type")?;
        match kind.text()? {
            "text" => made.push(said(block.need("text")?.text()?.to_owned())),
            "thinking" => {
                let signature = block.get("signature").map_or(Ok(""), |signature| signature.text())?;
                let told = || Ok(MessagePart::Reasoning(block.need("thinking")?.text()?.to_owned()).into());
                made.push(sealed(signature).map_or_else(told, Ok::<_, ApiError>)?);
            }
            "redacted_thinking" => made.extend(sealed(block.need("data")?.text()?)),
            "tool_use" => {
                let (id, name) = (block.need("id")?, block.need("name")?);
                let input = block.get("input").map_or_else(|| json!({}), |input| input.value().clone());
                let call = ask::call(id.text()?.to_owned(), checked_name(&name)?, &input.to_string());
                made.push(call.into());
            }
            _ => return Err(kind.unsupported(&format!("this model reads text alone, and this is {}", kind.value()))),
        }
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use chat::grammar::ToolChoice;

    use super::*;

    fn read(more: &Value) -> Result<MessagesRequest, ApiError> {
        let mut body = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        MessagesRequest::read(&Field::body(&body).expect("an object"), &|_| None)
    }

    #[test]
    fn blocks_are_what_the_other_apis_have() {
        let request = read(&json!({
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "How much?"}]},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "elsewhere"},
                    {"type": "text", "text": "Look:"},
                    {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "3"}]},
                    {"type": "text", "text": "And?"},
                ]},
            ],
            "tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "any"},
            "stop_sequences": ["END"], "thinking": {"type": "enabled", "budget_tokens": 1024},
        }));
        let request = request.expect("a right body");
        let turn = [
            MessagePart::Reasoning("Hm.".into()),
            MessagePart::Content { text: "Look:".into(), phase: None },
            ask::call("toolu_1".into(), "f", "{\"a\":1}"),
        ];
        let path = "messages[2].content[0].tool_use_id".to_owned();
        assert_eq!(
            request.entries,
            [
                ConversationItem::Developer("Be brief.".into()),
                ConversationItem::User("How much?".into()),
                ConversationItem::Assistant(turn.into_iter().map(AssistantMessage::from).collect()),
                ConversationItem::Result { call_id: "toolu_1".into(), text: "3".into(), path },
                ConversationItem::User("And?".into()),
            ]
        );
        assert_eq!((request.ask.effort, request.shows_thinking), (Some(Reasoning::Low), true));
        assert_eq!((request.ask.tools.choice, request.ask.max_tokens), (ToolChoice::Required, Some(9)));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let param = |more: Value| read(&more).expect_err("is wrong").param.expect("a place");
        assert_eq!(param(json!({"max_tokens": null})), "max_tokens");
        assert_eq!(param(json!({"messages": []})), "messages");
        assert_eq!(param(json!({"tools": [{"type": "web_search_20250305", "name": "w"}]})), "tools[0].type");
        let image = json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]});
        assert_eq!(param(image), "messages[0].content[0].type");
        assert_eq!(param(json!({"mcp_servers": [{"url": "x"}]})), "mcp_servers");
        let begun = json!({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The"}]});
        assert!(read(&begun).expect("a right body").ask.goes_on_with_last);
        assert!(!read(&json!({})).expect("a right body").ask.goes_on_with_last);
    }
}
