//! Input items: a conversation in the form of the responses API.

use serde_json::{Value, json};

use crate::ask;
use crate::conversation::ConversationItem;
use crate::error::ApiError;
use crate::field::Field;
use crate::tools::{Tools, checked_name};
use chat::{AssistantMessage, MessagePart, Phase};

/// What the server knows that items may name.
pub(crate) trait KnownItems {
    /// The stored item of this id.
    fn item(&self, id: &str) -> Option<Value>;

    /// The reasoning that was sealed as this text.
    fn sealed(&self, text: &str) -> Option<AssistantMessage>;
}

/// Reads `input`: a string, or a list of items. Items of the assistant that follow each other are one turn. Gives the
/// entries, and the items as they came, with those that they refer to in their place.
///
/// # Errors
/// An invalid item, one of an unsupported type, or a reference to a missing one.
pub(crate) fn read(
    input: Option<Field>,
    known: &dyn KnownItems,
) -> Result<(Vec<ConversationItem>, Vec<Value>), ApiError> {
    let Some(input) = input else { return Ok((Vec::new(), Vec::new())) };
    if let Value::String(text) = input.value() {
        let content = json!([{"type": "input_text", "text": text}]);
        let item = json!({"type": "message", "role": "user", "status": "completed", "content": content});
        return Ok((vec![ConversationItem::User(text.clone())], vec![item]));
    }
    let items = input.list().map_err(|_| input.wrong("a string or a list of items"))?;
    let (mut entries, mut values) = (Vec::new(), Vec::new());
    for item in &items {
        let value = referred(item, known)?.unwrap_or_else(|| item.value().clone());
        match (self::item(&item.with(&value), known)?, entries.last_mut()) {
            (Item::Made(made), Some(ConversationItem::Assistant(turn))) => turn.push(made),
            (Item::Made(made), _) => entries.push(ConversationItem::Assistant(vec![made])),
            (Item::Entry(entry), _) => entries.push(entry),
        }
        values.push(value);
    }
    Ok((entries, values))
}

/// What an item refers to, if it is nothing but an id.
fn referred(item: &Field, known: &dyn KnownItems) -> Result<Option<Value>, ApiError> {
    item.object()?;
    let is_reference = match item.get("type") {
        Some(kind) => kind.value() == "item_reference",
        None => item.get("id").is_some() && item.get("role").is_none() && item.get("content").is_none(),
    };
    if !is_reference {
        return Ok(None);
    }
    let id = item.need("id")?;
    let message = || format!("`{}`: there is no item `{}`: it was not stored, or has expired", id.path(), id.value());
    known.item(id.text()?).map(Some).ok_or_else(|| ApiError::not_found(message()).with_param(id.path()))
}

enum Item {
    Entry(ConversationItem),
    Made(AssistantMessage),
}

fn item(item: &Field, known: &dyn KnownItems) -> Result<Item, ApiError> {
    let kind = item.get("type");
    let text = |name: &str| item.need(name)?.text().map(str::to_owned);
    match kind.as_ref().map_or(Ok("message"), |kind| kind.text())? {
        "message" => message(item),
        "reasoning" => reasoning(item, known).map(Item::Made),
        kind @ ("function_call" | "custom_tool_call") => {
            let is_text = kind == "custom_tool_call";
            let namespace = item.get("namespace");
            let namespace = namespace.map(|namespace| namespace.text()).transpose()?;
            let (id, name) = (text("call_id")?, Tools::name_in_prompt(checked_name(&item.need("name")?)?, namespace));
            let arguments = text(if is_text { "input" } else { "arguments" })?;
            Ok(Item::Made(MessagePart::Call { id, name, arguments, is_text }.into()))
        }
        "function_call_output" | "custom_tool_call_output" => {
            let call_id = item.need("call_id")?;
            Ok(Item::Entry(ConversationItem::Result {
                call_id: call_id.text()?.to_owned(),
                text: ask::content_text(&item.need("output")?)?,
                path: call_id.path().to_owned(),
            }))
        }
        _ => {
            let kind = kind.as_ref().unwrap_or(item);
            Err(kind.unsupported(&format!("items of type {} are not supported by this server", kind.value())))
        }
    }
}

/// As it was sealed, else as its content says.
fn reasoning(item: &Field, known: &dyn KnownItems) -> Result<AssistantMessage, ApiError> {
    let sealed = item.get("encrypted_content");
    if let Some(made) = sealed.as_ref().map(|sealed| sealed.text()).transpose()?.and_then(|text| known.sealed(text)) {
        return Ok(made);
    }
    match (item.get("content"), sealed) {
        (Some(content), _) => Ok(MessagePart::Reasoning(ask::content_text(&content)?).into()),
        (None, None) => Ok(MessagePart::Reasoning(String::new()).into()),
        (None, Some(sealed)) => {
            let message = format!("`{}` was not sealed by this server since it was started", sealed.path());
            Err(sealed.error("invalid_encrypted_content", message))
        }
    }
}

fn message(item: &Field) -> Result<Item, ApiError> {
    let content = || ask::content_text(&item.need("content")?);
    let roles = [("developer", 0), ("system", 0), ("user", 1), ("assistant", 2)];
    Ok(match item.need("role")?.one_of(&roles)? {
        0 => Item::Entry(ConversationItem::Developer(content()?)),
        1 => Item::Entry(ConversationItem::User(content()?)),
        _ => {
            let phases = [("commentary", Phase::Commentary), ("final_answer", Phase::FinalAnswer)];
            let phase = item.get("phase").map(|phase| phase.one_of(&phases)).transpose()?;
            Item::Made(MessagePart::Content { text: content()?, phase }.into())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Knows the item `msg_1`, and what was sealed as `sealed`.
    struct One;

    impl KnownItems for One {
        fn item(&self, id: &str) -> Option<Value> {
            (id == "msg_1").then(|| json!({"id": id, "type": "message", "role": "user", "content": "before"}))
        }

        fn sealed(&self, text: &str) -> Option<AssistantMessage> {
            (text == "sealed")
                .then(|| AssistantMessage { part: MessagePart::Reasoning("Hm.".into()), ids: Some(vec![1, 2]) })
        }
    }

    fn entries(input: Value) -> Result<Vec<ConversationItem>, (String, String)> {
        let body = json!({ "input": input });
        let read = read(Field::body(&body).expect("an object").get("input"), &One);
        read.map(|(entries, _)| entries).map_err(|error| {
            let error = &error.body()["error"];
            let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
            (text("code"), text("param"))
        })
    }

    #[test]
    fn items_of_the_assistant_in_a_row_are_one_turn() {
        let input = json!([
            {"role": "user", "content": "a"},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "never"}],
             "content": [{"type": "reasoning_text", "text": "Hm."}], "encrypted_content": null},
            {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "phase": "commentary",
             "content": [{"type": "output_text", "text": "Look:"}]},
            {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "spawn", "namespace": "agents",
             "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "3"}]},
        ]);
        let turn = vec![
            MessagePart::Reasoning("Hm.".into()),
            MessagePart::Content { text: "Look:".into(), phase: Some(Phase::Commentary) },
            MessagePart::Call {
                id: "call_1".into(),
                name: "agents__spawn".into(),
                arguments: "{}".into(),
                is_text: false,
            },
        ];
        let turn = turn.into_iter().map(AssistantMessage::from).collect();
        let result =
            ConversationItem::Result { call_id: "call_1".into(), text: "3".into(), path: "input[4].call_id".into() };
        assert_eq!(
            entries(input),
            Ok(vec![ConversationItem::User("a".into()), ConversationItem::Assistant(turn), result])
        );
    }

    #[test]
    fn an_item_that_is_an_id_alone_is_the_one_that_was_stored() {
        for reference in [json!({"type": "item_reference", "id": "msg_1"}), json!({"type": null, "id": "msg_1"})] {
            let body = json!({ "input": [reference] });
            let input = Field::body(&body).expect("an object").get("input");
            let (entries, items) = read(input, &One).expect("is there");
            assert_eq!(entries, [ConversationItem::User("before".into())]);
            assert_eq!(items[0]["content"], "before");
        }
    }

    #[test]
    fn reasoning_is_as_it_was_sealed_else_as_its_content_says() {
        let content = json!([{"type": "reasoning_text", "text": "Aha."}]);
        let item = |sealed: &str| json!({"type": "reasoning", "content": content, "encrypted_content": sealed});
        let input = json!([item("sealed"), item("elsewhere")]);
        let sealed = AssistantMessage { part: MessagePart::Reasoning("Hm.".into()), ids: Some(vec![1, 2]) };
        let told = MessagePart::Reasoning("Aha.".into()).into();
        assert_eq!(entries(input), Ok(vec![ConversationItem::Assistant(vec![sealed, told])]));
    }

    #[test]
    fn what_is_no_item_is_named() {
        let error = |input: Value| entries(input).expect_err("is wrong");
        let expected = |code: &str, param: &str| (code.to_owned(), param.to_owned());
        assert_eq!(error(json!(3)), expected("invalid_value", "input"));
        assert_eq!(error(json!(["a"])), expected("invalid_value", "input[0]"));
        assert_eq!(error(json!([{"type": "item_reference", "id": "x"}])), expected("not_found", "input[0].id"));
        assert_eq!(error(json!([{"type": "mcp_call", "id": "x"}])), expected("unsupported_value", "input[0].type"));
        let sealed = json!([{"type": "reasoning", "id": "x", "encrypted_content": "elsewhere"}]);
        assert_eq!(error(sealed), expected("invalid_encrypted_content", "input[0].encrypted_content"));
        assert_eq!(error(json!([{"content": "a"}])), expected("missing_required_parameter", "input[0].role"));
        let image = json!([{"role": "user", "content": [{"type": "input_image"}]}]);
        assert_eq!(error(image), expected("unsupported_value", "input[0].content[0].type"));
        let call = json!([{"type": "function_call", "call_id": "c", "name": "f"}]);
        assert_eq!(error(call), expected("missing_required_parameter", "input[0].arguments"));
    }
}
