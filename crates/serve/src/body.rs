//! JSON bodies: read with limits of size and time; errors name the field.
//!
//! A body is scanned before it is parsed ([`Extent`]): texts longer than any prompt, and lists that would take many
//! times the memory of their bytes, are refused without a copy.
//!
//! Unknown fields are ignored. `null` means absent. All fields are read through [`super::field::Field`].

use std::fmt;
use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use futures_util::StreamExt;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Server;
use super::error::ApiError;
use super::prompts::Prompts;
use super::request_log::Record;
use system::foreign_text;

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
        let is_packed = is_packed(request.headers())?;
        let reading =
            read(request.headers().get(header::CONTENT_LENGTH).cloned(), request.into_body(), &server.body_room);
        let (mut bytes, mut held) =
            tokio::time::timeout(DEADLINE, reading).await.map_err(|_| ApiError::body_timeout(DEADLINE.as_secs()))??;
        let (server, n_bytes) = (Arc::clone(server), bytes.len());
        let parse = move || {
            if is_packed {
                bytes = unpacked(&bytes, &server.body_room, &mut held)?;
            }
            foreign_text::mend_json(&mut bytes);
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
        let (value, held) = if n_bytes < LONG_BODY_BYTES && !is_packed {
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

/// Whether a body is compressed.
///
/// # Errors
/// 415: in a way that is not known here.
fn is_packed(headers: &HeaderMap) -> Result<bool, ApiError> {
    let Some(coding) = headers.get(header::CONTENT_ENCODING) else { return Ok(false) };
    match String::from_utf8_lossy(coding.as_bytes()).trim().to_ascii_lowercase().as_str() {
        "" | "identity" => Ok(false),
        "gzip" | "x-gzip" => Ok(true),
        other => Err(ApiError::unknown_coding(other)),
    }
}

/// What a compressed body holds, up to the longest that there may be.
fn unpacked(bytes: &[u8], room: &BodyRoom, held: &mut Option<OwnedSemaphorePermit>) -> Result<Vec<u8>, ApiError> {
    const PART: u64 = 1 << 20;
    let mut reader = flate2::read::MultiGzDecoder::new(bytes);
    let mut whole = Vec::new();
    loop {
        let n_read = (&mut reader).take(PART).read_to_end(&mut whole);
        let n_read = n_read.map_err(|error| ApiError::invalid_json(format!("the body is not gzip: {error}")))?;
        if whole.len() > MAX_BYTES {
            return Err(ApiError::body_too_large(MAX_BYTES));
        }
        if n_read == 0 {
            return Ok(whole);
        }
        room.hold(bytes.len() + whole.len(), held)?;
    }
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
        let more = more.map_err(|_| ApiError::unavailable("overloaded", "too many long requests at once", wait))?;
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
    /// Numbers that follow another element in the lists of [`OF_IDS`], or in lists of those.
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
        // The name of the field of the outermost object, and whether it has ids.
        let (mut name, mut is_ids) = (&json[..0], false);
        let mut n_objects = 0_usize; // that are open
        while let Some(&byte) = json.get(at) {
            at += 1;
            match byte {
                b'0'..=b'9' => is_number = true,
                b',' if is_number && is_ids && lists & 1 == 1 && n_objects < 2 => extent.n_numbers += 1,
                b',' => extent.other_bytes += Self::MORE_BYTES,
                b'"' => {
                    let begin = at;
                    let n_bytes = text_len(json, &mut at);
                    name = json.get(begin..at - 1).unwrap_or_default();
                    extent.text_bytes += n_bytes;
                    extent.longest_bytes = extent.longest_bytes.max(n_bytes);
                }
                b':' => {
                    extent.other_bytes += Self::FIELD_BYTES;
                    is_ids = if n_objects == 1 && lists & 1 == 0 { OF_IDS.contains(&name) } else { is_ids };
                }
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

/// The length of a text whose quote was just read; `at` goes after the one that ends it. An escape is one byte, which
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

/// A body with lists of token ids, which are read one by one, so that a list of them takes no more than they do.
#[derive(Debug)]
pub(crate) struct PromptBody {
    pub(crate) prompt: Option<Prompts>,
    pub(crate) tokens: Option<Vec<u32>>,
    /// All else: an object.
    pub(crate) rest: Value,
}

/// The fields of [`PromptBody`] that hold such lists.
const OF_IDS: [&[u8]; 2] = [b"prompt", b"tokens"];

impl FromBody for PromptBody {
    /// There may be several.
    const IS_ONE_PROMPT: bool = false;
    const NUMBER_BYTES: usize = 2 * size_of::<u32>(); // in a list that may be half empty
}

impl<'de> Deserialize<'de> for PromptBody {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = PromptBody;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<PromptBody, A::Error> {
                let (mut prompt, mut tokens, mut rest) = (None, None, Map::new());
                while let Some(name) = entries.next_key::<String>()? {
                    match name.as_str() {
                        "prompt" => prompt = entries.next_value()?,
                        "tokens" => tokens = entries.next_value()?,
                        _ => drop(rest.insert(name, entries.next_value()?)),
                    }
                }
                Ok(PromptBody { prompt, tokens, rest: rest.into() })
            }
        }
        from.deserialize_map(Fields)
    }
}

/// The JSON of a body.
///
/// # Errors
/// `invalid_json` where it is none, else `invalid_value` with the path of the field.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    if let Some(encoding) = foreign_text::other_encoding(bytes) {
        return Err(ApiError::invalid_json(format!("the body is written in {encoding}, expected UTF-8")));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        of_serde(&path, error.inner())
    })?;
    json.end().map_err(|error| of_serde(".", &error))?;
    Ok(value)
}

fn of_serde(path: &str, error: &serde_json::Error) -> ApiError {
    let text = error.to_string();
    // serde_json's words end in a place of the bytes, which the path says better.
    let text = text.split(" at line ").next().unwrap_or_default();
    if !error.is_data() {
        let (line, column) = (error.line(), error.column());
        return ApiError::invalid_json(format!("the body is not JSON: {text} (line {line}, column {column})"));
    }
    match path {
        "." => ApiError::bad_request("invalid_value", format!("the body {}", foreign_text::should_be(text))),
        path => ApiError::invalid(path, format!("`{path}` {}", foreign_text::should_be(text))),
    }
}

#[cfg(test)]
mod tests;
