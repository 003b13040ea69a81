//! The requested form of an answer, in the fields of several servers' clients: `response_format` and `text.format` of
//! OpenAI, `structured_outputs` and `guided_*` of vLLM, `regex` of `SGLang`, `json_schema` and `grammar` of llama.cpp,
//! `output_config.format` of Anthropic.

use serde_json::Value;

use super::error::ApiError;
use super::field::Field;
use chat::TextInput;

/// What an answer's text is to be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TextFormat {
    Text,
    JsonObject,
    /// JSON after a schema.
    Schema {
        /// What the schema is called.
        name: String,
        description: Option<String>,
        schema: Value,
        /// Where in the request it stands.
        place: String,
        /// The prompt tells the model of it.
        is_told: bool,
    },
    /// A text of a grammar or a regular expression.
    Written {
        text: TextInput,
        /// Where in the request it stands.
        place: String,
    },
}

impl TextFormat {
    /// Reads what a request says of it: `format` is the field of its API, the others have one name everywhere.
    ///
    /// # Errors
    /// An unknown type, a schema that is not an object, or two forms at a time.
    pub(crate) fn of_request(body: &Field, format: Option<Field>) -> Result<Self, ApiError> {
        let mut found: Option<(Self, String)> = None;
        let mut add = |form: Self, place: &Field| match &found {
            _ if form == Self::Text => Ok(()),
            Some((_, other)) => {
                let message = format!("`{}` and `{other}` both set the form of the answer", place.path());
                Err(place.error("invalid_value", message))
            }
            None => {
                found = Some((form, place.path().to_owned()));
                Ok(())
            }
        };
        if let Some(format) = format {
            add(Self::read(&format)?, &format)?;
        }
        type Read = fn(&Field) -> Result<TextFormat, ApiError>;
        let named: [(&str, Read); 8] = [
            ("guided_json", schema),
            ("guided_regex", regex),
            ("guided_choice", choice),
            ("guided_grammar", lark),
            ("json_schema", schema),
            ("regex", regex),
            ("grammar", lark),
            ("structured_outputs", structured),
        ];
        for (name, read) in named {
            if let Some(field) = body.get(name).filter(|field| !is_empty(field.value())) {
                add(read(&field)?, &field)?;
            }
        }
        Ok(found.map_or(Self::Text, |(form, _)| form))
    }

    /// Reads `output_config.format` of Anthropic's API: a schema, which has no name there.
    ///
    /// # Errors
    /// Another type, a schema that is no object.
    pub(crate) fn of_messages(format: &Field) -> Result<Self, ApiError> {
        format.need("type")?.one_of(&[("json_schema", ())])?;
        let schema = format.need("schema")?;
        Ok(Self::Schema {
            name: "answer".to_owned(),
            description: None,
            schema: schema.object()?.value().clone(),
            place: schema.path().to_owned(),
            is_told: true,
        })
    }

    /// Reads `response_format` or `text.format`.
    fn read(format: &Field) -> Result<Self, ApiError> {
        let is_schema = format.need("type")?.one_of(&[
            ("text", None),
            ("json_object", Some(false)),
            ("json_schema", Some(true)),
        ])?;
        match is_schema {
            None => Ok(Self::Text),
            Some(false) => format.get("schema").map_or(Ok(Self::JsonObject), |field| schema(&field)),
            Some(true) => {
                let named = format.get("json_schema").unwrap_or_else(|| format.clone());
                let schema = named.need("schema")?;
                schema.object()?;
                Ok(Self::Schema {
                    name: named.need("name")?.text()?.to_owned(),
                    description: named.get("description").map(|text| text.text()).transpose()?.map(str::to_owned),
                    schema: schema.value().clone(),
                    place: schema.path().to_owned(),
                    is_told: true,
                })
            }
        }
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_str().is_some_and(str::is_empty) || value.as_object().is_some_and(serde_json::Map::is_empty)
}

/// A schema, which may be written as a text.
fn schema(field: &Field) -> Result<TextFormat, ApiError> {
    let place = field.path().to_owned();
    let schema = match field.value() {
        Value::Object(_) => field.value().clone(),
        Value::String(text) => serde_json::from_str(text)
            .ok()
            .filter(Value::is_object)
            .ok_or_else(|| field.wrong("a schema, which is an object, or its JSON"))?,
        _ => return Err(field.wrong("a schema, which is an object, or its JSON")),
    };
    Ok(TextFormat::Schema { name: String::new(), description: None, schema, place, is_told: false })
}

fn written(field: &Field, text: TextInput) -> TextFormat {
    TextFormat::Written { text, place: field.path().to_owned() }
}

fn regex(field: &Field) -> Result<TextFormat, ApiError> {
    Ok(written(field, TextInput::Regex(field.text()?.to_owned())))
}

fn choice(field: &Field) -> Result<TextFormat, ApiError> {
    let texts = field.list()?;
    if texts.is_empty() {
        return Err(field.wrong("a list of at least one text"));
    }
    let quoted = texts.iter().map(|text| text.text().map(|text| Value::from(text).to_string()));
    let quoted: Vec<String> = quoted.collect::<Result<_, _>>()?;
    Ok(written(field, TextInput::Lark(format!("start: {}", quoted.join(" | ")))))
}

fn lark(field: &Field) -> Result<TextFormat, ApiError> {
    let text = field.text()?;
    if text.contains("::=") {
        return Err(field.unsupported("grammars must be in Lark's notation, not in one with `::=`"));
    }
    Ok(written(field, TextInput::Lark(text.to_owned())))
}

/// vLLM's: one of several forms, and details of how it is to be written.
fn structured(field: &Field) -> Result<TextFormat, ApiError> {
    let entries = field.object()?.value().as_object().into_iter().flatten();
    let asks = |value: &Value| !matches!(value, Value::Null | Value::Bool(false));
    let mut form = None;
    for (name, _) in entries.filter(|(_, value)| asks(value)) {
        let inside = field.need(name)?;
        let read = match name.as_str() {
            "json" => schema(&inside)?,
            "regex" => regex(&inside)?,
            "choice" => choice(&inside)?,
            "grammar" => lark(&inside)?,
            "json_object" => TextFormat::JsonObject,
            _ => return Err(inside.unsupported("this server does not support it")),
        };
        if form.replace(read).is_some() {
            return Err(field.wrong("one form"));
        }
    }
    Ok(form.unwrap_or(TextFormat::Text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: &Value) -> Result<TextFormat, ApiError> {
        let body = Field::body(body).expect("an object");
        TextFormat::of_request(&body, body.get("response_format"))
    }

    #[test]
    fn all_names_of_a_form_are_that_form() {
        let schema = json!({"type": "object"});
        let of_schema = |place: &str| TextFormat::Schema {
            name: String::new(),
            description: None,
            schema: schema.clone(),
            place: place.to_owned(),
            is_told: false,
        };
        let lark = |text: &str, place: &str| TextFormat::Written {
            text: TextInput::Lark(text.into()),
            place: place.to_owned(),
        };
        let regex = |place: &str| TextFormat::Written { text: TextInput::Regex("a+".into()), place: place.to_owned() };
        for (body, want) in [
            (json!({}), TextFormat::Text),
            (json!({"response_format": {"type": "text"}, "structured_outputs": null}), TextFormat::Text),
            (json!({"response_format": {"type": "json_object"}}), TextFormat::JsonObject),
            (json!({"structured_outputs": {"json_object": true, "regex": null}}), TextFormat::JsonObject),
            (
                json!({"response_format": {"type": "json_object", "schema": schema}}),
                of_schema("response_format.schema"),
            ),
            (json!({"guided_json": schema}), of_schema("guided_json")),
            (json!({"guided_json": schema.to_string()}), of_schema("guided_json")),
            (json!({"json_schema": schema}), of_schema("json_schema")),
            (json!({"structured_outputs": {"json": schema}}), of_schema("structured_outputs.json")),
            (json!({"regex": "a+"}), regex("regex")),
            (json!({"guided_regex": "a+"}), regex("guided_regex")),
            (json!({"grammar": "start: \"a\""}), lark("start: \"a\"", "grammar")),
            (json!({"guided_choice": ["a", "b\""]}), lark(r#"start: "a" | "b\"""#, "guided_choice")),
        ] {
            assert_eq!(read(&body).expect("a form"), want, "{body}");
        }
    }

    #[test]
    fn two_forms_and_other_notations_are_refused() {
        let param = |body: Value| read(&body).expect_err("is wrong").param.expect("a place");
        assert_eq!(param(json!({"response_format": {"type": "json_object"}, "guided_regex": "a"})), "guided_regex");
        assert_eq!(param(json!({"structured_outputs": {"regex": "a", "choice": ["b"]}})), "structured_outputs");
        assert_eq!(param(json!({"structured_outputs": {"structural_tag": "a"}})), "structured_outputs.structural_tag");
        assert_eq!(param(json!({"grammar": "root ::= \"a\""})), "grammar");
        assert_eq!(param(json!({"guided_json": "[1"})), "guided_json");
        assert_eq!(param(json!({"guided_choice": []})), "guided_choice");
    }
}
