//! A value of a request with its place: reading it gives the value, or an error with the place and what was found
//! there.

use std::ops::RangeInclusive;

use serde_json::Value;

use super::error::ApiError;
use chat::request_fields::{Place, RequestField};

/// A value of a request's body.
#[derive(Clone, Debug)]
pub(crate) struct Field<'a> {
    path: String,
    value: &'a Value,
}

impl<'a> Field<'a> {
    /// The whole body.
    ///
    /// # Errors
    /// It is no object.
    pub(crate) fn body(value: &'a Value) -> Result<Self, ApiError> {
        let body = Self { path: String::new(), value };
        if value.is_object() { Ok(body) } else { Err(body.wrong("an object")) }
    }

    /// Its path: `messages[2].content[0].type`.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The value as it came.
    pub(crate) fn value(&self) -> &'a Value {
        self.value
    }

    /// Another value in the same place.
    pub(crate) fn with<'b>(&self, value: &'b Value) -> Field<'b> {
        Field { path: self.path.clone(), value }
    }

    /// A field of this object; `null` is as good as absent.
    pub(crate) fn get(&self, name: &str) -> Option<Field<'a>> {
        let value = self.value.get(name).filter(|value| !value.is_null())?;
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        Some(Field { path, value })
    }

    /// A field that has to be there.
    ///
    /// # Errors
    /// It is not, or this is no object.
    pub(crate) fn need(&self, name: &str) -> Result<Field<'a>, ApiError> {
        self.object()?;
        self.get(name).ok_or_else(|| {
            let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
            ApiError::missing(path)
        })
    }

    /// This, which has to be an object.
    ///
    /// # Errors
    /// It is not.
    pub(crate) fn object(&self) -> Result<&Self, ApiError> {
        if self.value.is_object() { Ok(self) } else { Err(self.wrong("an object")) }
    }

    /// A string.
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn text(&self) -> Result<&'a str, ApiError> {
        self.value.as_str().ok_or_else(|| self.wrong("a string"))
    }

    /// `true` or `false`.
    ///
    /// # Errors
    /// It is neither.
    pub(crate) fn flag(&self) -> Result<bool, ApiError> {
        self.value.as_bool().ok_or_else(|| self.wrong("true or false"))
    }

    /// A number in a range.
    ///
    /// # Errors
    /// It is none, or outside.
    pub(crate) fn number(&self, range: RangeInclusive<f64>) -> Result<f64, ApiError> {
        let number = self.value.as_f64().filter(|number| range.contains(number));
        let is_any = range == (f64::MIN..=f64::MAX);
        let expected = || {
            if is_any { "a number".to_owned() } else { format!("a number from {} to {}", range.start(), range.end()) }
        };
        number.ok_or_else(|| self.wrong(&expected()))
    }

    /// A whole number in a range; `3.0` is one. Where there is no end, a number of more than 64 bits is the largest.
    ///
    /// # Errors
    /// It is none, or outside.
    pub(crate) fn integer(&self, range: RangeInclusive<i64>) -> Result<i64, ApiError> {
        let is_open = *range.end() == i64::MAX && *range.start() > i64::MIN;
        let whole = |number: f64| match number {
            number if is_open && number >= 2f64.powi(63) => Some(i64::MAX),
            number => (number.fract() == 0.0 && number.abs() < 2f64.powi(53)).then_some(number as i64),
        };
        let integer = self.value.as_i64().or_else(|| self.value.as_f64().and_then(whole));
        integer.filter(|integer| range.contains(integer)).ok_or_else(|| {
            self.wrong(&match (*range.start(), *range.end()) {
                (i64::MIN, _) => "a whole number of 64 bits".to_owned(),
                (start, i64::MAX) => format!("a whole number of at least {start}"),
                (start, end) => format!("a whole number from {start} to {end}"),
            })
        })
    }

    /// The elements of a list.
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn list(&self) -> Result<Vec<Field<'a>>, ApiError> {
        let list = self.value.as_array().ok_or_else(|| self.wrong("a list"))?;
        let element = |(i, value)| Field { path: format!("{}[{i}]", self.path), value };
        Ok(list.iter().enumerate().map(element).collect())
    }

    /// What one of these names stands for.
    ///
    /// # Errors
    /// It is none of them.
    pub(crate) fn one_of<T: Copy>(&self, names: &[(&str, T)]) -> Result<T, ApiError> {
        let found = self.value.as_str().and_then(|text| names.iter().find(|(name, _)| *name == text));
        found.map(|&(_, meaning)| meaning).ok_or_else(|| {
            let names: Vec<String> = names.iter().map(|(name, _)| format!("`{name}`")).collect();
            self.wrong(&match names.as_slice() {
                [name] => name.clone(),
                names => format!("one of {}", names.join(", ")),
            })
        })
    }

    /// The error of a value that is not what it should be.
    pub(crate) fn wrong(&self, expected: &str) -> ApiError {
        let place = if self.path.is_empty() { "the body".to_owned() } else { format!("`{}`", self.path) };
        self.error("invalid_value", format!("{place} should be {expected}, but is {}", shown(self.value)))
    }

    /// The error of a value that is right, and that this server does not do.
    pub(crate) fn unsupported(&self, why: &str) -> ApiError {
        ApiError::unsupported_value(&self.path, format!("`{}`: {why}", self.path))
    }

    pub(crate) fn error(&self, code: &'static str, message: String) -> ApiError {
        let error = ApiError::bad_request(code, message);
        if self.path.is_empty() { error } else { error.with_param(&self.path) }
    }
}

/// A value in a message: whole if it is short, its beginning if not.
fn shown(value: &Value) -> String {
    const MAX_CHARS: usize = 60;
    match value {
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(_) => "an object".to_owned(),
        value => {
            let text = value.to_string();
            match text.char_indices().nth(MAX_CHARS) {
                Some((end, _)) => format!("`{}…`", &text[..end]),
                None => format!("`{text}`"),
            }
        }
    }
}

/// The error of a field that this server does not have there, and that changes what an answer is.
///
/// # Errors
/// One of the fields that the table refuses there asks for something.
pub(crate) fn refuse(body: &Field, place: Place) -> Result<(), ApiError> {
    let fields = body.value().as_object().into_iter().flat_map(|body| RequestField::refused(body, place));
    match fields.into_iter().next() {
        None => Ok(()),
        Some(RequestField { name, why, .. }) => {
            Err(ApiError::unsupported(*name, format!("`{name}` is not supported here: {why}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error(result: Result<impl std::fmt::Debug, ApiError>) -> Value {
        result.expect_err("is wrong").body()["error"].clone()
    }

    #[test]
    fn an_error_names_the_place_and_what_was_found() {
        let body = json!({"messages": [{}, {"role": "usr", "n": 3.5, "parts": [{}, {}]}]});
        let body = Field::body(&body).expect("an object");
        let message = body.need("messages").expect("there").list().expect("a list").remove(1);
        let role = error(message.need("role").expect("there").one_of(&[("user", 1), ("tool", 2)]));
        assert_eq!(role["param"], "messages[1].role");
        assert_eq!(role["message"], r#"`messages[1].role` should be one of `user`, `tool`, but is `"usr"`"#);
        assert_eq!(role["code"], "invalid_value");
        assert_eq!(role["type"], "invalid_request_error");
        let n = error(message.need("n").expect("there").integer(1..=128));
        assert_eq!(n["message"], "`messages[1].n` should be a whole number from 1 to 128, but is `3.5`");
        let parts = error(message.need("parts").expect("there").text());
        assert_eq!(parts["message"], "`messages[1].parts` should be a string, but is a list of 2");
        let missing = error(message.need("content"));
        assert_eq!(missing["code"], "missing_required_parameter");
        assert_eq!(missing["param"], "messages[1].content");
    }

    #[test]
    fn null_is_absent() {
        let body = json!({"seed": null, "stop": 3});
        let body = Field::body(&body).expect("an object");
        assert!(body.get("seed").is_none() && body.get("top_p").is_none());
        assert!(body.get("stop").is_some());
    }

    #[test]
    fn whole_numbers_may_have_a_point() {
        for (value, want) in [(json!(3.0), Some(3)), (json!(-4), Some(-4)), (json!(0.5), None), (json!("3"), None)] {
            let body = json!({ "n": value });
            let field = Field::body(&body).expect("an object").need("n").expect("there");
            assert_eq!(field.integer(-10..=10).ok(), want);
        }
    }

    #[test]
    fn what_is_not_supported_is_refused_unless_it_asks_for_nothing() {
        let body = json!({"audio": {}, "min_tokens": 0, "lora": null, "typical_p": 1, "unheard": true});
        refuse(&Field::body(&body).expect("an object"), Place::Chats).expect("nothing is asked for");
        let body = json!({"audio": {}, "ebnf": "root"});
        let error = error(refuse(&Field::body(&body).expect("an object"), Place::Chats));
        assert_eq!((error["code"].as_str(), error["param"].as_str()), (Some("unsupported_parameter"), Some("ebnf")));
    }

    #[test]
    fn numbers_of_any_size_are_told_shortly_and_the_largest_is_the_end() {
        let body = json!({"heat": "0.7", "n": u64::MAX, "m": 1e300});
        let body = Field::body(&body).expect("an object");
        let heat = error(body.need("heat").expect("there").number(f64::MIN..=f64::MAX));
        assert_eq!(heat["message"], "`heat` should be a number, but is `\"0.7\"`");
        for name in ["n", "m"] {
            let field = body.need(name).expect("there");
            assert_eq!(field.integer(1..=i64::MAX).ok(), Some(i64::MAX));
            assert!(field.integer(1..=128).is_err() && field.integer(i64::MIN..=i64::MAX).is_err());
        }
    }
}
