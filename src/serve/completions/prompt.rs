//! The prompts of a completion: a text, ids, or a list of either.

use serde_json::Value;

use crate::serve::error::ApiError;

/// What is to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

/// The prompts of a request, in their order.
pub(super) fn prompts(value: Option<Value>) -> Result<Vec<Prompt>, ApiError> {
    match value {
        None | Some(Value::Null) => Err(ApiError::missing("prompt")),
        Some(Value::String(text)) => Ok(vec![Prompt::Text(text)]),
        Some(Value::Array(all)) if all.is_empty() => Err(ApiError::invalid("prompt", "`prompt` is an empty list")),
        Some(Value::Array(all)) if all.iter().all(Value::is_number) => Ok(vec![ids("prompt", &all)?]),
        Some(Value::Array(all)) => all.into_iter().enumerate().map(|(i, value)| one(i, value)).collect(),
        Some(other) => Err(unexpected("prompt", &other)),
    }
}

fn one(i: usize, value: Value) -> Result<Prompt, ApiError> {
    let param = format!("prompt[{i}]");
    match value {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(all) => ids(&param, &all),
        other => Err(unexpected(&param, &other)),
    }
}

fn ids(param: &str, all: &[Value]) -> Result<Prompt, ApiError> {
    let id = |(i, value): (usize, &Value)| {
        value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| {
            let param = format!("{param}[{i}]");
            ApiError::invalid(&param, format!("`{param}` is {value}, expected a token id"))
        })
    };
    all.iter().enumerate().map(id).collect::<Result<_, _>>().map(Prompt::Ids)
}

fn unexpected(param: &str, found: &Value) -> ApiError {
    let kind = match found {
        Value::Object(_) => "an object",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        _ => "null",
    };
    ApiError::invalid(param, format!("`{param}` is {kind}, expected a text or token ids, or a list of such"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_four_forms_are_read() {
        let of = |value: Value| prompts(Some(value)).unwrap();
        let text = |text: &str| Prompt::Text(text.into());
        assert_eq!(of(json!("a")), [text("a")]);
        assert_eq!(of(json!(["a", "b"])), [text("a"), text("b")]);
        assert_eq!(of(json!([1, 2])), [Prompt::Ids(vec![1, 2])]);
        assert_eq!(of(json!([[1], [2, 3]])), [Prompt::Ids(vec![1]), Prompt::Ids(vec![2, 3])]);
    }

    #[test]
    fn what_is_no_prompt_is_named() {
        let param = |value: Value| prompts(Some(value)).unwrap_err().param.unwrap();
        assert_eq!(param(json!(null)), "prompt");
        assert_eq!(param(json!([])), "prompt");
        assert_eq!(param(json!({"a": 1})), "prompt");
        assert_eq!(param(json!([1, -2])), "prompt[1]");
        assert_eq!(param(json!(["a", 7])), "prompt[1]");
        assert_eq!(param(json!([[1], [4_294_967_296_u64]])), "prompt[1][0]");
    }
}
