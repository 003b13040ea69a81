//! The fate of every field of OpenAI's, vLLM's, `SGLang`'s and llama.cpp's requests, from `request_fields.table`.
//! Servers and files of prompts read it, so that both refuse a field that would change the answer and is not supported.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

/// The kind of request with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Chats,
    Completions,
    Responses,
    /// A line of a file of prompts.
    Files,
}

impl Place {
    /// Every kind of request, in the order of the table's columns.
    pub const ALL: [Self; 4] = [Self::Chats, Self::Completions, Self::Responses, Self::Files];
}

/// The treatment of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is supported.
    Done,
    /// It is an error, unless its value asks for nothing.
    Refused,
    /// It has no effect on answers.
    NoEffect,
    /// The field is unknown there.
    Unknown,
}

/// A row of the table: a field's name, and its fate in each kind of request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestField {
    pub name: &'static str,
    /// By the order of [`Place::ALL`].
    fates: [Fate; 4],
    /// A value that asks for something.
    pub example: Value,
    /// Values that ask for nothing, if they are not the usual ones.
    neutral: Vec<Value>,
    /// Why it is refused, or what does the same.
    pub why: &'static str,
}

static TABLE: LazyLock<Vec<RequestField>> = LazyLock::new(|| {
    let lines = include_str!("request_fields.table").lines();
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(RequestField::read).collect()
});

static BY_NAME: LazyLock<HashMap<&'static str, Vec<&'static RequestField>>> = LazyLock::new(|| {
    let mut by_name: HashMap<_, Vec<_>> = HashMap::new();
    for field in TABLE.iter() {
        by_name.entry(field.name).or_default().push(field);
    }
    by_name
});

impl RequestField {
    /// All rows of `request_fields.table`.
    pub fn all() -> &'static [Self] {
        &TABLE
    }

    /// What the table says of a field in a place; none if it is no field there.
    pub fn find(name: &str, place: Place) -> Option<&'static Self> {
        BY_NAME.get(name)?.iter().copied().find(|field| field.fate(place) != Fate::Unknown)
    }

    /// The fields of a request that are refused there: they ask for something that is not done.
    pub fn refused<'a>(request: &'a Map<String, Value>, place: Place) -> impl Iterator<Item = &'static Self> + 'a {
        request.iter().filter_map(move |(name, value)| {
            Self::find(name, place).filter(|field| field.fate(place) == Fate::Refused && field.asks(value))
        })
    }

    /// Whether a kind of request uses, refuses or ignores this field.
    pub fn fate(&self, place: Place) -> Fate {
        self.fates[place as usize]
    }

    /// Values that ask for nothing, where these are not the usual ones.
    pub fn neutral(&self) -> &[Value] {
        &self.neutral
    }

    /// Whether a value requests something.
    pub fn asks(&self, value: &Value) -> bool {
        if !self.neutral.is_empty() {
            let is_same =
                |neutral: &Value| neutral == value || neutral.is_number() && neutral.as_f64() == value.as_f64();
            return !value.is_null() && !self.neutral.iter().any(is_same);
        }
        match value {
            Value::Null => false,
            Value::Bool(flag) => *flag,
            Value::Number(number) => number.as_f64() != Some(0.0),
            Value::String(text) => !text.is_empty(),
            Value::Array(list) => !list.is_empty(),
            Value::Object(object) => !object.is_empty(),
        }
    }

    fn read(line: &'static str) -> Self {
        let json = |text: &str| serde_json::from_str(text).unwrap_or_else(|why| panic!("{line}: {text}: {why}"));
        let mut cells = line.split('|').map(str::trim);
        let mut next = || cells.next().unwrap_or_default();
        let (name, _whose) = (next(), next());
        let fates = [(); 4].map(|()| match next() {
            "done" => Fate::Done,
            "refused" => Fate::Refused,
            "none" => Fate::NoEffect,
            "-" => Fate::Unknown,
            other => panic!("{line}: `{other}`"),
        });
        let (example, neutral, why) = (json(next()), next(), next());
        let neutral = neutral.split(';').map(str::trim).filter(|value| !value.is_empty()).map(json).collect();
        Self { name, fates, example, neutral, why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_whole_and_stands_once_in_a_place() {
        for field in RequestField::all() {
            assert!(
                !field.asks(&Value::Null) && field.neutral.iter().all(|value| !field.asks(value)),
                "{}",
                field.name
            );
            let is_refused = Place::ALL.into_iter().any(|place| field.fate(place) == Fate::Refused);
            assert_eq!(is_refused, !field.why.is_empty(), "{}: why is it refused", field.name);
            assert!(!is_refused || field.asks(&field.example), "{}: the example asks for nothing", field.name);
            for place in Place::ALL {
                let rows = BY_NAME[field.name].iter().filter(|row| row.fate(place) != Fate::Unknown).count();
                assert!(rows <= 1, "{}: two rows for {place:?}", field.name);
            }
        }
        assert!(RequestField::all().len() > 150);
    }

    #[test]
    fn what_asks_for_nothing_is_not_refused() {
        let request = serde_json::json!({"regex": "a", "min_tokens": 0, "typical_p": 1.0, "ebnf": "a", "unheard": 1});
        let request = request.as_object().expect("an object");
        let refused = |place| RequestField::refused(request, place).map(|field| field.name).collect::<Vec<_>>();
        assert_eq!(refused(Place::Chats), ["ebnf"]);
        assert_eq!(refused(Place::Files), ["regex", "ebnf"]);
    }
}
