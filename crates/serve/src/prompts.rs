//! The prompts of a completion: a text, ids, or a list of either.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Unexpected, Visitor};

const MAX_PROMPTS: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

/// All that a request has, in their order. Ids are read one by one, so that a list of them takes no more than they do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prompts(pub Vec<Prompt>);

/// An element of the list of prompts, which may itself be a list of ids.
enum Element {
    Prompt(Prompt),
    Id(u32),
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Prompts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or token ids, or a list of such")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Prompts, E> {
                Ok(Prompts(vec![Prompt::Text(text.to_owned())]))
            }

            fn visit_string<E: Error>(self, text: String) -> Result<Prompts, E> {
                Ok(Prompts(vec![Prompt::Text(text)]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompts, A::Error> {
                let mut prompts = Vec::new();
                match list.next_element()? {
                    None => return Err(Error::custom("it is an empty list")),
                    Some(Element::Id(id)) => {
                        let mut ids = vec![id];
                        while let Some(Id(id)) = list.next_element()? {
                            ids.push(id);
                        }
                        return Ok(Prompts(vec![Prompt::Ids(ids)]));
                    }
                    Some(Element::Prompt(prompt)) => prompts.push(prompt),
                }
                while let Some(OnePrompt(prompt)) = list.next_element()? {
                    if prompts.len() == MAX_PROMPTS {
                        return Err(Error::custom(format!("more than {} prompts", MAX_PROMPTS)));
                    }
                    prompts.push(prompt);
                }
                Ok(Prompts(prompts))
            }
        }
        from.deserialize_any(All)
    }
}

struct Id(u32);

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match Element::deserialize(from)? {
            Element::Id(id) => Ok(Self(id)),
            Element::Prompt(Prompt::Text(_)) => Err(Error::invalid_type(Unexpected::Other("a text"), &"a token id")),
            Element::Prompt(Prompt::Ids(_)) => Err(Error::invalid_type(Unexpected::Seq, &"a token id")),
        }
    }
}

/// A text or a list of ids.
struct OnePrompt(Prompt);

impl<'de> Deserialize<'de> for OnePrompt {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match Element::deserialize(from)? {
            Element::Prompt(prompt) => Ok(Self(prompt)),
            Element::Id(id) => {
                Err(Error::invalid_type(Unexpected::Unsigned(id.into()), &"a text or a list of token ids"))
            }
        }
    }
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct One;
        impl<'de> Visitor<'de> for One {
            type Value = Element;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a token id, or a list of token ids")
            }

            fn visit_u64<E: Error>(self, id: u64) -> Result<Element, E> {
                let id =
                    u32::try_from(id).map_err(|_| Error::invalid_value(Unexpected::Unsigned(id), &"a token id"))?;
                Ok(Element::Id(id))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Element, E> {
                Ok(Element::Prompt(Prompt::Text(text.to_owned())))
            }

            fn visit_string<E: Error>(self, text: String) -> Result<Element, E> {
                Ok(Element::Prompt(Prompt::Text(text)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Element, A::Error> {
                let mut ids = Vec::new();
                while let Some(Id(id)) = list.next_element()? {
                    ids.push(id);
                }
                Ok(Element::Prompt(Prompt::Ids(ids)))
            }
        }
        from.deserialize_any(One)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::body::{FromBody, PromptBody};

    fn read(value: &Value) -> Result<Option<Prompts>, crate::error::ApiError> {
        PromptBody::from_bytes(json!({ "prompt": value }).to_string().as_bytes()).map(|body| body.prompt)
    }

    #[test]
    fn all_four_forms_are_read() {
        let of = |value: Value| read(&value).unwrap().unwrap().0;
        let text = |text: &str| Prompt::Text(text.into());
        assert_eq!(of(json!("a\n")), [text("a\n")]);
        assert_eq!(of(json!(["a", "b\n"])), [text("a"), text("b\n")]);
        assert_eq!(of(json!([1, 2])), [Prompt::Ids(vec![1, 2])]);
        assert_eq!(of(json!([[1], [2, 3], "a"])), [Prompt::Ids(vec![1]), Prompt::Ids(vec![2, 3]), text("a")]);
        assert_eq!(read(&json!(null)).unwrap(), None);
    }

    #[test]
    fn what_is_no_prompt_is_named() {
        let of =
            |value: Value| read(&value).map_err(|error| (error.param.unwrap_or_default(), error.message)).unwrap_err();
        for (value, param, message) in [
            (json!([]), "prompt", "`prompt` is not what it should be: it is an empty list"),
            (json!({"a": 1}), "prompt", "`prompt` should be a text or token ids, or a list of such, but is an object"),
            (json!(true), "prompt", "`prompt` should be a text or token ids, or a list of such, but is `true`"),
            (
                json!([1, -2]),
                "prompt[1]",
                "`prompt[1]` should be a text, a token id, or a list of token ids, but is `-2`",
            ),
            (json!([1, "a"]), "prompt[1]", "`prompt[1]` should be a token id, but is a text"),
            (json!(["a", 7]), "prompt[1]", "`prompt[1]` should be a text or a list of token ids, but is `7`"),
            (json!([[1], [4_294_967_296_u64]]), "prompt[1][0]", "`prompt[1][0]` should be a token id, but is `42949"),
            (json!([[1], [[2]]]), "prompt[1][0]", "`prompt[1][0]` should be a token id, but is a list"),
            (json!(vec![""; 2000]), "prompt", "`prompt` is not what it should be: more than 1024 prompts"),
        ] {
            let (found, said) = of(value);
            assert_eq!(found, param, "{said}");
            assert!(said.starts_with(message), "{said}");
        }
    }
}
