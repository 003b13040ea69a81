//! Input items: what a client gives of a conversation.

use serde_json::{Value, json};

use crate::serve::ask;
use crate::serve::conversation::Entry;
use crate::serve::error::ApiError;
use crate::serve::field::Field;
use crate::serve::history::{Part, Phase};

/// Reads `input`: a string, or a list of items. Items of the assistant that follow each other are one turn. Gives the
/// entries, and the items as they came.
///
/// # Errors
/// An item that is none, or of a type that this server does not have.
pub fn read(input: Option<Field>) -> Result<(Vec<Entry>, Vec<Value>), ApiError> {
    let Some(input) = input else { return Ok((Vec::new(), Vec::new())) };
    if let Value::String(text) = input.value() {
        let content = json!([{"type": "input_text", "text": text}]);
        let item = json!({"type": "message", "role": "user", "status": "completed", "content": content});
        return Ok((vec![Entry::User(text.clone())], vec![item]));
    }
    let items = input.list().map_err(|_| input.wrong("a string or a list of items"))?;
    let mut entries = Vec::new();
    for item in &items {
        match (self::item(item)?, entries.last_mut()) {
            (Item::Part(part), Some(Entry::Assistant(parts))) => parts.push(part),
            (Item::Part(part), _) => entries.push(Entry::Assistant(vec![part])),
            (Item::Entry(entry), _) => entries.push(entry),
        }
    }
    Ok((entries, items.iter().map(|item| item.value().clone()).collect()))
}

enum Item {
    Entry(Entry),
    Part(Part),
}

fn item(item: &Field) -> Result<Item, ApiError> {
    item.object()?;
    let kind = item.get("type");
    let text = |name: &str| item.need(name)?.text().map(str::to_owned);
    match kind.as_ref().map_or(Ok("message"), |kind| kind.text())? {
        "message" => message(item),
        "reasoning" => {
            let content = item.get("content");
            Ok(Item::Part(Part::Reasoning(content.map_or(Ok(String::new()), |content| ask::content_text(&content))?)))
        }
        "function_call" => {
            let namespace = item.get("namespace");
            let namespace = namespace.map(|namespace| namespace.text()).transpose()?;
            Ok(Item::Part(ask::call(text("call_id")?, &text("name")?, namespace, &text("arguments")?)))
        }
        "function_call_output" => {
            let call_id = item.need("call_id")?;
            Ok(Item::Entry(Entry::Result {
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

fn message(item: &Field) -> Result<Item, ApiError> {
    let content = || ask::content_text(&item.need("content")?);
    let roles = [("developer", 0), ("system", 0), ("user", 1), ("assistant", 2)];
    Ok(match item.need("role")?.one_of(&roles)? {
        0 => Item::Entry(Entry::Developer(content()?)),
        1 => Item::Entry(Entry::User(content()?)),
        _ => {
            let phases = [("commentary", Phase::Commentary), ("final_answer", Phase::FinalAnswer)];
            let phase = item.get("phase").map(|phase| phase.one_of(&phases)).transpose()?;
            Item::Part(Part::Content { text: content()?, phase })
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(input: Value) -> Result<Vec<Entry>, (String, String)> {
        let body = json!({ "input": input });
        let read = read(Field::body(&body).expect("an object").get("input"));
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
            {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "spawn", "namespace": "agents", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "3"}]},
        ]);
        let turn = vec![
            Part::Reasoning("Hm.".into()),
            Part::Content { text: "Look:".into(), phase: Some(Phase::Commentary) },
            Part::Call { id: "call_1".into(), name: "agents__spawn".into(), arguments: "{}".into() },
        ];
        let result = Entry::Result { call_id: "call_1".into(), text: "3".into(), path: "input[4].call_id".into() };
        assert_eq!(entries(input), Ok(vec![Entry::User("a".into()), Entry::Assistant(turn), result]));
    }

    #[test]
    fn what_is_no_item_is_named() {
        let error = |input: Value| entries(input).expect_err("is wrong");
        let expected = |code: &str, param: &str| (code.to_owned(), param.to_owned());
        assert_eq!(error(json!(3)), expected("invalid_value", "input"));
        assert_eq!(error(json!(["a"])), expected("invalid_value", "input[0]"));
        assert_eq!(
            error(json!([{"type": "item_reference", "id": "x"}])),
            expected("unsupported_value", "input[0].type")
        );
        assert_eq!(error(json!([{"content": "a"}])), expected("missing_required_parameter", "input[0].role"));
        let image = json!([{"role": "user", "content": [{"type": "input_image"}]}]);
        assert_eq!(error(image), expected("unsupported_value", "input[0].content[0].type"));
        let call = json!([{"type": "function_call", "call_id": "c", "name": "f"}]);
        assert_eq!(error(call), expected("missing_required_parameter", "input[0].arguments"));
    }
}
