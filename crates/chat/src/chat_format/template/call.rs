//! Parses a call, or a list of calls, in an answer's text: complete, incomplete, or not a call.

use std::collections::HashMap;
use std::sync::Arc;

use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::markup::{CallMarks, Shape};
use crate::{TextInput, Tool, is_tool_name};

/// The name under which the text of a tool stands among the arguments that a function would have.
pub(super) const INPUT: &str = "input";

/// The longest name, an id after it, and the marks.
const MAX_NAME_BYTES: usize = 600;

/// The longest beginning of a call whose arguments are streamed.
const MAX_HEAD_BYTES: usize = 2 * MAX_NAME_BYTES;

/// What is at the beginning of a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// Calls, in this many bytes.
    Whole {
        calls: Vec<Call>,
        len: usize,
    },
    /// What may become calls.
    Open,
    Malformed,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(crate) name: String,
    /// As the model wrote them, where they are JSON.
    pub(crate) arguments: String,
}

/// How far a text was searched already, so that one that comes in pieces is looked at once.
#[derive(Clone, Debug, Default)]
pub(super) struct Scan {
    at: usize,
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    /// Where JSON was found to end.
    end: Option<usize>,
}

impl Scan {
    /// A scan that begins behind an object's `{`.
    pub(crate) fn in_object() -> Self {
        Self { depth: 1, ..Self::default() }
    }

    /// The end of an object or a list that begins at a byte: where all its brackets are closed.
    pub(crate) fn end_of_json(&mut self, text: &str, begin: usize) -> Option<usize> {
        if self.end.is_some() {
            return self.end;
        }
        self.at = self.at.max(begin);
        while let Some(&byte) = text.as_bytes().get(self.at) {
            self.at += 1;
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = self.in_string,
                b'"' => self.in_string = !self.in_string,
                b'{' | b'[' if !self.in_string => self.depth += 1,
                b'}' | b']' if !self.in_string => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        self.end = Some(self.at);
                        return self.end;
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// The place of a mark after a byte.
    fn place_of(&mut self, mark: &str, text: &str, begin: usize) -> Option<usize> {
        let mut from = self.at.max(begin);
        while !text.is_char_boundary(from) {
            from -= 1;
        }
        let found = text[from..].find(mark).map(|at| from + at);
        self.at = text.len().saturating_sub(mark.len()).max(begin);
        found
    }
}

/// The beginning of a call, if its arguments may be told as they come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CallHead {
    /// The name, and where the object of the arguments begins.
    Named(String, usize),
    /// More text is needed.
    Open,
    /// The call is sent when it is complete, or is not a call.
    None,
}

/// What a text is that begins where a call may.
pub(super) struct CallReader<'a> {
    pub(crate) marks: &'a CallMarks,
    pub(crate) tools: &'a Arc<[Tool]>,
}

impl CallReader<'_> {
    /// Whether a call without a mark may begin with this text; none if more of it will tell.
    pub(crate) fn begins_bare(&self, text: &str) -> Option<bool> {
        match self.marks.shape {
            Shape::Named if self.marks.begin.is_empty() => {
                let names = || self.tools.iter().map(|tool| [&tool.name, self.marks.name_end.as_str()].concat());
                if names().any(|name| text.starts_with(&name)) {
                    return Some(true);
                }
                if names().any(|name| name.starts_with(text)) { None } else { Some(false) }
            }
            Shape::Object if !self.marks.bare.is_empty() => {
                let Some(inner) = text.strip_prefix('{') else { return Some(false) };
                let (inner, keys) = (inner.trim_start(), || self.marks.bare.iter().map(|key| format!("\"{key}\"")));
                if keys().any(|key| inner.starts_with(&key)) {
                    return Some(true);
                }
                if keys().any(|key| key.starts_with(inner)) { None } else { Some(false) }
            }
            _ => Some(false),
        }
    }

    /// Reads calls from where they begin. `is_all` says that no more text comes.
    pub(crate) fn read(&self, text: &str, scan: &mut Scan, is_all: bool) -> Reading {
        let is_marked = !self.marks.begin.is_empty() && text.starts_with(&self.marks.begin);
        let begin = if is_marked { self.marks.begin.len() } else { 0 };
        let found = match self.marks.shape {
            Shape::Object | Shape::List => self.json(text, begin, scan),
            Shape::Named => self.named(text, begin, scan),
            Shape::Pairs => self.pairs(text, begin, scan, is_all),
        };
        let (calls, end) = match found {
            Found::Calls(calls, end) => (calls, end),
            Found::Open => return Reading::Open,
            Found::None => return Reading::Malformed,
        };
        let is_known = |call: &Call| self.tools.iter().any(|tool| tool.name == call.name);
        if calls.is_empty() || !is_marked && !calls.iter().all(is_known) {
            return Reading::Malformed;
        }
        if self.marks.end.is_empty() || !is_marked {
            return Reading::Whole { calls, len: end };
        }
        let rest = text[end..].trim_start();
        if rest.starts_with(&self.marks.end) {
            return Reading::Whole { calls, len: text.len() - rest.len() + self.marks.end.len() };
        }
        match (self.marks.end.starts_with(rest), is_all) {
            (true, true) => Reading::Whole { calls, len: text.len() },
            (true, false) => Reading::Open,
            (false, _) => Reading::Malformed,
        }
    }

    /// What a call begins with whose arguments are JSON after its name. It is of a tool that was offered, and that
    /// takes no text.
    pub(crate) fn head(&self, text: &str) -> CallHead {
        let is_marked = !self.marks.begin.is_empty() && text.starts_with(&self.marks.begin);
        let begin = if is_marked { self.marks.begin.len() } else { 0 };
        let found = match self.marks.shape {
            Shape::Object | Shape::List => self.head_of_object(text, begin),
            Shape::Named => self.name(text, begin).map(|(name, at)| (name.to_owned(), at)),
            Shape::Pairs => Err(Found::None),
        };
        let (name, at) = match found {
            Ok((name, at)) => (name, at + blanks(&text[at..])),
            Err(Found::Open) if text.len() <= MAX_HEAD_BYTES => return CallHead::Open,
            Err(_) => return CallHead::None,
        };
        let is_streamed = self.tools.iter().any(|tool| tool.name == name && tool.text.is_none());
        match text[at..].chars().next() {
            None if is_streamed => CallHead::Open,
            Some('{') if is_streamed && at <= MAX_HEAD_BYTES => CallHead::Named(name, at),
            _ => CallHead::None,
        }
    }

    /// Members of texts up to the name, and then the key of the arguments.
    fn head_of_object(&self, text: &str, begin: usize) -> Result<(String, usize), Found> {
        let mut at = begin;
        if self.marks.shape == Shape::List && text[begin..].trim_start().starts_with('[') {
            at = behind(text, at, '[')?;
        }
        at = behind(text, at, '{')?;
        let mut name = None;
        loop {
            let (key, end) = json_text(text, at)?;
            at = behind(text, end, ':')?;
            if self.marks.arguments.contains(&key) {
                return name.map(|name| (name, at)).ok_or(Found::None);
            }
            let (value, end) = json_text(text, at)?;
            if key == "name" {
                name = Some(value);
            }
            at = behind(text, end, ',')?;
        }
    }

    /// An object, or a list of them.
    fn json(&self, text: &str, begin: usize, scan: &mut Scan) -> Found {
        let begin = begin + blanks(&text[begin..]);
        let is_list = match text[begin..].chars().next() {
            None => return Found::Open,
            Some('{') => false,
            Some('[') if self.marks.shape == Shape::List => true,
            Some(_) => return Found::None,
        };
        let Some(end) = scan.end_of_json(text, begin) else { return Found::Open };
        let json = &text[begin..end];
        let objects = if is_list {
            serde_json::from_str::<Vec<&RawValue>>(json).map(|objects| objects.into_iter().map(RawValue::get).collect())
        } else {
            Ok(vec![json])
        };
        let calls = objects.ok().and_then(|objects| objects.into_iter().map(|json| self.of_object(json)).collect());
        calls.map_or(Found::None, |calls| Found::Calls(calls, end))
    }

    fn of_object(&self, json: &str) -> Option<Call> {
        let members: HashMap<String, &RawValue> = serde_json::from_str(json).ok()?;
        let member = |key: &str| members.get(key).map(|value| value.get());
        let name: String = serde_json::from_str(member("name")?).ok()?;
        let arguments = match self.marks.arguments.iter().find_map(|key| member(key)) {
            None => "{}".to_owned(),
            // Some models write the text of the object.
            Some(text) if text.starts_with('"') => serde_json::from_str(text).ok()?,
            Some(object) => object.to_owned(),
        };
        self.call(&name, arguments)
    }

    fn named(&self, text: &str, begin: usize, scan: &mut Scan) -> Found {
        let (name, begin) = match self.name(text, begin) {
            Ok(found) => found,
            Err(found) => return found,
        };
        let begin = begin + blanks(&text[begin..]);
        match text[begin..].chars().next() {
            None => return Found::Open,
            Some('{') => {}
            Some(_) => return Found::None,
        }
        let Some(end) = scan.end_of_json(text, begin) else { return Found::Open };
        let call = self.call(name, text[begin..end].to_owned());
        call.map_or(Found::None, |call| Found::Calls(vec![call], end))
    }

    /// A name, and where what is after it begins.
    fn name<'t>(&self, text: &'t str, begin: usize) -> Result<(&'t str, usize), Found> {
        let CallMarks { name_begin, name_end, id_begin, key_begin, .. } = self.marks;
        let mut begin = begin + blanks(&text[begin..]);
        if !text[begin..].starts_with(name_begin.as_str()) {
            return Err(if name_begin.starts_with(&text[begin..]) { Found::Open } else { Found::None });
        }
        begin += name_begin.len();
        // The first argument ends a name too.
        let ends = [name_end, key_begin].into_iter().filter(|end| !end.is_empty());
        let ends = ends.filter_map(|end| Some((text[begin..].find(end.as_str())?, end == name_end)));
        let Some((name_len, has_end)) = ends.min() else {
            // A mark may be open; a name this long is none.
            let is_long = text.len() - begin > MAX_NAME_BYTES;
            return Err(if is_long { Found::None } else { Found::Open });
        };
        let mut name = &text[begin..begin + name_len];
        if let Some((before, _)) = name.split_once(id_begin.as_str()).filter(|_| !id_begin.is_empty()) {
            name = before;
        }
        let name = name.trim();
        let behind = begin + name_len + if has_end { name_end.len() } else { 0 };
        if is_tool_name(name) { Ok((name, behind)) } else { Err(Found::None) }
    }

    fn pairs(&self, text: &str, begin: usize, scan: &mut Scan, is_all: bool) -> Found {
        let end = match scan.place_of(&self.marks.end, text, begin) {
            Some(end) => end,
            None if is_all => text.len(),
            None => return Found::Open,
        };
        self.pairs_in(&text[begin..end]).map_or(Found::None, |call| Found::Calls(vec![call], end))
    }

    fn pairs_in(&self, text: &str) -> Option<Call> {
        let CallMarks { key_begin, key_end, value_begin, value_end, close, name_end, .. } = self.marks;
        // A name without arguments may end with the call.
        let with_end = [text, name_end.as_str()].concat();
        let (name, at) = self.name(&with_end, 0).ok()?;
        let parameters = self.tools.iter().find(|tool| tool.name == name).and_then(|tool| tool.parameters.as_ref());
        let mut arguments = Map::new();
        let mut rest = text.get(at..).unwrap_or_default().trim_start();
        while let Some(behind) = rest.strip_prefix(key_begin.as_str()) {
            let (key, behind) = behind.split_once(key_end.as_str())?;
            let behind = if value_begin.starts_with('\n') { behind } else { behind.trim_start() };
            let (value, behind) = behind.strip_prefix(value_begin.as_str())?.split_once(value_end.as_str())?;
            let is_text = parameters.is_some_and(|schema| is_text(&schema["properties"][key.trim()]));
            let read = if is_text { None } else { serde_json::from_str(value.trim()).ok() };
            arguments.insert(key.trim().to_owned(), read.unwrap_or_else(|| Value::from(value)));
            rest = behind.trim_start();
        }
        let rest = rest.strip_prefix(close.as_str()).unwrap_or(rest);
        if !rest.trim().is_empty() {
            return None;
        }
        self.call(name, Value::Object(arguments).to_string())
    }

    /// A call, if its arguments are an object; of a tool that takes text, with that.
    fn call(&self, name: &str, arguments: String) -> Option<Call> {
        let is_object =
            arguments.trim_start().starts_with('{') && serde_json::from_str::<IgnoredAny>(&arguments).is_ok();
        if !is_object || !is_tool_name(name) {
            return None;
        }
        let takes_text = self.tools.iter().any(|tool| tool.name == name && tool.text.is_some());
        let arguments = match serde_json::from_str::<Value>(&arguments) {
            Ok(Value::Object(mut object)) if takes_text => match object.remove(INPUT) {
                Some(Value::String(text)) => text,
                _ => arguments,
            },
            _ => arguments,
        };
        Some(Call { name: name.to_owned(), arguments })
    }
}

enum Found {
    /// With where they end.
    Calls(Vec<Call>, usize),
    Open,
    None,
}

/// Behind a character that comes next but for blanks.
fn behind(text: &str, at: usize, character: char) -> Result<usize, Found> {
    let at = at + blanks(&text[at..]);
    match text[at..].chars().next() {
        None => Err(Found::Open),
        Some(next) if next == character => Ok(at + next.len_utf8()),
        Some(_) => Err(Found::None),
    }
}

/// A text of JSON that comes next but for blanks, and where it ends.
fn json_text(text: &str, at: usize) -> Result<(String, usize), Found> {
    let begin = behind(text, at, '"')?;
    let mut is_escaped = false;
    let is_end = |byte: u8| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    };
    let end = begin + text[begin..].bytes().position(is_end).ok_or(Found::Open)? + 1;
    serde_json::from_str(&text[begin - 1..end]).map(|text| (text, end)).map_err(|_| Found::None)
}

fn blanks(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

fn is_text(schema: &Value) -> bool {
    schema["type"] == "string"
}

/// The schema of a tool that takes text: a function with one argument.
pub(super) fn text_parameters(text: &TextInput) -> Value {
    let mut input = Map::from_iter([("type".to_owned(), Value::from("string"))]);
    if let TextInput::Regex(regex) = text {
        input.insert("pattern".into(), format!("^(?:{regex})$").into());
    }
    serde_json::json!({
        "type": "object", "properties": {INPUT: input}, "required": [INPUT], "additionalProperties": false,
    })
}
