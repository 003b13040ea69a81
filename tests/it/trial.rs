//! Grammars that take too much are refused, by a process that tries them first; the others are as without it.

use chat::grammar::{AnswerFormat, GrammarError, Grammars, ToolChoice};
use chat::harmony::{TextInput, Tool};
use model::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::fixtures::program::program;
use fixtures::chats::{harmony, tool, wanted};

fn tried() -> Grammars {
    Grammars::new(Tokenizer::o200k_harmony(), harmony(&Tokenizer::o200k_harmony())).tried_by(program())
}

fn of_text(text: TextInput) -> Tool {
    Tool { text: Some(text), ..tool("f", None, false) }
}

/// Objects in objects, by reference.
fn chain(n: usize) -> Value {
    let link = |i: usize| json!({"type": "object", "properties": {"a": {"$ref": format!("#/$defs/d{}", i + 1)}}});
    let mut defs: serde_json::Map<String, Value> = (0..n).map(|i| (format!("d{i}"), link(i))).collect();
    defs.insert(format!("d{n}"), json!({"type": "string"}));
    json!({"$ref": "#/$defs/d0", "$defs": defs})
}

/// Rules in rules.
fn rules(n: usize) -> String {
    let links: String = (0..n).map(|i| format!("r{i}: \"a\" r{}\n", i + 1)).collect();
    format!("start: r0\n{links}r{n}: \"b\"")
}

#[test]
fn what_takes_all_memory_is_refused_with_the_reason() {
    let grammars = tried();
    let patterns: Vec<Value> =
        (0..40).map(|i| json!({"type": "string", "pattern": format!("^[ab]*a[ab]{{{i}}}$")})).collect();
    let nested = format!(
        "start: T0\n{}T40000: \"b\"",
        (0..40_000).map(|i| format!("T{i}: \"a\" T{}\n", i + 1)).collect::<String>()
    );
    for (tools, format) in [
        (vec![of_text(TextInput::Regex("a?".repeat(20_000)))], None),
        (vec![of_text(TextInput::Lark(nested[..400_000].to_owned()))], None),
        (vec![], Some(AnswerFormat::Schema(json!({ "allOf": patterns })))),
    ] {
        let choice = if tools.is_empty() { ToolChoice::None } else { ToolChoice::Auto };
        let error = grammars.mask(&wanted(tools, choice, format)).expect_err("it takes too much");
        assert!(matches!(error, GrammarError::TooComplex { .. }), "{error}");
        assert!(error.to_string().contains(": it takes "), "{error}");
    }
    let long = of_text(TextInput::Regex("a".repeat(1 << 20)));
    let error = grammars.mask(&wanted(vec![long], ToolChoice::Auto, None)).expect_err("it is too long");
    assert!(matches!(error, GrammarError::TooLong { .. }), "{error}");
}

#[test]
fn what_is_deep_and_takes_little_is_compiled_though_threads_have_less_stack() {
    let grammars = tried();
    for (tools, format) in [
        (vec![of_text(TextInput::Lark(rules(1000)))], None),
        (vec![], Some(AnswerFormat::Schema(chain(300)))),
        (vec![tool("f", Some(chain(300)), true)], None),
    ] {
        let choice = if tools.is_empty() { ToolChoice::None } else { ToolChoice::Auto };
        let wanted = wanted(tools, choice, format);
        assert!(!grammars.is_compiled(&wanted));
        let mut mask = grammars.mask(&wanted).expect("a thread with a large stack compiles it");
        assert!(mask.allowed().is_some() && grammars.is_compiled(&wanted));
    }
}

#[test]
fn a_process_that_cannot_be_had_is_nobodys_grammar() {
    let grammars = Grammars::new(Tokenizer::o200k_harmony(), harmony(&Tokenizer::o200k_harmony()))
        .tried_by("/nonexistent/program".into());
    let schema = AnswerFormat::Schema(json!({"type": "object"}));
    let error = grammars.mask(&wanted(vec![], ToolChoice::None, Some(schema))).expect_err("there is no such program");
    assert!(matches!(error, GrammarError::NotTried { .. }), "{error}");
    assert!(error.to_string().contains("/nonexistent/program"), "{error}");
}

#[test]
fn a_grammar_that_is_none_is_told_as_without_a_trial() {
    let broken = AnswerFormat::Schema(json!({"type": "nothing"}));
    let error = tried().mask(&wanted(vec![], ToolChoice::None, Some(broken))).expect_err("no schema");
    assert!(matches!(error, GrammarError::Format { .. }), "{error}");
}
