//! Random walks: tokens drawn of those that a mask allows. Whatever comes out must be what was wanted, by the parser
//! and by a validator that are not the grammar's.

use chat::grammar::{AnswerFormat, Grammars, ToolChoice, Wanted};
use chat::harmony::parser::{Ending, ParserEvent};
use chat::harmony::{Harmony, Message, MessageKind};
use model::tokenizer::Tokenizer;
use serde_json::Value;

use super::schemas::{Random, object};
use super::{allows, o200k, tiny, tool, wanted};

/// A walker over a vocabulary.
struct Walker {
    tokenizer: Tokenizer,
    /// Tokens that bring JSON, or a message, nearer to its end.
    closers: Vec<u32>,
}

impl Walker {
    fn new(tokenizer: Tokenizer) -> Self {
        let ends = [&b"<|end|>"[..], b"<|return|>", b"<|call|>", b"final", b" to", b"1", b"\"", b"}", b"]", b","];
        let closes = |id: u32| tokenizer.decode(id).is_ok_and(|bytes| ends.contains(&bytes));
        let closers = (0..tokenizer.vocab_size() as u32).filter(|&id| closes(id)).collect();
        Self { tokenizer, closers }
    }

    /// Draws until the grammar ends. The more tokens there are, the likelier are those that end something. Now and then
    /// somebody looks ahead, the same way at first and then another one.
    fn walk(&self, grammars: &Grammars, wanted: &Wanted, random: &mut Random) -> Vec<u32> {
        const LONGEST: usize = 3000;
        let mut mask = grammars.mask(wanted).unwrap_or_else(|error| panic!("{error}: {wanted:?}"));
        let mut ids = Vec::new();
        while let Some(bits) = mask.allowed() {
            assert!(ids.len() < LONGEST, "no end: {}", self.text(&ids));
            let is_allowed = |id: u32| bits[id as usize / 32] >> (id % 32) & 1 == 1;
            let closers: Vec<u32> = self.closers.iter().copied().filter(|&id| is_allowed(id)).collect();
            let id = if !closers.is_empty() && random.is((50 + ids.len() / 4).min(95)) {
                *random.one_of(&closers)
            } else {
                // A random place, and the next token from there that is allowed.
                let n_ids = self.tokenizer.vocab_size();
                let from = random.below(n_ids);
                let mut next = (from..n_ids).chain(0..from).map(|id| id as u32);
                next.find(|&id| is_allowed(id)).unwrap_or_else(|| panic!("a dead end: {}", self.text(&ids)))
            };
            let ahead = random.is(10).then(|| mask.ahead());
            ids.push(id);
            mask.push(id);
            if let Some(mut ahead) = ahead {
                ahead.push(id);
                assert_eq!(ahead.allowed(), mask.allowed(), "{}", self.text(&ids));
                let other = (0..self.tokenizer.vocab_size() as u32).find(|&id| allows(&mut *ahead, id));
                other.into_iter().for_each(|other| ahead.push(other));
                ahead.allowed();
            }
        }
        ids
    }

    fn text(&self, ids: &[u32]) -> String {
        String::from_utf8_lossy(&self.tokenizer.decode_all(ids).expect("ids")).into_owned()
    }

    /// The last message of a walk, which is a whole turn in the format.
    fn said(&self, grammars: &Grammars, wanted: &Wanted, random: &mut Random) -> Message {
        let ids = self.walk(grammars, wanted, random);
        let mut parser = Harmony::new(self.tokenizer.clone()).expect("it has the special tokens").parser();
        let events: Vec<ParserEvent> = ids.iter().flat_map(|&id| parser.push(id)).collect();
        assert!(parser.is_over() && parser.repairs().next().is_none(), "{}", self.text(&ids));
        let Some(ParserEvent::Ended { message, ending: Ending::Return | Ending::Call }) = events.last() else {
            panic!("{}", self.text(&ids));
        };
        message.clone()
    }
}

fn hold(text: &str, schema: &Value) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text} for {schema}"));
    let validator = jsonschema::options().should_validate_formats(true).build(schema).expect("a schema");
    if let Err(error) = validator.validate(&value) {
        panic!("{error}: {text} for {schema}");
    }
}

fn walks_are_valid(tokenizer: Tokenizer, grammars: &Grammars, n_schemas: usize, seed: u64) {
    let walker = Walker::new(tokenizer);
    let mut random = Random(seed);
    for _ in 0..n_schemas {
        let schema = object(&mut random);
        let tools = vec![tool("other", None, false), tool("f", Some(schema.clone()), true)];
        let call = walker.said(grammars, &wanted(tools, ToolChoice::Named("f".into()), None), &mut random);
        assert_eq!(call.part(), MessageKind::Call("f"));
        hold(&call.text, &schema);

        let format = Some(AnswerFormat::Schema(schema.clone()));
        let answer = walker.said(grammars, &wanted(vec![], ToolChoice::None, format), &mut random);
        assert_eq!(answer.part(), MessageKind::Answer);
        hold(&answer.text, &schema);
    }
}

#[test]
fn calls_and_answers_drawn_at_random_are_valid_by_any_schema() {
    let (tokenizer, grammars) = tiny();
    let number = |name, default| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (n_schemas, seed) = (number("GPTOSS_JIT_WALKS", 200), number("GPTOSS_JIT_WALKS_SEED", 1));
    walks_are_valid(tokenizer, &grammars, n_schemas as usize, seed);
}

#[test]
fn with_the_built_in_vocabulary_too() {
    let (tokenizer, grammars) = o200k();
    walks_are_valid(tokenizer, &grammars, 40, 2);
}

#[test]
fn what_is_not_strict_is_still_an_object() {
    let (tokenizer, grammars) = tiny();
    let walker = Walker::new(tokenizer);
    let mut random = Random(3);
    let is_object = |text: &str| serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object());
    for _ in 0..50 {
        let call = wanted(vec![tool("f", None, false)], ToolChoice::Required, None);
        let call = walker.said(&grammars, &call, &mut random);
        assert!(call.part() == MessageKind::Call("f") && is_object(&call.text), "{call:?}");
        let any = wanted(vec![], ToolChoice::None, Some(AnswerFormat::JsonObject));
        let any = walker.said(&grammars, &any, &mut random);
        assert!(any.part() == MessageKind::Answer && is_object(&any.text), "{any:?}");
        // With a choice, whatever comes is in the format.
        let free = wanted(vec![tool("f", None, false)], ToolChoice::Auto, None);
        assert!(matches!(
            walker.said(&grammars, &free, &mut random).part(),
            MessageKind::Call("f") | MessageKind::Answer
        ));
    }
}
