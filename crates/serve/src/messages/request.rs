//! The body of `POST /v1/messages`.

use serde_json::{Value, json};

use crate::ask::{self, Ask, content_text};
use crate::conversation::ConversationItem;
use crate::error::ApiError;
use crate::field::Field;
use crate::form::TextFormat;
use crate::tools::{Tools, checked_name};
use chat::{AssistantMessage, MessagePart, Reasoning};

/// A request for a message.
#[derive(Debug)]
pub(crate) struct MessagesRequest {
    /// What it has in common with others.
    pub(crate) ask: Ask,
    pub(crate) entries: Vec<ConversationItem>,
    /// The answer includes the model's thinking.
    pub(crate) shows_thinking: bool,
}

/// What is part of the API and not of this server.
const UNSUPPORTED: [&str; 3] = ["container", "context_management", "mcp_servers"];

/// What is read as in the other chat APIs.
const ALIKE: [&str; 5] = ["model", "stream", "temperature", "top_p", "top_k"];

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
        let (effort, shows_thinking) = thinking(body)?;
        // Its older name is `output_format`.
        let format = body.get("output_config").and_then(|config| config.get("format")).or(body.get("output_format"));
        let form = format.as_ref().map_or(Ok(TextFormat::Text), TextFormat::of_messages)?;
        let given = |name: &&str| Some(((*name).to_owned(), body.get(name)?.value().clone()));
        let alike = Value::Object(ALIKE.iter().filter_map(given).collect());
        let one_call = body.get("tool_choice").and_then(|choice| choice.get("disable_parallel_tool_use"));
        let ask = Ask {
            max_tokens: Some(max_tokens),
            effort: effort.unwrap_or_else(|| Some(Reasoning::default())),
            names_effort: matches!(effort, Some(Some(_))),
            one_call: one_call.map_or(Ok(false), |flag| flag.flag())?,
            stop: ask::stop(body.get("stop_sequences"))?,
            ..Ask::read(&Field::body(&alike)?, Tools::read_messages(body)?, form)?
        };
        let mut entries = Vec::new();
        if let Some(system) = body.get("system") {
            entries.push(ConversationItem::Developer(content_text(&system)?));
        }
        let messages = body.need("messages")?;
        let list = messages.list()?;
        if list.is_empty() {
            return Err(messages.wrong("a list of at least one message"));
        }
        for message in &list {
            match message.need("role")?.one_of(&[("user", 0), ("system", 1), ("assistant", 2)])? {
                0 => user(message, &mut entries)?,
                1 => entries.push(ConversationItem::Developer(content_text(&message.need("content")?)?)),
                _ => entries.push(ConversationItem::Assistant(assistant(message, sealed)?)),
            }
        }
        // A last message of the assistant's is the beginning of the answer.
        let goes_on_with_last = entries.last().is_some_and(ConversationItem::ends_in_text);
        if let Some(format) = format.filter(|_| goes_on_with_last) {
            return Err(format.unsupported("a form of the answer cannot be combined with a continued answer"));
        }
        Ok(Self { ask: Ask { goes_on_with_last, ..ask }, entries, shows_thinking })
    }

    /// What its prompt is made of.
    pub(crate) fn parts(&self) -> (&Ask, &[ConversationItem]) {
        (&self.ask, &self.entries)
    }
}

/// How long to think, if the request says, and whether the thinking is sent: it is if it was requested.
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
        entries.push(ConversationItem::User(content_text(&content)?));
        return Ok(());
    }
    let mut said = String::new();
    for block in content.list().map_err(|_| content.wrong("a string or a list of blocks"))? {
        let kind = block.need("type")?;
        match kind.text()? {
            "text" => said += block.need("text")?.text()?,
            "tool_result" => {
                let id = block.need("tool_use_id")?;
                let mut result = block.get("content").map_or(Ok(String::new()), |content| content_text(&content))?;
                if block.get("is_error").map_or(Ok(false), |flag| flag.flag())? {
                    result.insert_str(0, "Error: ");
                }
                entries.push(ConversationItem::Result {
                    call_id: id.text()?.to_owned(),
                    text: result,
                    path: id.path().to_owned(),
                });
            }
            _ => return Err(kind.unsupported(&format!("this model reads only text, and this is {}", kind.value()))),
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
        return Ok(vec![said(content_text(&content)?)]);
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
            _ => return Err(kind.unsupported(&format!("this model reads only text, and this is {}", kind.value()))),
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
        assert!(!request.ask.stop.is_empty() && !request.ask.one_call);
        assert_eq!((request.ask.tools.choice, request.ask.max_tokens), (ToolChoice::Required, Some(9)));
    }

    #[test]
    fn one_call_and_a_form_are_what_the_other_apis_have() {
        let tools = json!([{"name": "f", "input_schema": {"type": "object"}}]);
        for (kind, want) in [("auto", ToolChoice::Auto), ("any", ToolChoice::Required)] {
            let choice = json!({"type": kind, "disable_parallel_tool_use": true});
            let ask = read(&json!({"tools": tools, "tool_choice": choice})).expect("a right body").ask;
            assert_eq!((ask.one_call, ask.tools.choice), (true, want));
        }
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let format = json!({"type": "json_schema", "schema": schema});
        for (body, place) in [
            (json!({"output_config": {"format": format, "effort": "low"}}), "output_config.format.schema"),
            (json!({"output_format": format}), "output_format.schema"),
        ] {
            let want = TextFormat::Schema {
                name: "answer".into(),
                description: None,
                schema: schema.clone(),
                place: place.into(),
                is_told: true,
            };
            assert_eq!(read(&body).expect("a right body").ask.format, want);
        }
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
        assert_eq!(param(json!({"stop_sequences": ["a", 1]})), "stop_sequences[1]");
        assert_eq!(param(json!({"stop_sequences": vec!["a"; 17]})), "stop_sequences");
        assert_eq!(param(json!({"tools": [{"name": "f"}]})), "tools[0].input_schema");
        assert_eq!(param(json!({"tools": [{"name": "f", "input_schema": 1}]})), "tools[0].input_schema");
        assert_eq!(param(json!({"tool_choice": {"type": "tool", "name": "f"}})), "tool_choice.name");
        assert_eq!(param(json!({"output_config": {"format": {"type": "text"}}})), "output_config.format.type");
        let mut begun =
            json!({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The"}]});
        assert!(read(&begun).expect("a right body").ask.goes_on_with_last);
        assert!(!read(&json!({})).expect("a right body").ask.goes_on_with_last);
        begun["output_format"] = json!({"type": "json_schema", "schema": {}});
        assert_eq!(param(begun), "output_format");
    }
}
