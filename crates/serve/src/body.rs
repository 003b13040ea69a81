//! JSON bodies: read up to a limit and in time, and errors that name the field.
//!
//! A body is looked over before it is read as JSON ([`Extent`]): texts that no prompt can have, and lists that would
//! take many times the memory of their bytes, are refused without being copied once.
//!
//! What is unknown in a body is ignored. `null` means absent: fields that may be absent are `Option`s.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Server;
use super::error::ApiError;
use super::request_log::Record;

/// Longest body, in bytes.
pub(crate) const MAX_BYTES: usize = 32 << 20;

/// In this time a body has to be there.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// What the values of a body may take in memory, its texts apart.
const MAX_VALUE_BYTES: usize = 16 << 20;

/// A text of this many bytes is read, however short the context is: it may be in no prompt.
const MIN_TEXT_BYTES: usize = 1 << 20;

/// A JSON body as a `T`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Json<T>(pub T);

/// What a body may be read as.
pub(crate) trait FromBody: DeserializeOwned + Send + 'static {
    /// Whether its texts are all of one prompt, and not each a prompt of its own.
    const IS_ONE_PROMPT: bool = true;

    /// What a number takes in memory in a list of the outermost object, or in a list of such a list.
    const NUMBER_BYTES: usize = Extent::MORE_BYTES;

    /// Reads it.
    ///
    /// # Errors
    /// As [`parse`].
    fn from_bytes(bytes: &[u8]) -> Result<Self, ApiError> {
        parse(bytes)
    }
}

impl FromBody for Value {}

/// From here on a body is read as JSON on a thread of its own: those that serve have streams to feed.
const LONG_BODY_BYTES: usize = 1 << 18;

impl<T: FromBody> FromRequest<Arc<Server>> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, server: &Arc<Server>) -> Result<Self, ApiError> {
        check_type(request.headers())?;
        let reading =
            read(request.headers().get(header::CONTENT_LENGTH).cloned(), request.into_body(), &server.body_room);
        let (bytes, mut held) =
            tokio::time::timeout(DEADLINE, reading).await.map_err(|_| ApiError::body_timeout(DEADLINE.as_secs()))??;
        let (server, n_bytes) = (Arc::clone(server), bytes.len());
        let parse = move || {
            let extent = Extent::measure(&bytes);
            let max_text_bytes = server.max_text_bytes().max(MIN_TEXT_BYTES);
            let value_bytes = extent.value_bytes(T::NUMBER_BYTES);
            extent.check(T::IS_ONE_PROMPT, max_text_bytes, server.backend.model().context_tokens)?;
            if value_bytes > MAX_VALUE_BYTES {
                return Err(ApiError::too_many_values(MAX_VALUE_BYTES));
            }
            server.body_room.hold(bytes.len() + value_bytes, &mut held)?;
            T::from_bytes(&bytes).map(|value| (value, held))
        };
        let (value, held) = if n_bytes < LONG_BODY_BYTES {
            parse()?
        } else {
            let parsed = tokio::task::spawn_blocking(parse).await;
            parsed.map_err(|error| ApiError::internal(error.to_string()))??
        };
        if let Some(record) = Record::current() {
            record.keep_body(n_bytes, held);
        }
        Ok(Self(value))
    }
}

/// A page of another site can have a browser send what it likes, but not with this type, unless CORS allows it.
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(found) = headers.get(header::CONTENT_TYPE) else { return Err(ApiError::not_json(None)) };
    let text = String::from_utf8_lossy(found.as_bytes());
    let essence = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"));
    if is_json { Ok(()) } else { Err(ApiError::not_json(Some(&essence))) }
}

/// Room for the bodies of all requests, their bytes and their values, until they are prompts.
#[derive(Debug)]
pub struct BodyRoom {
    kib: Arc<Semaphore>,
}

/// What all bodies may take together.
const ROOM_BYTES: usize = 256 << 20;

/// What each may take besides.
const FREE_BYTES: usize = 64 << 10;

impl Default for BodyRoom {
    fn default() -> Self {
        Self { kib: Arc::new(Semaphore::new(ROOM_BYTES >> 10)) }
    }
}

impl BodyRoom {
    /// Makes room for a body that takes `n_bytes` by now; `held` is the room that it has.
    fn hold(&self, n_bytes: usize, held: &mut Option<OwnedSemaphorePermit>) -> Result<(), ApiError> {
        let n_held = held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let n_kib = n_bytes.saturating_sub(FREE_BYTES).div_ceil(1 << 10).saturating_sub(n_held);
        if n_kib == 0 {
            return Ok(());
        }
        let wait = Some(Duration::from_secs(1));
        let more = Arc::clone(&self.kib).try_acquire_many_owned(n_kib as u32); // of bodies of 32 MiB
        let more = more.map_err(|_| ApiError::unavailable("overloaded", "too many long requests are here", wait))?;
        match held {
            Some(held) => held.merge(more),
            None => *held = Some(more),
        }
        Ok(())
    }
}

async fn read(
    stated: Option<header::HeaderValue>,
    body: Body,
    room: &BodyRoom,
) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), ApiError> {
    let stated = stated.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if stated.is_some_and(|length| length > MAX_BYTES) {
        return Err(ApiError::body_too_large(MAX_BYTES));
    }
    let (mut bytes, mut held) = (Vec::new(), None);
    let mut parts = body.into_data_stream();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|error| ApiError::invalid_json(format!("could not read the body: {error}")))?;
        if bytes.len() + part.len() > MAX_BYTES {
            return Err(ApiError::body_too_large(MAX_BYTES));
        }
        room.hold(bytes.len() + part.len(), &mut held)?;
        // At once, where there is more: a list that grows is there twice at times.
        let n_more = stated.unwrap_or(0).saturating_sub(bytes.len());
        bytes.try_reserve_exact(n_more).map_err(|error| ApiError::internal(error.to_string()))?;
        bytes.extend_from_slice(&part);
    }
    Ok((bytes, held))
}

/// How much there is in some JSON, by its bytes alone. It need not be valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Extent {
    /// Bytes of all texts, once their escapes are undone: a lower bound.
    text_bytes: usize,
    /// Those of the longest.
    longest_bytes: usize,
    /// Numbers that stand behind another element in lists of the outermost object, or in lists of those.
    n_numbers: usize,
    /// About what a [`Value`] of everything else takes in memory, without its texts.
    other_bytes: usize,
}

impl Extent {
    /// What an object takes: its table, and its list of fields, which begins with room for three.
    const OBJECT_BYTES: usize = 400;
    /// What a field takes besides: a place in table and list, which are there twice when they grow, and the name.
    const FIELD_BYTES: usize = 256;
    /// What a list takes: it begins with room for four.
    const LIST_BYTES: usize = 4 * size_of::<Value>();
    /// What one more element or field takes: a list that grows is there twice.
    const MORE_BYTES: usize = 2 * size_of::<Value>();

    fn measure(json: &[u8]) -> Self {
        let (mut extent, mut at) = (Self::default(), 0);
        // Whether what is open is a list, the innermost in the lowest bit: deeper JSON is refused.
        let (mut lists, mut is_number) = (0_u128, false);
        let mut n_objects = 0_usize; // that are open
        while let Some(&byte) = json.get(at) {
            at += 1;
            match byte {
                b'0'..=b'9' => is_number = true,
                b',' if is_number && lists & 1 == 1 && n_objects < 2 => extent.n_numbers += 1,
                b',' => extent.other_bytes += Self::MORE_BYTES,
                b'"' => {
                    let n_bytes = text_len(json, &mut at);
                    extent.text_bytes += n_bytes;
                    extent.longest_bytes = extent.longest_bytes.max(n_bytes);
                }
                b':' => extent.other_bytes += Self::FIELD_BYTES,
                b'{' => {
                    extent.other_bytes += Self::OBJECT_BYTES;
                    lists <<= 1;
                    n_objects += 1;
                }
                b'[' => {
                    extent.other_bytes += Self::LIST_BYTES;
                    lists = lists << 1 | 1;
                }
                b'}' => {
                    lists >>= 1;
                    n_objects = n_objects.saturating_sub(1);
                }
                b']' => lists >>= 1,
                _ => {}
            }
            is_number &= matches!(byte, b'0'..=b'9' | b' ' | b'\t' | b'\r' | b'\n' | b'.' | b'e' | b'E' | b'+' | b'-');
        }
        extent
    }

    fn check(self, is_one_prompt: bool, max_text_bytes: usize, context_tokens: usize) -> Result<(), ApiError> {
        let text_bytes = if is_one_prompt { self.text_bytes } else { self.longest_bytes };
        if text_bytes > max_text_bytes {
            let what = if is_one_prompt { "the text of the body" } else { "a text of the body" };
            return Err(ApiError::too_many_bytes(what, text_bytes, max_text_bytes, context_tokens));
        }
        Ok(())
    }

    /// About what a [`Value`] of it takes in memory, without its texts, if each number in a list takes so much.
    fn value_bytes(self, number_bytes: usize) -> usize {
        self.other_bytes + self.n_numbers * number_bytes
    }
}

/// The length of a text whose quote was just read; `at` goes behind the one that ends it. An escape is one byte, which
/// is the least that it stands for.
fn text_len(json: &[u8], at: &mut usize) -> usize {
    let mut n_bytes = 0;
    loop {
        // Escapes may follow each other.
        while json.get(*at) == Some(&b'\\') {
            n_bytes += 1;
            *at += if json.get(*at + 1) == Some(&b'u') { 6 } else { 2 };
        }
        let rest = json.get(*at..).unwrap_or_default();
        let n_plain = memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
        n_bytes += n_plain;
        *at += n_plain;
        if json.get(*at) != Some(&b'\\') {
            *at += 1; // the quote, or the end of what was cut off
            return n_bytes;
        }
    }
}

/// The JSON of a body as a `T`.
///
/// # Errors
/// `invalid_json` where it is none, else `missing_required_parameter` or `invalid_value` with the path of the field.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        of_serde(&path, error.inner())
    })?;
    json.end().map_err(|error| of_serde(".", &error))?;
    Ok(value)
}

/// As [`parse`].
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
    fn a_type_has_to_be_there_and_may_have_parameters() {
        let check = |value: &'static str| {
            check_type(&HeaderMap::from_iter([(header::CONTENT_TYPE, header::HeaderValue::from_static(value))]))
        };
        assert!(check("application/json; charset=utf-8").is_ok());
        assert!(check("application/vnd.api+json").is_ok());
        for refused in [check_type(&HeaderMap::new()), check("text/plain"), check("application/x-www-form-urlencoded")]
        {
            assert_eq!(refused.unwrap_err().status.as_u16(), 415);
        }
    }

    #[test]
    fn texts_have_the_bytes_that_they_have_without_escapes_or_fewer() {
        let of = |text: &str| Extent::measure(text.as_bytes());
        let texts = |text: &str| (of(text).text_bytes, of(text).longest_bytes);
        assert_eq!(texts(r#"{"ab": "c\"d,[{", "e": 1}"#), (2 + 6 + 1, 6));
        assert_eq!(texts(r#"["\u00e9\n\\", "\u12"#), (3 + 1, 3));
        assert_eq!(texts(r#"["\"#), (1, 1), "what is cut off is no JSON");
        for text in ["é\n\"\\x", "\u{1}😀", ""] {
            let json = serde_json::to_string(text).unwrap();
            assert!(texts(&json).0 <= text.len(), "{json}");
        }
    }

    #[test]
    fn values_are_counted_and_texts_are_not() {
        let count = |text: &str| Extent::measure(text.as_bytes()).value_bytes(8);
        assert_eq!(count(r#""a, b: [{""#), 0);
        assert_eq!(count("[1, 2.5e-3 , 3]"), Extent::LIST_BYTES + 2 * 8);
        let fields = Extent::OBJECT_BYTES + 2 * Extent::FIELD_BYTES + Extent::MORE_BYTES;
        assert_eq!(count(r#"{"a": 1, "b": "c"}"#), fields);
        let inner = 2 * Extent::OBJECT_BYTES + 2 * Extent::FIELD_BYTES + Extent::LIST_BYTES + Extent::MORE_BYTES;
        assert_eq!(count(r#"{"logit_bias": {"1": [1, 2]}}"#), inner, "of any values, which are no plain numbers");
        assert_eq!(
            count(r#"{"a": {}, "prompt": [[1, 2], [3]]}"#),
            2 * Extent::OBJECT_BYTES + 2 * Extent::FIELD_BYTES + 3 * Extent::LIST_BYTES + 2 * Extent::MORE_BYTES + 8
        );
        let mixed = r#"[{"a": 1}, 2, "3", [4, 5], null, true]"#; // behind 2 and 4, and behind four others
        let lists = 2 * Extent::LIST_BYTES + Extent::OBJECT_BYTES + Extent::FIELD_BYTES;
        assert_eq!(count(mixed), lists + 2 * 8 + 4 * Extent::MORE_BYTES);
    }

    #[test]
    fn what_no_prompt_can_have_is_refused_before_it_is_read() {
        let check =
            |text: &str, is_one| Extent::measure(text.as_bytes()).check(is_one, 10, 2).map_err(|error| error.code);
        let two = r#"["123456", "123456"]"#;
        assert_eq!(check(two, false), Ok(()));
        assert_eq!(check(two, true), Err(Some("context_length_exceeded")));
        assert_eq!(check(r#"["12345678901"]"#, false), Err(Some("context_length_exceeded")));
    }

    #[test]
    fn bodies_share_the_room_that_there_is() {
        let room = BodyRoom::default();
        let (mut short, mut long, mut other) = (None, None, None);
        room.hold(FREE_BYTES, &mut short).unwrap();
        assert!(short.is_none());
        room.hold(ROOM_BYTES - 1024, &mut long).unwrap();
        assert_eq!(room.hold(FREE_BYTES + (1 << 20), &mut other).unwrap_err().status.as_u16(), 503);
        drop(long);
        for n in [FREE_BYTES + 1, FREE_BYTES + 5000, FREE_BYTES + 5000] {
            room.hold(n, &mut other).unwrap();
        }
        assert_eq!(other.map(|held| held.num_permits()), Some(5));
    }
}
