//! Masks: what may be written, what may not, and that all that is drawn under them is valid.

mod schemas;
mod walks;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use chat::chat_format::ChatFormatError;
use chat::grammar::{AnswerFormat, GrammarCounts, GrammarError, Grammars, Thoughts, ToolChoice, Wanted};
use chat::harmony::Tool;
use engine::scheduler::TokenMask;
use model::tokenizer::Tokenizer;
use serde_json::{Value, json};

use fixtures::chats::{chosen, harmony, tool, wanted};
use fixtures::outputs::OUTPUTS;

/// The built-in vocabulary, whose trie is made once for all tests.
fn o200k() -> (Tokenizer, Arc<Grammars>) {
    static GRAMMARS: OnceLock<Arc<Grammars>> = OnceLock::new();
    let tokenizer = Tokenizer::o200k_harmony();
    let grammars = GRAMMARS
        .get_or_init(|| Arc::new(Grammars::new(Tokenizer::o200k_harmony(), harmony(&Tokenizer::o200k_harmony()))));
    (tokenizer, grammars.clone())
}

fn tiny() -> (Tokenizer, Arc<Grammars>) {
    let file = fixtures::repository("examples/tiny/tokenizer.bin");
    let tokenizer = Tokenizer::from_file(&file, None, None).expect("it is there");
    (tokenizer.clone(), Arc::new(Grammars::new(tokenizer.clone(), harmony(&tokenizer))))
}

/// `f` takes any object, `g` a whole number `n`.
fn tools() -> Vec<Tool> {
    let number = json!({
        "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false
    });
    vec![tool("f", None, false), tool("g", Some(number), true)]
}

fn allows(mask: &mut dyn TokenMask, id: u32) -> bool {
    let bits = mask.allowed();
    bits.is_none_or(|bits| bits.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1))
}

/// What becomes of an output under a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It may be written, and is all.
    Whole,
    /// It may be written, and more has to follow.
    Open,
    /// It may not, from this token on.
    Refused(usize),
}

fn fate(grammars: &Grammars, wanted: &Wanted, ids: &[u32]) -> Fate {
    let mut mask = grammars.mask(wanted).expect("a grammar");
    for (i, &id) in ids.iter().enumerate() {
        if mask.allowed().is_none() || !allows(&mut *mask, id) {
            return Fate::Refused(i);
        }
        mask.push(id);
    }
    if mask.allowed().is_none() { Fate::Whole } else { Fate::Open }
}

/// Outputs of the table that a grammar lets through to their ends.
const WELL_FORMED: [&str; 6] = [
    "analysis and an answer",
    "analysis, a preamble and a call",
    "a recipient in the role",
    "a recipient behind the channel, and a mark before the type",
    "the same without a blank",
    "characters of several tokens",
];

#[test]
fn outputs_in_the_format_may_be_written_and_others_may_not() {
    let (tokenizer, grammars) = o200k();
    let wanted = wanted(tools(), ToolChoice::Auto, None);
    for output in OUTPUTS {
        let fate = fate(&grammars, &wanted, &output.ids(&tokenizer));
        let is_cut = output.what == "three bytes of a character of four";
        let is_right = match fate {
            Fate::Whole => WELL_FORMED.contains(&output.what),
            Fate::Open => is_cut,
            Fate::Refused(_) => !is_cut && !WELL_FORMED.contains(&output.what),
        };
        assert!(is_right, "{}: {fate:?}", output.what);
    }
}

#[test]
fn the_choice_of_tools_and_the_format_decide_what_may_come() {
    let think = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
    let look = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant";
    let f = " to=functions.f<|channel|>commentary json<|message|>{\"a\": [1, null]}<|call|>";
    let g = "<|channel|>commentary to=functions.g <|constrain|>json<|message|>{\"n\": 12}<|call|>";
    let bad_g = "<|channel|>commentary to=functions.g <|constrain|>json<|message|>{\"n\": true}<|call|>";
    let h = " to=functions.h<|channel|>commentary json<|message|>{}<|call|>";
    let words = "<|channel|>final<|message|>Yes.<|return|>";
    let object = "<|channel|>final <|constrain|>json<|message|>{\n  \"n\": 12\n}<|return|>";
    let plain_object = "<|channel|>final<|message|>{\"n\":12}<|return|>";
    let all = [f, g, bad_g, h, words, object, plain_object];

    let named = |name: &str| ToolChoice::Named(name.into());
    let number = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let schema = || Some(AnswerFormat::Schema(number.clone()));
    let (tokenizer, grammars) = o200k();
    for (wanted, with_look, good) in [
        (wanted(vec![], ToolChoice::Auto, None), true, &[words, plain_object][..]),
        (wanted(tools(), ToolChoice::None, None), true, &[words, plain_object]),
        (wanted(tools(), ToolChoice::Auto, None), true, &[f, g, words, plain_object]),
        (wanted(tools(), ToolChoice::Required, None), true, &[f, g]),
        (wanted(tools(), named("g"), None), true, &[g]),
        (wanted(vec![], ToolChoice::Auto, Some(AnswerFormat::JsonObject)), false, &[object, plain_object]),
        (wanted(vec![], ToolChoice::Auto, schema()), false, &[object, plain_object]),
        (wanted(tools(), ToolChoice::None, schema()), false, &[object, plain_object]),
        (wanted(tools(), ToolChoice::Auto, schema()), false, &[f, g, object, plain_object]),
        (wanted(tools(), named("f"), schema()), true, &[f]),
    ] {
        for text in all {
            let is_good = good.contains(&text);
            // With a format, nothing may stand beside the answer; beside a call it may.
            let may_look = with_look || [f, g].contains(&text);
            let variants = [
                (text.to_owned(), is_good),
                (format!("{think}{think}{text}"), is_good),
                (format!("{think}{look}{text}"), is_good && may_look),
            ];
            for (text, is_good) in variants {
                let ids = tokenizer.encode_with_specials(text.as_bytes()).expect("UTF-8");
                let fate = fate(&grammars, &wanted, &ids);
                assert_eq!(fate == Fate::Whole, is_good, "{:?} {:?} {text}: {fate:?}", wanted.choice, wanted.format);
            }
        }
    }
}

#[test]
fn without_reasoning_the_grammar_begins_in_the_answer() {
    let (tokenizer, grammars) = o200k();
    let wanted = |format, choice| Wanted { tools: tools(), choice, format, thoughts: Thoughts::None };
    let fate = |format, text: &str| {
        let ids = tokenizer.encode_with_specials(text.as_bytes()).expect("UTF-8");
        fate(&grammars, &wanted(format, ToolChoice::Auto), &ids)
    };
    assert_eq!(fate(None, "Yes.<|return|>"), Fate::Whole);
    assert_eq!(fate(Some(AnswerFormat::JsonObject), "{}<|return|>"), Fate::Whole);
    assert_eq!(fate(Some(AnswerFormat::JsonObject), "Yes."), Fate::Refused(0));
    assert_eq!(fate(None, "<|channel|>"), Fate::Refused(0));
    let error = grammars.mask(&wanted(None, ToolChoice::Required)).expect_err("no call can follow");
    assert!(matches!(error, GrammarError::NoRoomForCalls), "{error}");
}

#[test]
fn nothing_ends_inside_of_arguments_and_white_space_ends() {
    let (tokenizer, grammars) = o200k();
    let wanted = wanted(tools(), ToolChoice::Named("f".into()), None);
    let head = " to=functions.f<|channel|>commentary json<|message|>";
    for (arguments, fate_of) in [
        ("{\"a\": \"<|end|>\"}<|call|>", Fate::Whole),
        ("{\"a\":\n        \"x\"}<|call|>", Fate::Whole),
        ("{\"a\": \"x", Fate::Open),
        ("{}", Fate::Open),
    ] {
        let mut ids = tokenizer.encode_with_specials(head.as_bytes()).expect("UTF-8");
        // The name of a token is text inside of a string.
        let text = arguments.strip_suffix("<|call|>").unwrap_or(arguments);
        ids.extend(tokenizer.encode(text.as_bytes()).expect("UTF-8"));
        ids.extend(tokenizer.special("<|call|>").filter(|_| text != arguments));
        assert_eq!(fate(&grammars, &wanted, &ids), fate_of, "{arguments}");
        if text != arguments {
            continue;
        }
        let mut mask = grammars.mask(&wanted).expect("a grammar");
        ids.iter().for_each(|&id| mask.push(id));
        for name in ["<|end|>", "<|return|>", "<|start|>", "<|channel|>", "<|endoftext|>"] {
            assert!(!allows(&mut *mask, tokenizer.special(name).expect(name)), "{name} after {arguments}");
        }
        assert_eq!(allows(&mut *mask, tokenizer.special("<|call|>").expect("it has it")), text == "{}", "{arguments}");
    }
    let long =
        tokenizer.encode_with_specials(format!("{head}{{\"a\":{}1}}", "\n".repeat(9)).as_bytes()).expect("UTF-8");
    assert!(matches!(fate(&grammars, &wanted, &long), Fate::Refused(_)));
}

#[test]
fn a_mask_has_a_bit_for_each_token_and_none_for_others() {
    let (tokenizer, grammars) = o200k();
    let mut mask = grammars.mask(&wanted(vec![], ToolChoice::None, None)).expect("a grammar");
    let n_words = tokenizer.vocab_size().div_ceil(32);
    let head = ["<|channel|>", "final", "<|message|>"];
    let byte_ff = (0..201_088).find(|&id| tokenizer.decode(id).is_ok_and(|bytes| bytes == b"\xff"));
    let byte_ff = byte_ff.expect("o200k has all bytes");
    for (i, name) in head.into_iter().enumerate() {
        assert_eq!(mask.allowed().expect("not over").len(), n_words);
        assert!(!allows(&mut *mask, byte_ff), "the beginning of what stands for special tokens");
        let ids = tokenizer.encode_with_specials(name.as_bytes()).expect("UTF-8");
        assert_eq!((ids.len(), allows(&mut *mask, ids[0])), (1, true), "{i}");
        mask.push(ids[0]);
    }
    // In the text all characters may come, and the one end.
    let n_allowed: u32 = mask.allowed().expect("not over").iter().map(|word| word.count_ones()).sum();
    assert!(n_allowed > 199_000, "{n_allowed}");
    let specials = (0..201_088).filter(|&id| tokenizer.is_special(id) && allows(&mut *mask, id)).collect::<Vec<_>>();
    assert_eq!(specials, [200_002]);
    assert!(!allows(&mut *mask, byte_ff), "no text has this byte");
    mask.push(200_002);
    assert_eq!(mask.allowed(), None, "the grammar is at its end");
}

#[test]
fn a_token_that_may_not_come_ends_the_generation() {
    let (tokenizer, grammars) = o200k();
    let mut mask = grammars.mask(&wanted(vec![], ToolChoice::None, Some(AnswerFormat::JsonObject))).expect("a grammar");
    mask.push(13_225);
    let allowed: Vec<u32> = (0..201_088).filter(|&id| allows(&mut *mask, id)).collect();
    assert_eq!(allowed, [tokenizer.special("<|return|>").expect("it has it")]);
}

#[test]
fn a_format_that_is_not_enforced_annotates() {
    let (_, grammars) = tiny();
    let schema = json!({"type": "object", "properties": {"x": {"type": "string", "format": "no such format"}}});
    let of_tool = wanted(vec![tool("f", Some(schema), true)], ToolChoice::Auto, None);
    assert!(grammars.mask(&of_tool).is_ok());
}

#[test]
fn what_cannot_be_enforced_is_refused_by_name() {
    let (_, grammars) = tiny();
    let object = |property: Value| json!({"type": "object", "properties": {"x": property}});
    let mut remote = object(json!({}));
    remote["properties"]["x"] = json!({"$ref": "https://example.com/schema.json"});
    let mut loose = object(json!({"not": {"type": "string"}}));
    loose["x-guidance"] = json!({"lenient": true});
    for schema in [
        object(json!({"not": {"type": "string"}})),
        object(json!({"type": "array", "uniqueItems": true})),
        object(json!({"type": "string", "pattern": "("})),
        object(json!({"type": "no such type"})),
        object(json!({"if": {"const": 1}, "then": {"const": 2}})),
        object(json!({"oneOf": [{"type": "integer"}, {"type": "number"}]})),
        object(json!({"$ref": "#/$defs/none"})),
        object(json!({"type": "object", "dependentRequired": {"a": ["b"]}})),
        remote,
        loose,
        json!({"type": "object", "properties": []}),
        json!({"type": "string"}),
        json!(true),
    ] {
        let of_tool =
            wanted(vec![tool("f", None, false), tool("g", Some(schema.clone()), true)], ToolChoice::Auto, None);
        match grammars.mask(&of_tool) {
            Err(GrammarError::Tool { name, why }) => assert!(name == "g" && !why.is_empty(), "{schema}: {name}: {why}"),
            other => panic!("{schema}: {other:?}"),
        }
        // A tool that is not strict takes any object.
        grammars
            .mask(&wanted(vec![tool("g", Some(schema.clone()), false)], ToolChoice::Auto, None))
            .expect("no schema");
        if schema["type"] != "string" {
            let error = grammars.mask(&wanted(vec![], ToolChoice::None, Some(AnswerFormat::Schema(schema.clone()))));
            assert!(matches!(error, Err(GrammarError::Format { .. })), "{schema}: {error:?}");
        }
    }
    // Variants that exclude each other are no problem, and what no draft of JSON schema knows is an annotation.
    let schema = object(json!({"oneOf": [{"type": "string"}, {"type": "integer"}], "nullable": true}));
    grammars.mask(&wanted(vec![], ToolChoice::None, Some(AnswerFormat::Schema(schema)))).expect("it can be enforced");
    let error = |tools, choice| grammars.mask(&wanted(tools, choice, None)).expect_err("refused").to_string();
    assert!(error(vec![], ToolChoice::Required).contains("there is none"));
    assert!(error(tools(), ToolChoice::Named("h".into())).contains("`h`"));
    assert!(error(vec![tool("a b", None, false)], ToolChoice::Auto).contains("`a b`"));
}

#[test]
fn many_tools_are_told_apart_by_their_names_and_schemas() {
    let (tokenizer, grammars) = tiny();
    let schema = |i: usize| json!({"type": "object", "properties": {"n": {"const": i}}, "required": ["n"]});
    let tools = (0..256).map(|i| tool(&format!("f{i}"), Some(schema(i / 2)), i % 4 == 0)).collect();
    let wanted = wanted(tools, ToolChoice::Auto, None);
    for (i, n, want) in [(0, 0, true), (25, 3, true), (252, 126, true), (252, 125, false), (256, 0, false)] {
        let text = format!(" to=functions.f{i}<|channel|>commentary json<|message|>{{\"n\": {n}}}<|call|>");
        let ids = tokenizer.encode_with_specials(text.as_bytes()).expect("UTF-8");
        let fate = fate(&grammars, &wanted, &ids);
        assert_eq!(fate == Fate::Whole, want, "{text}: {fate:?}");
    }
}

#[test]
fn the_same_grammar_is_compiled_once() {
    let (_, grammars) = tiny();
    for _ in 0..3 {
        grammars.mask(&wanted(tools(), ToolChoice::Auto, None)).expect("a grammar");
    }
    grammars.mask(&wanted(tools(), ToolChoice::Required, None)).expect("another");
    assert_eq!(grammars.counts(), GrammarCounts { hits: 2, compiled: 2 });
}

#[test]
fn a_vocabulary_without_chats_has_no_grammars() {
    let letters: Vec<u8> = fixtures::letters::letters_tokenizer(26);
    let tokenizer = Tokenizer::from_bin(letters.into(), None, None).expect("letters");
    let error = chosen(None, &tokenizer, None, Path::new("it needs none")).expect_err("no marks");
    assert!(matches!(&error, ChatFormatError::NoFormat { names } if names.len() == 7), "{error}");
}

/// `{"x": {"x": … inner}}`, so many levels of it.
fn nested(levels: usize, key: &str, inner: Value) -> Value {
    (0..levels).fold(inner, |schema, _| match key {
        "items" => json!({"type": "array", "items": schema}),
        "anyOf" => json!({"anyOf": [schema, {"type": "null"}]}),
        _ => json!({"type": "object", "properties": {"x": schema}, "required": ["x"]}),
    })
}

#[test]
fn schemas_that_ask_too_much_end_in_an_error_or_a_mask() {
    let (_, grammars) = tiny();
    let object = |property: Value| json!({"type": "object", "properties": {"x": property}, "required": ["x"]});
    let string = json!({"type": "string"});
    let properties: serde_json::Map<String, Value> = (0..5000).map(|i| (format!("p{i}"), string.clone())).collect();
    let names: Vec<String> = (0..20_000).map(|i| format!("value {i}")).collect();
    let twice =
        |i: usize| json!({"anyOf": [{"$ref": format!("#/$defs/{}", i + 1)}, {"$ref": format!("#/$defs/{}", i + 1)}]});
    let mut doubled = object(json!({"$ref": "#/$defs/0"}));
    doubled["$defs"] = (0..40).map(|i| (i.to_string(), if i < 39 { twice(i) } else { string.clone() })).collect();
    let mut endless = object(json!({"$ref": "#/$defs/a"}));
    endless["$defs"] = json!({"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}});
    let mut bottomless = object(json!({"$ref": "#/$defs/a"}));
    bottomless["$defs"] = json!({"a": object(json!({"$ref": "#/$defs/a"}))});
    for (what, schema) in [
        ("a long string", object(json!({"type": "string", "minLength": 1_000_000, "maxLength": 10_000_000}))),
        ("a nested repetition", object(json!({"type": "string", "pattern": "^((a{1,999}){1,999}){1,999}$"}))),
        ("a pattern that others backtrack on", object(json!({"type": "string", "pattern": "^(a*)*(a|aa)+b.*c.*d.*$"}))),
        ("a long array", object(json!({"type": "array", "items": string, "minItems": 100_000}))),
        ("many values", object(json!({"enum": names}))),
        ("many properties", json!({"type": "object", "properties": properties})),
        ("many levels of objects", nested(49, "properties", string.clone())),
        ("more levels of objects than are taken", nested(120, "properties", string.clone())),
        ("many levels of arrays", nested(98, "items", string.clone())),
        ("many levels of variants", nested(48, "anyOf", string.clone())),
        ("references that double", doubled),
        ("references to each other", endless),
        ("an object that has no end", bottomless),
        ("a large number", object(json!({"type": "integer", "minimum": 1e300, "multipleOf": 7}))),
        ("what nothing is", object(json!({"type": "integer", "minimum": 2, "maximum": 1}))),
    ] {
        let format = Some(AnswerFormat::Schema(schema));
        match grammars.mask(&wanted(vec![], ToolChoice::None, format)) {
            Ok(mut mask) => assert!(mask.allowed().is_some_and(|bits| bits.iter().any(|word| *word != 0)), "{what}"),
            Err(GrammarError::Format { why } | GrammarError::Compile { why }) => {
                assert!(!why.is_empty() && why.len() < 1000, "{what}: {why}");
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }
}
