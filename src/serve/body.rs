//! JSON bodies: read up to a limit and in time, and errors that name the field.
//!
//! What is unknown in a body is ignored. `null` means absent: fields that may be absent are `Option`s.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;

use super::Server;
use super::error::ApiError;

/// Longest body, in bytes.
pub const MAX_BYTES: usize = 32 << 20;

/// In this time a body has to be there.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A JSON body as a `T`.
#[derive(Clone, Copy, Debug)]
pub struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Arc<Server>> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &Arc<Server>) -> Result<Self, ApiError> {
        check_type(request.headers())?;
        let reading = read(request.headers().get(header::CONTENT_LENGTH).cloned(), request.into_body());
        let bytes =
            tokio::time::timeout(DEADLINE, reading).await.map_err(|_| ApiError::body_timeout(DEADLINE.as_secs()))??;
        parse(&bytes).map(Self)
    }
}

/// A body that says nothing of its type is taken for JSON.
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(found) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let text = String::from_utf8_lossy(found.as_bytes());
    let essence = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"));
    if is_json { Ok(()) } else { Err(ApiError::not_json(&essence)) }
}

async fn read(stated: Option<header::HeaderValue>, body: Body) -> Result<Vec<u8>, ApiError> {
    let stated = stated.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if stated.is_some_and(|length| length > MAX_BYTES) {
        return Err(ApiError::body_too_large(MAX_BYTES));
    }
    let mut bytes = Vec::new();
    let mut parts = body.into_data_stream();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|error| ApiError::invalid_json(format!("could not read the body: {error}")))?;
        if bytes.len() + part.len() > MAX_BYTES {
            return Err(ApiError::body_too_large(MAX_BYTES));
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}

/// The JSON of a body as a `T`.
///
/// # Errors
/// `invalid_json` where it is none, else `missing_required_parameter` or `invalid_value` with the path of the field.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        of_serde(&path, error.inner())
    })?;
    json.end().map_err(|error| of_serde(".", &error))?;
    Ok(value)
}

/// As [`parse`], of JSON that was read already; `prefix` is the path of the value in the body.
///
/// # Errors
/// As [`parse`].
pub fn from_value<T: DeserializeOwned>(prefix: &str, value: serde_json::Value) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        of_serde(&joined(prefix, &path), error.inner())
    })
}

fn of_serde(path: &str, error: &serde_json::Error) -> ApiError {
    let text = error.to_string();
    // serde_json's words end in a place of the bytes, which the path says better.
    let text = text.split(" at line ").next().unwrap_or_default();
    if !error.is_data() {
        let (line, column) = (error.line(), error.column());
        return ApiError::invalid_json(format!("the body is no JSON: {text} (line {line}, column {column})"));
    }
    let missing = text.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
    match missing {
        Some(field) => ApiError::missing(joined(path, field)),
        None if path == "." => ApiError::bad_request("invalid_value", format!("the body: {}", for_people(text))),
        None => ApiError::invalid(path, format!("`{path}`: {}", for_people(text))),
    }
}

fn joined(path: &str, field: &str) -> String {
    match (path, field) {
        ("." | "", field) => field.to_owned(),
        (path, "." | "") => path.to_owned(),
        (path, field) if field.starts_with('[') => format!("{path}{field}"),
        (path, field) => format!("{path}.{field}"),
    }
}

/// What serde says it expected, without the names of Rust's types.
fn for_people(text: &str) -> String {
    const NAMES: [(&str, &str); 8] = [
        ("f32", "a number"),
        ("f64", "a number"),
        ("usize", "a whole number, not negative"),
        ("u64", "a whole number, not negative"),
        ("u32", "a whole number, not negative"),
        ("i64", "a whole number"),
        ("a sequence", "an array"),
        ("a map", "an object"),
    ];
    let Some((found, expected)) = text.rsplit_once("expected ") else { return text.to_owned() };
    let expected = if expected.starts_with("struct ") { "an object" } else { expected };
    let name = NAMES.iter().find(|(rust, _)| *rust == expected).map_or(expected, |(_, name)| name);
    format!("{found}expected {name}")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Outer {
        #[allow(dead_code, reason = "only its errors are looked at")]
        items: Vec<Inner>,
        heat: Option<f32>,
    }

    #[derive(Debug, Deserialize)]
    struct Inner {
        #[allow(dead_code, reason = "only its errors are looked at")]
        name: String,
    }

    #[test]
    fn errors_name_the_field_and_what_was_found() {
        let of = |text: &str| parse::<Outer>(text.as_bytes()).unwrap_err();
        let told = |text: &str| {
            let ApiError { code, param, message, .. } = of(text);
            (code.unwrap_or_default(), param.unwrap_or_default(), message)
        };
        assert_eq!(
            told(r#"{"items": [{"name": "a"}, {}]}"#),
            ("missing_required_parameter", "items[1].name".into(), "`items[1].name` is missing".into())
        );
        assert_eq!(
            told(r#"{"items": [], "heat": "much"}"#),
            ("invalid_value", "heat".into(), "`heat`: invalid type: string \"much\", expected a number".into())
        );
        assert_eq!(told("{}").1, "items");
        assert_eq!(told(r#"{"items": [3]}"#).2, "`items[0]`: invalid type: integer `3`, expected an object");
        assert_eq!(told("[]").0, "invalid_value");
        for text in ["", "{", r#"{"items": []} x"#, "{\"items\": [\u{1}"] {
            assert_eq!(told(text).0, "invalid_json", "{text}");
        }
    }

    #[test]
    fn null_means_absent_and_what_is_unknown_is_ignored() {
        let outer: Outer = parse(br#"{"items": [], "heat": null, "x": {"y": 1}}"#).unwrap();
        assert_eq!(outer.heat, None);
    }

    #[test]
    fn a_type_may_have_parameters_or_be_absent() {
        let check = |value: &'static str| {
            check_type(&HeaderMap::from_iter([(header::CONTENT_TYPE, header::HeaderValue::from_static(value))]))
        };
        assert!(check("application/json; charset=utf-8").is_ok());
        assert!(check("application/vnd.api+json").is_ok());
        assert!(check_type(&HeaderMap::new()).is_ok());
        assert_eq!(check("text/plain").unwrap_err().status.as_u16(), 415);
    }
}
