//! Chat templates that ask for too much: a process with bounds renders them, and what it takes is an error here.

use std::path::Path;

use chat::chat_template::{ChatTemplate, ChatTemplateError, TemplateMessage};
use model::tokenizer::Tokenizer;

/// What became of the prompt for one message.
fn prompt(template: &str) -> Result<Vec<u32>, ChatTemplateError> {
    let template = ChatTemplate::new(template, Path::new(env!("CARGO_BIN_EXE_gptoss-jit")))?;
    template.prompt(&[TemplateMessage::new("user", "Hello")], &Tokenizer::o200k_harmony())
}

/// An error with its causes.
fn refused(template: &str) -> String {
    let error = prompt(template).expect_err(&template[..template.len().min(200)]);
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

#[test]
fn a_template_is_rendered_by_another_process() {
    let tokenizer = Tokenizer::o200k_harmony();
    let template = "<|start|>{{ messages[0].role }}<|message|>{{ messages[0].content }}<|end|>";
    let expected = tokenizer.encode_with_specials(b"<|start|>user<|message|>Hello<|end|>").expect("text");
    assert_eq!(prompt(template).expect("renders"), expected);
    assert!(refused("{% for %}").starts_with("could not compile the chat template: syntax error"));
    assert!(refused("{{ raise_exception('none of this') }}").contains("none of this"));
    let gone = ChatTemplate::new(template, Path::new("/nowhere/gptoss-jit")).expect_err("no program");
    assert!(matches!(gone, ChatTemplateError::Bounds(_)), "{gone}");
}

#[test]
fn a_template_that_takes_all_memory_is_an_error() {
    let doubled = |step: &str| format!("{{% set x = 'abcdefgh' %}}{}{{{{ x | length }}}}", step.repeat(60));
    for template in [
        doubled("{% set x = x ~ x %}"),
        doubled("{% set x = x + x %}"),
        doubled("{% set x = x * 2 %}"),
        doubled("{% set x = [x, x] | join %}"),
        doubled("{% set x = x | replace('a', 'aaaaaaaaaaaaaaaa') %}"),
        doubled("{% set x = '%s%s' | format(x, x) %}"),
        doubled("{% set x %}{{ x }}{{ x }}{% endset %}"),
        "{% set x = range(99999) | list %}{% for i in range(60) %}{% set ns = x %}{% endfor %}{% set l = [] %}"
            .to_owned()
            + &"{% set x = (x + x) | list %}".repeat(30),
        "{% set ns = namespace(x={'a': 'abcdefgh'}) %}{% for i in range(60) %}\
         {% set ns.x = {'a': ns.x.a ~ ns.x.a} %}{% endfor %}"
            .to_owned(),
    ] {
        let error = refused(&template);
        assert!(error.contains("more than 512 MiB of memory") || error.contains("too large"), "{template}: {error}");
    }
}

#[test]
fn a_template_that_is_too_deep_or_too_slow_is_an_error() {
    let chain = |n: usize, link: &str| format!("{{{{ x{} }}}}", link.repeat(n));
    let nested = "{% set ns = namespace(x=[]) %}{% for a in range(9999) %}{% for b in range(99) %}\
                  {% set ns.x = [ns.x] %}{% endfor %}{% endfor %}{{ ns.x }}";
    for template in [chain(500_000, "+1"), nested.to_owned()] {
        let error = refused(&template);
        assert!(error.contains("more stack than there is"), "{}: {error}", &template[..40]);
    }
    // These fit or do not, as the program was built.
    let elif = format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(80_000));
    for template in [chain(200_000, "|int"), chain(400_000, ".a"), elif] {
        if let Err(error) = prompt(&template) {
            let is_expected = matches!(error, ChatTemplateError::Bounds(_) | ChatTemplateError::Render(_));
            assert!(is_expected, "{}: {error}", &template[..40]);
        }
    }
    assert!(refused(&chain(600_000, "+1")).contains("expected 1048576 at most"));
    let slow = "{% set x = 'a' * 9000000 %}{% for i in range(99999) %}{% if x ~ 'b' in x %}{% endif %}{% endfor %}";
    let error = refused(slow);
    assert!(error.contains("longer than 5 s"), "{error}");
}
