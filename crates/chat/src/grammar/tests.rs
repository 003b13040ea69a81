//! What is compiled, and tried before.

use serde_json::json;

use super::*;

/// A grammar whatever is wanted.
#[derive(Debug)]
struct Always(String);

impl Layout for Always {
    fn grammar(&self, _: &Wanted) -> Result<String, GrammarError> {
        Ok(self.0.clone())
    }
    fn end_of_answer(&self) -> Result<u32, GrammarError> {
        Ok(1)
    }
    fn usual_beginning(&self) -> Vec<u32> {
        Vec::new()
    }
}

fn grammars(text: &str) -> Grammars {
    Grammars::new(Tokenizer::of_bytes(256, &[]), Arc::new(Always(text.to_owned())))
}

fn wanted(format: Option<AnswerFormat>, strict: Option<bool>) -> Wanted {
    let tool = |strict| Tool {
        namespace: "functions".into(),
        name: "f".into(),
        description: None,
        parameters: Some(json!({"type": "object"})),
        strict,
        text: None,
    };
    let tools = strict.map(tool).into_iter().collect();
    Wanted { tools, choice: ToolChoice::Auto, format, thoughts: Thoughts::None }
}

#[test]
fn what_is_not_the_formats_own_is_tried_first() {
    let grammars = grammars("start: \"a\"").tried_by("/no/such/program".into());
    let is_tried = |wanted: Wanted| matches!(grammars.mask(&wanted).map(drop), Err(GrammarError::NotTried { .. }));
    assert!(is_tried(wanted(Some(AnswerFormat::JsonObject), None)));
    assert!(is_tried(wanted(None, Some(true))));
    assert!(!is_tried(wanted(None, Some(false))));
    assert_eq!(grammars.counts().compiled, 3);
}

#[test]
fn a_text_that_is_too_long_is_not_compiled() {
    let text = |len: usize| format!("start: \"a\"\n{}", "\n".repeat(len - 11));
    let error = grammars(&text(MAX_TEXT_BYTES + 1)).mask(&wanted(None, None)).map(drop).expect_err("too long");
    assert!(matches!(error, GrammarError::TooLong { found } if found == MAX_TEXT_BYTES + 1), "{error}");
}

#[test]
fn a_mask_says_its_grammar_and_is_made_of_it_again() {
    let grammars = grammars("start: \"ab\"");
    let mask = grammars.mask(&wanted(None, None)).expect("a grammar");
    assert_eq!(mask.text(), Some("start: \"ab\""));
    let mut again = grammars.mask_of(mask.text().expect("it says it").to_owned()).expect("the same");
    assert_eq!(again.allowed().map(|bits| bits[usize::from(b'a') / 32]), Some(1 << (b'a' % 32)));
    assert_eq!(grammars.counts(), GrammarCounts { hits: 1, compiled: 1 });
}

#[test]
fn an_error_is_told_without_the_grammar_that_it_quotes() {
    assert_eq!(first_line("at 3: failed to compile JSON schema: no such type\nstart: x"), "no such type");
    assert_eq!([first_line("one\ntwo"), first_line("")], ["one", ""]);
}
