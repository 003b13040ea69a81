//! Conversations with tools and formats, as prompts.

use std::path::PathBuf;

use chat::harmony::{
    Channel, Developer, FUNCTIONS, Harmony, HarmonyTurn, Message, Reasoning, ResponseFormat, Role, SystemMessage, Tool,
    developer_text, is_tool_name,
};
use model::tokenizer::Tokenizer;
use model::tokenizer::limit::Limit;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

fn harmony() -> Harmony {
    Harmony::new(Tokenizer::o200k_harmony()).expect("it has the special tokens")
}

fn tool(name: &str, description: &str, parameters: Option<Value>) -> Tool {
    let description = Some(description.to_owned()).filter(|text| !text.is_empty());
    Tool { namespace: FUNCTIONS.into(), name: name.into(), description, parameters, strict: false, text: None }
}

fn developer(tools: Vec<Tool>) -> String {
    let developer = Developer { instructions: String::new(), tools, formats: Vec::new() };
    developer.message().expect("there are tools").text
}

/// How the only parameter `x` of a function is written.
fn parameter(schema: Value) -> String {
    let text = developer(vec![tool("f", "", Some(json!({"type": "object", "properties": {"x": schema}})))]);
    let inside = text.split("type f = (_: {\n").nth(1).and_then(|rest| rest.split("\n}) => any;").next());
    inside.unwrap_or_else(|| panic!("{text}")).to_owned()
}

#[test]
fn tools_are_written_as_the_format_is_published() {
    // The example of openai/harmony's documentation and of its tests.
    let format = json!({"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"});
    let kitchensink = json!({
        "description": "params object",
        "type": "object",
        "properties": {
            "string": {
                "type": "string", "title": "STRING", "description": "A string", "examples": ["hello", "world"]
            },
            "string_nullable": {
                "type": "string", "nullable": true, "description": "A nullable string", "default": "the default"
            },
            "string_enum": {"type": "string", "enum": ["a", "b", "c"]},
            "oneof_string_or_number": {
                "oneOf": [
                    {"type": "string", "default": "default_string_in_oneof"},
                    {"type": "number", "description": "numbers can happen too"}
                ],
                "description": "a oneof",
                "default": 20
            }
        }
    });
    let location = json!({"type": "string", "description": "The city and state, e.g. San Francisco, CA"});
    let weather =
        json!({"type": "object", "properties": {"location": location, "format": format}, "required": ["location"]});
    let tools = vec![
        tool("get_location", "Gets the location of the user.", None),
        tool("get_current_weather", "Gets the current weather in the provided location.", Some(weather)),
        tool("kitchensink", "A function with various complex schemas.", Some(kitchensink)),
    ];
    let developer = Developer { instructions: "Always respond in riddles".into(), tools, formats: Vec::new() };
    let message = developer.message().expect("there is something in it");
    assert_eq!(message.role, Role::Developer);
    assert_eq!(
        message.text,
        r#"# Instructions

Always respond in riddles

# Tools

## functions

namespace functions {

// Gets the location of the user.
type get_location = () => any;

// Gets the current weather in the provided location.
type get_current_weather = (_: {
// The city and state, e.g. San Francisco, CA
location: string,
format?: "celsius" | "fahrenheit", // default: celsius
}) => any;

// A function with various complex schemas.
type kitchensink = (_: // params object
{
// STRING
//
// A string
// Examples:
// - "hello"
// - "world"
string?: string,
// A nullable string
string_nullable?: string | null, // default: "the default"
string_enum?: "a" | "b" | "c",
// a oneof
// default: 20
oneof_string_or_number?:
 | string // default: "default_string_in_oneof"
 | number // numbers can happen too
,
}) => any;

} // namespace functions"#
    );
}

#[test]
fn schemas_say_what_openais_rendering_loses() {
    for (schema, want) in [
        (json!({"anyOf": [{"type": "string"}, {"type": "null"}]}), "x?: string | null,"),
        (json!({"anyOf": [{"type": "integer"}, {"type": "number"}]}), "x?: number,"),
        (json!({"const": "on"}), "x?: \"on\","),
        (json!({"type": "integer", "const": 3}), "x?: 3,"),
        (json!({"enum": ["a", 1, null]}), "x?: \"a\" | 1 | null,"),
        (json!({"type": ["string", "null"], "enum": ["a", "b", null]}), "x?: \"a\" | \"b\" | null,"),
        (json!({"type": "null"}), "x?: null,"),
        (json!({"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}), "x?: (\"a\" | \"b\")[],"),
        (json!({"type": "array", "items": {"type": "array", "items": {"type": "string"}}}), "x?: string[][],"),
        (json!({"type": ["array", "null"], "items": {"type": "string"}}), "x?: string[] | null,"),
        (json!({"type": "array"}), "x?: Array<any>,"),
        (json!({"allOf": [{"type": "string"}]}), "x?: string,"),
        (
            json!({"allOf": [{"properties": {"a": {"type": "string"}}}, {"anyOf": [{"const": 1}, {"const": 2}]}]}),
            "x?: {\n    a?: string,\n    } & (1 | 2),",
        ),
        (
            json!({"type": "string", "description": "Two\nlines.", "title": "And\ntwo"}),
            "// And\n// two\n//\n// Two\n// lines.\nx?: string,",
        ),
        (
            json!({"oneOf": [{"type": "string", "description": "Two\nlines."}, {"type": "number"}]}),
            "x?:\n | string // Two\n   // lines.\n | number\n,",
        ),
        (json!({}), "x?: any,"),
    ] {
        assert_eq!(parameter(schema.clone()), want, "{schema}");
    }
}

#[test]
fn references_are_followed_but_not_for_ever() {
    let schema = json!({
        "$defs": {
            "Unit": {"type": "string", "enum": ["m", "s"], "description": "A unit."},
            "Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}, "unit": {"$ref": "#/$defs/Unit"}}}
        },
        "type": "object",
        "properties": {
            "unit": {"$ref": "#/$defs/Unit", "default": "m"},
            "units": {"type": "array", "items": {"$ref": "#/$defs/Unit"}},
            "node": {"$ref": "#/$defs/Node"},
            "nowhere": {"$ref": "#/$defs/None"},
            "elsewhere": {"$ref": "https://example.com/schema.json"}
        }
    });
    let text = developer(vec![tool("f", "", Some(schema))]);
    let want = r#"type f = (_: {
// A unit.
unit?: "m" | "s", // default: m
units?: ("m" | "s")[],
node?: {
    next?: any,
    // A unit.
    unit?: "m" | "s",
    },
nowhere?: any,
elsewhere?: any,
}) => any;"#;
    assert!(text.contains(want), "{text}");

    // Each of thirty definitions names the next one twice.
    let two = |i: usize| json!({"type": "object", "properties": {"a": {"$ref": i}, "b": {"$ref": i}}});
    let refer = |i: usize| format!("#/$defs/{i}");
    let definitions: serde_json::Map<String, Value> = (0..30)
        .map(|i| {
            let mut schema = two(i);
            for name in ["a", "b"] {
                schema["properties"][name]["$ref"] = refer(i + 1).into();
            }
            (i.to_string(), schema)
        })
        .collect();
    let schema = json!({"type": "object", "$defs": definitions, "properties": {"x": {"$ref": "#/$defs/0"}}});
    assert!(developer(vec![tool("f", "", Some(schema))]).len() < 4 << 20);
}

#[test]
fn a_function_that_takes_nothing_says_so() {
    let empty = "namespace functions {\n\ntype f = () => any;\n\n} // namespace functions";
    for schema in
        [None, Some(json!({})), Some(json!({"type": "object"})), Some(json!({"type": "object", "properties": {}}))]
    {
        assert!(developer(vec![tool("f", "", schema.clone())]).ends_with(empty), "{schema:?}");
    }
}

#[test]
fn a_format_is_a_heading_and_its_schema() {
    let schema: Value = serde_json::from_str(r#"{"type":"object","properties":{"b":{},"a":{}}}"#).expect("JSON");
    let format = ResponseFormat { name: "shopping".into(), description: Some("A list.\nShort.".into()), schema };
    let developer = Developer { formats: vec![format], ..Developer::default() };
    assert_eq!(
        developer.message().expect("a format").text,
        "# Response Formats\n\n## shopping\n\n// A list.\n// Short.\n\
         {\"type\":\"object\",\"properties\":{\"b\":{},\"a\":{}}}"
    );
    assert_eq!(Developer::default().message(), None);
}

#[test]
fn names_that_a_header_cannot_carry_are_known() {
    for name in ["get_weather", "mcp.server/tool-1", "ns__f", "日本"] {
        assert!(is_tool_name(name), "{name}");
    }
    for name in ["", "a b", "a<|channel|>b", "a\n", "f{", "f[0]", &"a".repeat(257)] {
        assert!(!is_tool_name(name), "{name}");
    }
}

#[test]
fn calls_and_results_are_written_as_the_model_writes_them() {
    let harmony = harmony();
    let turns: Vec<HarmonyTurn> = [
        Message::new(Role::User, "Weather?"),
        Message::assistant(Channel::Analysis, "Call."),
        Message::assistant(Channel::Commentary, "I look."),
        Message::call("get_weather", r#"{"location": "Oslo"}"#),
        Message::result("get_weather", "rain"),
    ]
    .map(HarmonyTurn::from)
    .into();
    assert_eq!(
        harmony.spelled(&harmony.prompt_of(&turns, &Limit::NONE).expect("UTF-8")),
        "<|start|>user<|message|>Weather?<|end|><|start|>assistant<|channel|>analysis<|message|>Call.<|end|>\
         <|start|>assistant<|channel|>commentary<|message|>I look.<|end|>\
         <|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{\"location\": \"Oslo\"}<|call|>\
         <|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>rain<|end|><|start|>assistant"
    );
}

#[test]
fn what_was_written_goes_back_as_it_was() {
    let (harmony, tokenizer) = (harmony(), Tokenizer::o200k_harmony());
    let ids = |text: &str| tokenizer.encode_with_specials(text.as_bytes()).expect("UTF-8");
    let user = || HarmonyTurn::Message(Message::new(Role::User, "a"));
    let prompt = |turns: &[HarmonyTurn]| harmony.prompt_of(turns, &Limit::NONE).expect("ids that there are");
    let spelled = |turns: &[HarmonyTurn]| harmony.spelled(&prompt(turns));

    // Odd tokens and an odd header stay, whether or not the head of the first message is there.
    let written = [
        &ids("<|channel|>analysis<|message|>")[..],
        &[72, 68],
        &ids("<|end|><|start|>assistant"),
        &ids("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"),
    ]
    .concat();
    let first = prompt(&[user()]);
    let result = || HarmonyTurn::Message(Message::result("f", "1"));
    let with_head = [ids("<|start|>assistant"), written.clone()].concat();
    for exact in [written.clone(), with_head] {
        let second = prompt(&[user(), HarmonyTurn::Exact(exact), result()]);
        assert_eq!(second[..first.len() + written.len()], [first.clone(), written.clone()].concat());
    }

    // With an answer behind it, reasoning goes, and the answer ends as answers in prompts do.
    let answer = HarmonyTurn::Exact(ids(
        "<|channel|>analysis<|message|>Now.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
    ));
    assert_eq!(
        spelled(&[user(), HarmonyTurn::Exact(written), result(), answer, user()]),
        "<|start|>user<|message|>a<|end|>\
         <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>\
         <|start|>functions.f to=assistant<|channel|>commentary<|message|>1<|end|>\
         <|start|>assistant<|channel|>final<|message|>Yes.<|end|><|start|>user<|message|>a<|end|><|start|>assistant"
    );

    // Cut in a text, in a header, and where the model speaks for the user.
    for (text, want) in [
        ("<|channel|>final<|message|>Ye", "<|start|>assistant<|channel|>final<|message|>Ye<|end|>"),
        ("<|channel|>fin", ""),
        (
            "<|channel|>final<|message|>Yes.<|end|><|start|>user<|message|>b<|end|>",
            "<|start|>assistant<|channel|>final<|message|>Yes.<|end|>",
        ),
    ] {
        assert_eq!(spelled(&[HarmonyTurn::Exact(ids(text))]), format!("{want}<|start|>assistant"), "{text}");
    }
}

#[test]
fn an_answer_can_begin_at_once() {
    let harmony = harmony();
    let mut prompt = harmony.prompt_of(&[], &Limit::NONE).expect("no text");
    harmony.begin_final(&mut prompt).expect("UTF-8");
    assert_eq!(harmony.spelled(&prompt), "<|start|>assistant<|channel|>final<|message|>");
    let mut parser = harmony.parser_in_final();
    parser.push(13_225);
    assert_eq!(parser.open(), Some(&Message::assistant(Channel::Final, "Hello")));
}

/// A line of `tests/fixtures/harmony/prompts.jsonl`.
#[derive(Deserialize)]
struct Case {
    chat: Chat,
    n_tokens: usize,
    sha256: String,
    ids: Option<Vec<u32>>,
}

#[derive(Deserialize)]
struct Chat {
    effort: String,
    date: Option<String>,
    #[serde(default)]
    instructions: String,
    tools: Vec<Described>,
    formats: Vec<Described>,
    turns: Vec<Said>,
}

/// A tool or a format.
#[derive(Deserialize)]
struct Described {
    name: String,
    description: Option<String>,
    parameters: Option<Value>,
    schema: Option<Value>,
}

#[derive(Deserialize)]
struct Said {
    kind: String,
    #[serde(default)]
    name: String,
    text: String,
}

impl Chat {
    fn turns(self) -> Vec<HarmonyTurn> {
        let reasoning = match self.effort.as_str() {
            "low" => Reasoning::Low,
            "medium" => Reasoning::Medium,
            _ => Reasoning::High,
        };
        let has_functions = !self.tools.is_empty();
        let tools = self.tools.into_iter().map(|of| Tool {
            namespace: FUNCTIONS.into(),
            name: of.name,
            description: of.description,
            parameters: of.parameters,
            strict: false,
            text: None,
        });
        let formats = self.formats.into_iter().map(|of| ResponseFormat {
            name: of.name,
            description: of.description,
            schema: of.schema.expect("formats have one"),
        });
        let developer =
            Developer { instructions: self.instructions, tools: tools.collect(), formats: formats.collect() };
        let said = self.turns.into_iter().map(|Said { kind, name, text }| match kind.as_str() {
            "user" => Message::new(Role::User, text),
            "developer" => Message::new(Role::Developer, developer_text(&text)),
            "analysis" => Message::assistant(Channel::Analysis, text),
            "commentary" => Message::assistant(Channel::Commentary, text),
            "final" => Message::assistant(Channel::Final, text),
            "call" => Message::call(&name, text),
            "result" => Message::result(&name, text),
            kind => panic!("no such turn: {kind}"),
        });
        let system = SystemMessage { current_date: self.date, reasoning, has_functions }.message();
        [system].into_iter().chain(developer.message()).chain(said).map(HarmonyTurn::from).collect()
    }
}

/// With `GPTOSS_JIT_HARMONY_PROMPTS=FILE` more than the fixture has, which its maker writes.
#[test]
fn random_conversations_are_the_prompts_of_openais_library() {
    let fixture = fixtures::repository("tests/fixtures/harmony/prompts.jsonl");
    let file = std::env::var_os("GPTOSS_JIT_HARMONY_PROMPTS").map_or(fixture, PathBuf::from);
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let harmony = harmony();
    let (mut n_cases, mut wrong) = (0, Vec::new());
    for (i, line) in text.lines().enumerate() {
        let Case { chat, n_tokens, sha256, ids } = serde_json::from_str(line).expect("a case");
        let prompt = harmony.prompt_of(&chat.turns(), &Limit::NONE).expect("UTF-8");
        let words: Vec<String> = prompt.iter().map(ToString::to_string).collect();
        let digest: String = Sha256::digest(words.join(" ")).iter().map(|byte| format!("{byte:02x}")).collect();
        if let Some(ids) = ids {
            assert_eq!(harmony.spelled(&prompt), harmony.spelled(&ids), "line {}", i + 1);
            assert_eq!(prompt, ids, "line {}", i + 1);
        }
        if (digest, prompt.len()) != (sha256, n_tokens) {
            wrong.push(format!("line {}: {}", i + 1, harmony.spelled(&prompt)));
        }
        n_cases += 1;
    }
    assert!(wrong.is_empty(), "{} of {n_cases} differ:\n{}", wrong.len(), wrong.join("\n\n"));
    assert!(n_cases >= 100, "{n_cases} cases");
}
