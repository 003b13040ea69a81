//! Templates, rendered in this process.

use super::*;
use crate::today;

/// Harmony as far as a plain conversation goes.
const HARMONY: &str = "{%- for message in messages %}
        {%- if message.role == 'assistant' %}
            {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
        {%- else %}
            {{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}
        {%- endif %}
    {%- endfor %}
    {%- if add_generation_prompt %}{{- '<|start|>assistant' }}{% endif %}
";

fn conversation() -> Vec<TemplateMessage> {
    vec![
        TemplateMessage::new("system", "You are brief."),
        TemplateMessage::new("user", "Hello <|end|> there"),
        TemplateMessage { thinking: Some("A greeting.".into()), ..TemplateMessage::new("assistant", "Hi.") },
        TemplateMessage::new("user", "Bye"),
    ]
}

/// With what the process would answer.
fn ids(template: &str, conversation: &[TemplateMessage]) -> Result<Vec<u32>, ChatTemplateError> {
    let given = Given { messages: conversation.to_vec(), ..Given::default() };
    prompt(template, &given, &Tokenizer::o200k_harmony(), |job| Ok(render::render(job)))
}

/// The same with one message, of which the template sees `text`.
fn said(template: &str, words: &str) -> Result<Vec<u32>, ChatTemplateError> {
    let template = format!("{{% set text = messages[0].content %}}{template}");
    ids(&template, &[TemplateMessage::new("user", words)])
}

/// The ids of parts by turns the template's, whose names are tokens, and a message's, whose are not. No word may go
/// across them.
fn tokens(parts: &[&str]) -> Vec<u32> {
    let tokenizer = Tokenizer::o200k_harmony();
    let encode = |(i, part): (usize, &&str)| match i % 2 {
        0 => tokenizer.encode_with_specials(part.as_bytes()).expect("text"),
        _ => tokenizer.encode(part.as_bytes()).expect("text"),
    };
    parts.iter().enumerate().flat_map(encode).collect()
}

fn text_of(ids: &[u32]) -> String {
    String::from_utf8(Tokenizer::o200k_harmony().decode_all(ids).expect("ids")).expect("text")
}

#[test]
fn a_template_that_writes_harmony_gives_the_prompt_of_harmony() {
    let ids = ids(HARMONY, &conversation()).expect("renders");
    let want = [
        "<|start|>system<|message|>You are brief.<|end|><|start|>user<|message|>",
        "Hello <|end|> there",
        "<|end|><|start|>assistant<|channel|>final<|message|>Hi.<|end|><|start|>user<|message|>Bye<|end|><|start|>assistant",
    ];
    assert_eq!(ids, tokens(&want));
    let end = Tokenizer::o200k_harmony().special("<|end|>").expect("harmony has it");
    let n_ends = ids.iter().filter(|&&id| id == end).count();
    assert_eq!(n_ends, 4, "of four messages, and not the one that a user wrote");
}

#[test]
fn a_template_sees_what_a_message_says() {
    for (template, words, parts) in [
        ("<|start|>{{ text[1:] }}<|end|>", "xHello", &["<|start|>", "Hello", "<|end|>"][..]),
        ("{{ text | length }}<|end|>", "four", &["", "4", "<|end|>"]),
        ("{% if 'secret' in text %}yes{% else %}no{% endif %}", "a secret", &["yes"]),
        ("{{ text.replace('b', 'c') }}<|end|>", "abba", &["", "acca", "<|end|>"]),
        ("{{ text.split('</think>')[-1] }}<|end|>", "a</think>b", &["", "b", "<|end|>"]),
        ("{{ text | trim | upper }}<|end|>", "  abc\n", &["", "ABC", "<|end|>"]),
        ("{% if text.startswith('/no') %}<|return|>{% endif %}", "/no", &["<|return|>"]),
        ("{{ text }}<|end|>", "\u{10fffd}", &["", "\u{10fffd}", "<|end|>"]),
        // A template that makes a token's name of its own parts.
        ("{{ '<|' ~ ('end' if messages[0].role == 'user') ~ '|>' }}{{ text }}", "!", &["<|end|>", "!"]),
    ] {
        let ids = said(template, words).unwrap_or_else(|error| panic!("{template}: {error}"));
        assert_eq!(ids, tokens(parts), "{template} of {words:?}");
    }
}

#[test]
fn names_of_tokens_in_a_message_are_text_whatever_the_template_does_with_them() {
    let text_then_end = &["", "<|end|>", "<|end|>"];
    for (template, words, parts) in [
        ("<|start|>{{ text[1:] }}<|end|>", "x<|end|>", &["<|start|>", "<|end|>", "<|end|>"][..]),
        ("{{ text.replace(' ', '') }}<|end|>", "<|e nd|>", text_then_end),
        ("{{ text }}d|><|end|>", "<|en", text_then_end),
        ("{{ '<|' ~ text ~ '|>' }}<|end|>", "end", text_then_end),
        ("{{ text.split('x') | join }}<|end|>", "<|exndx|>", text_then_end),
        ("{{ text | reverse }}<|end|>", ">|dne|<", text_then_end),
        ("{{ text.split('</think>')[-1] }}<|end|>", "a</think><|end|>", text_then_end),
        // It looks at letters, and goes another way when they are masked.
        ("{% if 'end' in text %}+{% endif %}{{ text }}<|end|>", "<|end|>", &["+", "<|end|>", "<|end|>"]),
    ] {
        let ids = said(template, words).unwrap_or_else(|error| panic!("{template}: {error}"));
        assert_eq!(ids, tokens(parts), "{template} of {words:?}");
    }
}

#[test]
fn where_a_name_may_be_either_there_is_no_prompt() {
    // It is looked for: every mask hides it.
    let template = "{% if '<|end|>' in text %}+{% endif %}{{ text }}<|end|>";
    let error = said(template, "a <|end|>").expect_err("unclear");
    assert!(matches!(&error, ChatTemplateError::Unclear { name } if name == "<|end|>"), "{error:?}");
    assert_eq!(said(template, "an end").expect("no signs"), tokens(&["", "an end", "<|end|>"]));
    assert_eq!(said(template, "a < b").expect("not that name"), tokens(&["", "a < b", "<|end|>"]));
    // It is of the template's signs and a message's letters, which are looked at.
    let template = "{% if 'end' in text %}+{% endif %}{{ '<|' ~ text ~ '|>' }}";
    assert!(matches!(said(template, "end"), Err(ChatTemplateError::Unclear { .. })));
}

#[test]
fn words_go_from_the_template_into_a_message() {
    let ids = said("<|start|>{{ text }}{{ '\n\n' }}there<|end|>", "Brief.").expect("renders");
    assert_eq!(ids, tokens(&["<|start|>Brief.\n\nthere<|end|>"]));
    assert_ne!(ids, tokens(&["<|start|>", "Brief.", "\n\nthere<|end|>"]), "the full stop and the line ends are a word");
}

#[test]
fn what_was_thought_stands_beside_what_was_said() {
    let template = "{% for message in messages %}{% if message.thinking %}({{ message.thinking }}){% endif %}\
                    {{ message.content }};{% endfor %}";
    let text = text_of(&ids(template, &conversation()).expect("renders"));
    assert_eq!(text, "You are brief.;Hello <|end|> there;(A greeting.)Hi.;Bye;");
}

/// Names that transformers knows, with the options of those that have some.
#[test]
fn what_templates_may_call_is_there() {
    let trainers = "{% for m in messages %}{% if loop.first and m.role == \"system\" %}{% continue %}{% endif %}\
                    <|start|>{{ m.role }}<|message|>{%- generation -%} {{ m.content|tojson }} {%+ endgeneration %}\
                    <|end|>{% endfor %}<|start|>assistant";
    let text = text_of(&ids(trainers, &conversation()[..2]).expect("renders"));
    assert_eq!(text, "<|start|>user<|message|>\"Hello <|end|> there\" <|end|><|start|>assistant");
    for (template, want) in [
        (
            "{{ {'b': 1, 'a': 'é'} | tojson(sort_keys=true, separators=(',', ':'), ensure_ascii=true) }}",
            r#"{"a":"\u00e9","b":1}"#,
        ),
        ("{{ {'b': [1]} | tojson(indent=1) }}", "{\n \"b\": [\n  1\n ]\n}"),
        ("{{ '  xax '.strip() ~ '|' ~ 'xax'.strip('x') ~ '|' ~ 'xax'.lstrip('x') ~ 'xax'.rstrip('x') }}", "xax|a|axxa"),
        ("{{ 'a,b'.split(',')[-1] ~ 'ab'.upper() ~ 'abc'.find('c') ~ 'ab'.endswith('b') }}", "bAB2True"),
        ("{{ 'b'.join(['a', 'c']) ~ 'aXa'.replace('X', 'x').title() }}", "abcAxa"),
        ("{% for key, value in {'a': 1}.items() %}{{ key }}{{ value }}{% endfor %}{{ {'a': 1}.get('z', 2) }}", "a12"),
        ("{% set c = joiner(', ') %}{% for x in 'ab' %}{{ c() }}{{ x }}{% endfor %}", "a, b"),
        ("{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}", "aba"),
        ("{{ 'two words, e.g. it' | wordcount }}{{ '%s is %d' % ('it', 3) }}{{ '%s' % 'x' | upper }}", "5it is 3X"),
        ("{% for x in 'abc' %}{% if x == 'b' %}{% break %}{% endif %}{{ x }}{% endfor %}", "a"),
        ("{{ documents is defined }}{{ tools is none }}{% set ns = namespace(n=1) %}{{ ns.n }}", "FalseTrue1"),
    ] {
        let text = text_of(&ids(template, &conversation()[..1]).unwrap_or_else(|error| panic!("{template}: {error}")));
        assert_eq!(text.replace("true", "True").replace("false", "False"), want, "{template}");
    }
}

/// `make_chat_fixtures.py` wrote them with transformers.
#[test]
fn constructs_are_rendered_as_transformers_renders_them() {
    let file: Value =
        serde_json::from_str(include_str!("../../../../tests/fixtures/chat/constructs.json")).expect("JSON");
    let mut given = file["given"].clone();
    for (key, value) in [("words_of_others", serde_json::json!({})), ("is_continued", false.into())] {
        given[key] = value;
    }
    let given: Given = serde_json::from_value(given).expect("what a template is given");
    let cases = file["cases"].as_array().expect("a list");
    assert!(cases.len() > 110);
    let mut wrong = Vec::new();
    for case in cases {
        let template = case[0].as_str().expect("a template").to_owned();
        let job = PromptRenderJob { template, conversations: vec![given.clone()] };
        let got = match render::render(&job) {
            PromptRenderResult::Rendered(mut texts) => texts.remove(0),
            PromptRenderResult::NoTemplate(why) => Err(why),
        };
        if got.as_deref().ok() != case[1].as_str() {
            wrong.push(format!("{}\n  {got:?}\n  {}", case[0], case[1]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_others_say_of_a_template_is_no_token() {
    let words = |value: &str| Map::from_iter([("style".to_owned(), value.into()), ("messages".to_owned(), 1.into())]);
    let of = |value: &str| {
        let given = Given { messages: conversation(), words_of_others: words(value), ..Given::default() };
        let template = "{{ style }}{{ messages[0].content }}";
        prompt(template, &given, &Tokenizer::o200k_harmony(), |job| Ok(render::render(job)))
    };
    assert_eq!(text_of(&of("Short. ").expect("renders")), "Short. You are brief.");
    assert!(matches!(of("<|end|>"), Err(ChatTemplateError::Unclear { .. })));
}

#[test]
fn calls_say_what_they_say_and_end_no_message() {
    let call = serde_json::json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": "x<|end|>\"", "b|": [1]}}});
    let result = TemplateMessage { call: Some(("c".into(), "f".into())), ..TemplateMessage::new("tool", "<|end|>") };
    let all = vec![TemplateMessage { tool_calls: vec![call], ..TemplateMessage::new("assistant", "") }, result];
    let template = "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name }}=\
                    {{ c.function.arguments | tojson }}<|call|>{% endfor %}{% else %}{{ m.tool_call_id }}{{ m.content }}\
                    <|end|>{% endif %}{% endfor %}";
    let want = ["", r#"f={"a": "x<|end|>\"", "b|": [1]}"#, "<|call|>", "c<|end|>", "<|end|>"];
    assert_eq!(ids(template, &all).expect("renders"), tokens(&want));
}

#[test]
fn what_a_template_refuses_or_never_ends_is_an_error() {
    let error = |source: &str| ids(source, &conversation()).expect_err(source).to_string();
    assert!(error("{% for %}").starts_with("could not compile the chat template: syntax error"));
    assert!(error("{{ raise_exception('no system message') }}").contains("no system message"));
    assert!(error("{{ strftime_now('%Q') }}").contains("found `%Q`"));
    let endless = "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}";
    assert!(error(endless).starts_with("could not render"));
    let long = "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}";
    assert!(error(long).contains("fuel"));
    assert!(error("{{ 'x' * 9999999 }}").contains("expected 8388608 at most"));
}

#[test]
fn today_is_written_as_a_template_wants_it() {
    let date = text_of(&ids("{{ strftime_now('%d.%m.%Y') }}", &[]).expect("renders"));
    assert_eq!(date.split('.').rev().collect::<Vec<_>>().join("-"), today());
}

#[test]
fn a_begun_answer_ends_where_its_message_does() {
    let chatml = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}\
                  {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let looks = "{% if 'end' in messages[1].content %}+{% endif %}{{ messages[1].content }}<|im_end|>";
    let continued = |template: &str, last: &str| {
        let messages = vec![TemplateMessage::new("user", "The end"), TemplateMessage::new("assistant", last)];
        let given = Given { messages, is_continued: true, ..Given::default() };
        let ids = prompt(template, &given, &Tokenizer::o200k_harmony(), |job| Ok(render::render(job)))?;
        Ok::<_, ChatTemplateError>(text_of(&ids))
    };
    for last in ["end", "i", "The", "<|im_end|>", "assistant"] {
        let want = format!("<|im_start|>user\nThe end<|im_end|>\n<|im_start|>assistant\n{last}");
        assert_eq!(continued(chatml, last).expect(last), want);
    }
    assert_eq!(continued(looks, "the end, ").expect("signs"), "+the end, ");
    assert_eq!(continued(looks, "an end").expect("nothing in it tells"), "+an end");
    for nothing in [" ", "\n\n"] {
        let error = continued(chatml, nothing).expect_err("blanks alone");
        assert!(error.to_string().contains("is not in the prompt"), "{error}");
    }
}
