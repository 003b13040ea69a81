//! The table of fields, walked: each is read as it says there.

use serde_json::{Value, json};

use crate::chat::request::ChatRequest;
use crate::completions::CompletionRequest;
use crate::error::ApiError;
use crate::field::Field;
use crate::responses::items::KnownItems;
use crate::responses::request::ResponsesRequest;
use chat::AssistantMessage;
use chat::request_fields::{Fate, Place, RequestField};

struct Nothing;

impl KnownItems for Nothing {
    fn item(&self, _: &str) -> Option<Value> {
        None
    }

    fn sealed(&self, _: &str) -> Option<AssistantMessage> {
        None
    }
}

/// What is read of a request that has a field besides what all have: of completions, the prompt is read elsewhere.
fn read(place: Place, name: &str, value: &Value) -> Result<String, ApiError> {
    let mut body = match place {
        Place::Chats => json!({"messages": [{"role": "user", "content": "hi"}]}),
        Place::Responses => json!({"input": "hi"}),
        Place::Completions | Place::Files => json!({}),
    };
    body[name] = value.clone();
    let body = Field::body(&body)?;
    Ok(match place {
        Place::Chats => format!("{:?}", ChatRequest::read(&body)?),
        Place::Responses => format!("{:?}", ResponsesRequest::read(&body, &Nothing)?),
        Place::Completions | Place::Files => format!("{:?}", CompletionRequest::read(&body)?),
    })
}

#[test]
fn every_field_is_done_refused_or_without_effect_as_the_table_says() {
    for place in [Place::Chats, Place::Completions, Place::Responses] {
        let without = read(place, "unheard", &Value::Null).expect("a right body");
        for field in RequestField::all().iter().filter(|field| field.name != "prompt" || place == Place::Responses) {
            let found = read(place, field.name, &field.example);
            let place_of = || format!("{} in {place:?}: {found:?}", field.name);
            match (field.fate(place), &found) {
                (Fate::Unknown, _) => continue,
                (Fate::Done, Ok(read)) => assert_ne!(*read, without, "{}", place_of()),
                (Fate::NoEffect, Ok(read)) => assert_eq!(*read, without, "{}", place_of()),
                // It is read, and something else is missing that it needs.
                (Fate::Done, Err(error)) => {
                    assert_ne!(error.code, Some("unsupported_parameter"), "{}", place_of());
                    assert!(error.param.as_ref().is_some_and(|param| param.starts_with(field.name)), "{}", place_of());
                }
                (Fate::Refused, Err(error)) => {
                    assert_eq!(error.code, Some("unsupported_parameter"), "{}", place_of());
                    assert_eq!(error.param.as_deref(), Some(field.name), "{}", place_of());
                    assert!(error.message.contains(field.why), "{}", place_of());
                }
                (Fate::Refused, Ok(_)) | (Fate::NoEffect, Err(_)) => panic!("{}", place_of()),
            }
            if field.fate(place) == Fate::Refused {
                for value in field.neutral() {
                    assert_eq!(read(place, field.name, value).ok().as_ref(), Some(&without), "{}", place_of());
                }
            }
        }
    }
}
