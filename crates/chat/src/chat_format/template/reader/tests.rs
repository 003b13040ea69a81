//! Texts of every way of marking, whole and in pieces of every length.

use super::*;
use crate::FUNCTIONS;
use model::tokenizer::Tokenizer;

fn tools() -> Arc<[Tool]> {
    let schema = serde_json::json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let tool = |name: &str| Tool {
        namespace: FUNCTIONS.into(),
        name: name.into(),
        description: None,
        parameters: Some(schema.clone()),
        strict: false,
        text: None,
    };
    [tool("f"), tool("get")].into()
}

/// What a text is read as, told in one line: `(thoughts)words{name arguments}`.
fn read(template: &str, in_thoughts: bool, text: &str, n_characters: usize) -> String {
    let markup = Arc::new(Markup::of(template, &Tokenizer::of_bytes(0, &[])));
    let mut reader = Reader::new(markup, tools(), in_thoughts);
    let characters: Vec<char> = text.chars().collect();
    let parts = characters.chunks(n_characters.max(1)).map(|part| part.iter().collect::<String>());
    let mut pieces: Vec<Piece> = parts.flat_map(|part| reader.push(&part)).collect();
    pieces.extend(reader.finish());
    let mut told = String::new();
    let mut is_thinking = in_thoughts;
    told += if in_thoughts { "(" } else { "" };
    for piece in pieces {
        match piece {
            Piece::Thought(text) => {
                told += if is_thinking { "" } else { "(" };
                is_thinking = true;
                told += &text;
            }
            Piece::ThoughtEnds => {
                told += if is_thinking { ")" } else { "()" };
                is_thinking = false;
            }
            Piece::Words(text) => told += &text,
            Piece::Call(call) => told += &format!("{{{} {}}}", call.name, call.arguments),
            Piece::CallBegins(name) => told += &format!("{{{name} "),
            Piece::Arguments(text) => told += &text,
            Piece::CallEnds { is_unfinished } => told += if is_unfinished { "!" } else { "}" },
        }
    }
    told
}

fn check(template: &str, in_thoughts: bool, cases: &[(&str, &str)]) {
    for (text, want) in cases {
        for n_characters in 1..=text.chars().count().max(1) {
            let told = read(template, in_thoughts, text, n_characters);
            assert_eq!(&told, want, "{text:?} by {n_characters}");
        }
    }
}

const QWEN3: &str = "<tool_call></tool_call></think>";

#[test]
fn thoughts_go_before_an_answer() {
    check(
        QWEN3,
        false,
        &[
            ("<think>\nHm.\n</think>\n\nYes.", "(Hm.)Yes."),
            ("\n<think>a < b</thi</think>Yes. ", "(a < b</thi)Yes. "),
            ("Yes. <think>no</think>", "Yes. <think>no</think>"),
            ("<thin", "<thin"),
            ("<think>\n\n</think>\n\nYes.", "()Yes."),
            ("<think>never ends </th", "(never ends </th"),
            ("  Yes", "  Yes"),
            ("", ""),
        ],
    );
    check(QWEN3, true, &[("\nHm.\n</think>\n\nYes.", "(Hm.)Yes."), ("Hm.", "(Hm.")]);
    check("plain", false, &[(" <think>a</think><tool_call>{}", " <think>a</think><tool_call>{}")]);
}

#[test]
fn objects_between_marks_are_calls_and_what_is_none_is_text() {
    let call = r#"<tool_call>
{"name": "get", "arguments": {"city": "a</tool_call>\" {"}}
</tool_call>"#;
    let two = format!("Look:\n\n{call}\n{call}\n");
    let made = r#"{get {"city": "a</tool_call>\" {"}}"#;
    let words_behind = format!("<think>x</think>{call}Done.");
    check(
        QWEN3,
        false,
        &[
            (call, made),
            (&two, &format!("Look:{made}{made}")),
            (&words_behind, &format!("(x){made}Done.")),
            (r#"<tool_call>{"name": "get"}</tool_call>"#, "{get {}}"),
            (r#"<tool_call>{"name": "other", "arguments": {}}"#, "{other {}}"),
            (r#"<tool_call>{"name": "get", "arguments": "{\"a\": 1}"}</tool_call>"#, r#"{get {"a": 1}}"#),
            ("a <tool_call>none</tool_call> b", "a <tool_call>none</tool_call> b"),
            (r#"<tool_call>{"name": 3}</tool_call>"#, r#"<tool_call>{"name": 3}</tool_call>"#),
            (r#"<tool_call>{"name": "get", "argu"#, r#"<tool_call>{"name": "get", "argu"#),
            (r#"<tool_call>{"name": "get"} x"#, r#"<tool_call>{"name": "get"} x"#),
            ("a <tool_", "a <tool_"),
        ],
    );
}

/// What a client was told of a call stays; what is behind the place where it breaks is words.
#[test]
fn a_call_that_breaks_behind_its_name_is_a_call_and_the_rest_is_text() {
    check(
        QWEN3,
        false,
        &[
            (r#"<tool_call>{"name": "get", "arguments": {"a": 1}</tool_call> b"#, r#"{get {"a": 1}}</tool_call> b"#),
            (r#"<tool_call>{"name": "get", "arguments": {"a": 1,}}</tool_call>"#, r#"{get {"a": 1,!}}</tool_call>"#),
            (r#"<tool_call>{"name": "get", "arguments": {"a": "x"#, r#"{get {"a": "x!"#),
            (r#"<tool_call>{"name": "get", "arguments": {}, "id": 1} x"#, "{get {}} x"),
            (r#"<tool_call>{"name": "get", "arguments": {}, id} x"#, "{get {}}, id} x"),
            (r#"<tool_call>{"id": "a", "name": "f", "arguments": {}, "n": {}} </tool_call>."#, "{f {}}."),
        ],
    );
    check(
        "[TOOL_CALLS]",
        false,
        &[
            (
                r#"[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}},{"name": "get", "arguments": {}}] b"#,
                r#"{f {"a": 1}}{get {}}b"#,
            ),
            (r#"[TOOL_CALLS][{"name": "f", "arguments": {}}, none]"#, "{f {}}, none]"),
            (r#"[TOOL_CALLS][{"name": "f", "arguments": {}} {"#, "{f {}} {"),
        ],
    );
    check("[TOOL_CALLS][ARGS]", false, &[(r#"[TOOL_CALLS]f[ARGS]{"a" 1} b"#, r#"{f {"a" !1} b"#)]);
}

#[test]
fn arguments_are_told_as_they_come() {
    let markup = Arc::new(Markup::of(QWEN3, &Tokenizer::of_bytes(0, &[])));
    let mut reader = Reader::new(markup, tools(), false);
    let mut push = |text: &str| reader.push(text);
    assert_eq!(push("<tool_call>\n{\"name\": \"get\", \"argu"), []);
    assert_eq!(push("ments\": "), []);
    assert_eq!(push("{\"ci"), [Piece::CallBegins("get".into()), Piece::Arguments("{\"ci".into())]);
    assert_eq!(push("ty\": \"Rom"), [Piece::Arguments("ty\": \"Rom".into())]);
    assert_eq!(push("e\"}}"), [Piece::Arguments("e\"}".into()), Piece::CallEnds { is_unfinished: false }]);
    assert_eq!(push("\n</tool_call>"), []);
}

#[test]
fn mistral_marks_thoughts_with_names() {
    check(
        "[THINK][/THINK][TOOL_CALLS][ARGS]",
        false,
        &[
            ("[THINK]Hm.[/THINK]Yes.", "(Hm.)Yes."),
            (
                "[THINK]a [/THIN b[/THINK]\n[TOOL_CALLS]get[ARGS]{\"city\": \"x\"}",
                "(a [/THIN b){get {\"city\": \"x\"}}",
            ),
            ("[THINK]never ends [/THIN", "(never ends [/THIN"),
            ("[THIN", "[THIN"),
        ],
    );
    check("[THINK][/THINK]", true, &[("Hm.[/THINK] Yes.", "(Hm.)Yes.")]);
}

#[test]
fn other_models_mark_calls_otherwise() {
    check(
        "<|python_tag|>",
        false,
        &[
            (r#"<|python_tag|>{"name": "f", "parameters": {"a": 1}}"#, r#"{f {"a": 1}}"#),
            (r#"{"name": "f", "parameters": {}}; {"type": "function", "name": "get"}"#, "{f {}}{get {}}"),
            (r#"{"name": "none", "parameters": {}}"#, r#"{"name": "none", "parameters": {}}"#),
            (r#"{"answer": 1}"#, r#"{"answer": 1}"#),
            ("<|python_tag|>print(1)", "<|python_tag|>print(1)"),
        ],
    );
    check(
        "[TOOL_CALLS]",
        false,
        &[
            (
                r#"[TOOL_CALLS] [{"name": "f", "arguments": {"a": [1]}, "id": "123456789"}, {"name": "get"}]"#,
                r#"{f {"a": [1]}}{get {}}"#,
            ),
            ("[TOOL_CALLS] []", "[TOOL_CALLS] []"),
        ],
    );
    check(
        "[TOOL_CALLS][ARGS]",
        false,
        &[
            (r#"a[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]get[CALL_ID]x1[ARGS]{}"#, r#"a{f {"a": 1}}{get {}}"#),
            ("[TOOL_CALLS]f", "[TOOL_CALLS]f"),
        ],
    );
    check(
        "<|observation|><|assistant|>",
        false,
        &[
            ("\nHello.", "Hello."),
            ("get\n{\"city\": \"x\"}", "{get {\"city\": \"x\"}}"),
            ("getting\nthere", "getting\nthere"),
        ],
    );
    let glm = "<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>12</arg_value>\n<arg_key>n</arg_key>\n\
               <arg_value>12</arg_value>\n</tool_call>";
    check(
        "<tool_call><arg_key>",
        false,
        &[
            (glm, r#"{get {"city":"12","n":12}}"#),
            ("<tool_call>f</tool_call>", "{f {}}"),
            ("<tool_call>f <arg_key></tool_call>", "<tool_call>f <arg_key></tool_call>"),
        ],
    );
    let coder = "<tool_call>\n<function=get>\n<parameter=city>\na\nb\n</parameter>\n</function>\n</tool_call>";
    check("<tool_call><function=<parameter=", false, &[(coder, r#"{get {"city":"a\nb"}}"#)]);
}
