//! Which texts a grammar lets through, over a vocabulary of bytes with the marks as tokens or without.

use std::sync::Arc;

use super::*;
use crate::FUNCTIONS;
use crate::grammar::{AnswerFormat, Grammars};

#[derive(Debug)]
struct OfTemplate {
    markup: Markup,
    tokenizer: Tokenizer,
    end: u32,
}

impl crate::grammar::Layout for OfTemplate {
    fn grammar(&self, wanted: &Wanted) -> Result<String, GrammarError> {
        grammar(wanted, &self.markup, &self.tokenizer, &[self.end])
    }

    fn end_of_answer(&self) -> Result<u32, GrammarError> {
        Ok(self.end)
    }

    fn usual_beginning(&self) -> Vec<u32> {
        Vec::new()
    }
}

/// Whether an answer may be written, up to its end.
struct Trial {
    grammars: Grammars,
    tokenizer: Tokenizer,
}

impl Trial {
    fn new(template: &str, specials: &[&str]) -> Self {
        let names: Vec<(u32, String)> =
            (0..).zip(["<end>"].iter().chain(specials)).map(|(id, name)| (id, (*name).to_owned())).collect();
        let tokenizer = Tokenizer::of_bytes(300, &names);
        let layout = OfTemplate { markup: Markup::of(template, &tokenizer), tokenizer: tokenizer.clone(), end: 0 };
        Self { grammars: Grammars::new(tokenizer.clone(), Arc::new(layout)), tokenizer }
    }

    fn takes(&self, wanted: &Wanted, text: &str) -> bool {
        let mut mask = self.grammars.mask(wanted).expect("a grammar");
        let ids = self.tokenizer.encode_with_specials([text, "<end>"].concat().as_bytes()).expect("text");
        ids.iter().all(|&id| {
            let is_allowed = mask.allowed().is_some_and(|words| words[id as usize / 32] >> (id % 32) & 1 == 1);
            mask.push(id);
            is_allowed
        })
    }
}

fn wanted(choice: ToolChoice, thoughts: Thoughts, strict: bool) -> Wanted {
    let schema = serde_json::json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
        "additionalProperties": false});
    let tool = |name: &str| Tool {
        namespace: FUNCTIONS.into(),
        name: name.into(),
        description: None,
        parameters: Some(schema.clone()),
        strict,
        text: None,
    };
    Wanted { tools: vec![tool("f"), tool("g")], choice, format: None, thoughts }
}

const QWEN3: &str = "<tool_call></tool_call></think>";

#[test]
fn a_call_is_held_to_its_schema_whether_marks_are_tokens_or_characters() {
    let specials: [&[&str]; 2] = [&[], &["<think>", "</think>", "<tool_call>", "</tool_call>"]];
    for specials in specials {
        let trial = Trial::new(QWEN3, specials);
        let call = |name: &str, n: &str| {
            format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{\"n\": {n}}}}}\n</tool_call>")
        };
        let must = wanted(ToolChoice::Required, Thoughts::May, true);
        for (text, is_good) in [
            (call("f", "12"), true),
            (format!("<think>\nHm.\n</think>\n\n{}", call("g", "1")), true),
            (format!("{}\n{}", call("f", "1"), call("g", "2")), true),
            (call("f", "\"12\""), false),
            (call("h", "12"), false),
            ("Words.".to_owned(), false),
        ] {
            assert_eq!(trial.takes(&must, &text), is_good, "{specials:?} {text}");
        }
        let named = wanted(ToolChoice::Named("g".into()), Thoughts::None, true);
        assert!(trial.takes(&named, &call("g", "1")) && !trial.takes(&named, &call("f", "1")));
        assert!(!trial.takes(&named, &(call("g", "1") + &call("g", "1"))), "one");
        let begun = wanted(ToolChoice::Required, Thoughts::Begun, false);
        assert!(trial.takes(&begun, &format!("Hm.</think>{}", call("f", "\"any\""))));
        assert!(!trial.takes(&begun, &call("f", "1")), "thoughts end first");
        let may = wanted(ToolChoice::Auto, Thoughts::May, true);
        assert!(trial.takes(&may, "Just < words.") && trial.takes(&may, &format!("Look:\n{}", call("f", "1"))));
        assert!(!trial.takes(&may, &format!("Look:\n{}", call("f", "true"))));
        let mut form = wanted(ToolChoice::Auto, Thoughts::May, true);
        form.format = Some(AnswerFormat::JsonObject);
        assert!(trial.takes(&form, "<think>a</think>{\"a\": 1}") && trial.takes(&form, &call("f", "1")));
        assert!(!trial.takes(&form, "a"));
    }
}

#[test]
fn every_shape_has_a_grammar() {
    let required = |strict| wanted(ToolChoice::Required, Thoughts::May, strict);
    for (template, special, good, bad) in [
        (
            "<|python_tag|>",
            "<|python_tag|>",
            "{\"name\": \"f\", \"parameters\": {\"n\": 1}}; {\"name\": \"g\", \"parameters\": {\"n\": 2}}",
            "{\"name\": \"f\", \"parameters\": {}}",
        ),
        (
            "[TOOL_CALLS]",
            "[TOOL_CALLS]",
            "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"n\": 1}}, {\"name\": \"g\", \"arguments\": {\"n\": 2}}]",
            "[TOOL_CALLS] []",
        ),
        (
            "[TOOL_CALLS][ARGS]",
            "[ARGS]",
            "[TOOL_CALLS]f[ARGS]{\"n\": 1}[TOOL_CALLS]g[ARGS]{\"n\": 2}",
            "[TOOL_CALLS]f{}",
        ),
        ("<|observation|><|assistant|>", "<|observation|>", "f\n{\"n\": 1}", "f\n{}"),
    ] {
        let trial = Trial::new(template, &[special]);
        assert!(trial.takes(&required(true), good), "{good}");
        assert!(!trial.takes(&required(true), bad), "{bad}");
    }
    let trial = Trial::new("<tool_call><arg_key>", &[]);
    let call = "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>";
    assert!(trial.takes(&required(false), call) && !trial.takes(&required(false), "f"));
    let error = trial.grammars.mask(&required(true)).expect_err("no schema holds what is no JSON");
    assert!(matches!(error, GrammarError::Tool { .. }), "{error}");
    let error = Trial::new("plain", &[]).grammars.mask(&required(false)).expect_err("no marks");
    assert!(matches!(error, GrammarError::NoCalls), "{error}");
}
