//! How a model marks what it thinks and the tools that it calls: the files of `chats/`, and which of them fits.

use serde::Deserialize;

use model::tokenizer::Tokenizer;

/// How a model's answers are marked. Without either mark an answer is text, all of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Markup {
    pub(crate) reasoning: Option<ReasoningMarks>,
    pub(crate) calls: Option<CallMarks>,
}

/// What reasoning stands between.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReasoningMarks {
    pub(crate) begin: String,
    pub(crate) end: String,
}

/// How calls are written; `chats/README.md` says what each means. A mark of no characters is none.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CallMarks {
    #[serde(default)]
    pub(crate) begin: String,
    #[serde(default)]
    pub(crate) end: String,
    pub(crate) shape: Shape,
    #[serde(default = "usual_arguments")]
    pub(crate) arguments: Vec<String>,
    #[serde(default)]
    pub(crate) bare: Vec<String>,
    #[serde(default)]
    pub(crate) between: String,
    #[serde(default)]
    pub(crate) name_begin: String,
    #[serde(default)]
    pub(crate) name_end: String,
    #[serde(default)]
    pub(crate) id_begin: String,
    #[serde(default)]
    pub(crate) key_begin: String,
    #[serde(default)]
    pub(crate) key_end: String,
    #[serde(default)]
    pub(crate) value_begin: String,
    #[serde(default)]
    pub(crate) value_end: String,
    #[serde(default)]
    pub(crate) close: String,
    #[serde(default)]
    pub(crate) opens: String,
    pub(crate) id_length: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Shape {
    /// `{"name": …, "arguments": {…}}`
    Object,
    /// A list of such objects.
    List,
    /// A name, and the JSON of its arguments.
    Named,
    /// A name, and arguments one by one.
    Pairs,
}

fn usual_arguments() -> Vec<String> {
    ["arguments", "parameters"].map(str::to_owned).to_vec()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MarkupFile {
    /// For people.
    #[serde(rename = "about")]
    _about: String,
    when: Vec<When>,
    reasoning: Option<ReasoningMarks>,
    calls: Option<CallMarks>,
}

/// Signs of a model that all must be there.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct When {
    template: Vec<String>,
    lacks: Vec<String>,
    tokens: Vec<String>,
}

impl When {
    fn fits(&self, template: &str, tokenizer: &Tokenizer) -> bool {
        self.template.iter().all(|sign| template.contains(sign))
            && !self.lacks.iter().any(|sign| template.contains(sign))
            && self.tokens.iter().all(|name| tokenizer.named(name).is_some())
    }
}

impl Markup {
    /// That of a model with this template and vocabulary.
    pub(crate) fn of(template: &str, tokenizer: &Tokenizer) -> Self {
        let mut markup = Self::default();
        for file in data::CHATS.iter().map(|(name, text)| read(name, text)) {
            if file.when.iter().any(|when| when.fits(template, tokenizer)) {
                markup.reasoning = markup.reasoning.or(file.reasoning);
                markup.calls = markup.calls.or(file.calls);
            }
        }
        markup
    }

    /// Whether the name of a token is one of the marks, and so is to be read.
    pub(crate) fn has(&self, name: &str) -> bool {
        let reasoning = self.reasoning.iter().flat_map(|marks| [&marks.begin, &marks.end]);
        let calls = self.calls.iter().flat_map(|marks| {
            let CallMarks { begin, end, name_begin, name_end, id_begin, .. } = marks;
            let CallMarks { key_begin, key_end, value_begin, value_end, close, .. } = marks;
            [begin, end, name_begin, name_end, id_begin, key_begin, key_end, value_begin, value_end, close]
        });
        reasoning.chain(calls).any(|mark| mark.trim() == name)
    }
}

/// # Panics
/// A file that is built in is none: a test reads them all.
fn read(name: &str, text: &str) -> MarkupFile {
    toml::from_str(text).unwrap_or_else(|error| panic!("chats/{name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What templates of these models have, as far as it tells them apart.
    #[test]
    fn every_file_fits_a_model() {
        let tokenizer = Tokenizer::o200k_harmony();
        let shape = |template: &str| Markup::of(template, &tokenizer).calls.map(|calls| (calls.shape, calls.begin));
        let of = |shape, begin: &str| Some((shape, begin.to_owned()));
        let qwen3 = "{%- if tools %}<tool_call>\n{\"name\": <function-name>}</tool_call>{% endif %}</think>";
        assert_eq!(shape(qwen3), of(Shape::Object, "<tool_call>"));
        assert_eq!(Markup::of(qwen3, &tokenizer).reasoning.map(|marks| marks.end), Some("</think>".into()));
        let llama = "<|start_header_id|>{\"name\": function name, \"parameters\": dictionary}";
        assert_eq!(shape(llama), of(Shape::Object, "<|python_tag|>"));
        assert_eq!(shape("[TOOL_CALLS] ["), of(Shape::List, "[TOOL_CALLS]"));
        let magistral = "[THINK][/THINK][TOOL_CALLS]name[ARGS]";
        assert_eq!(shape(magistral), of(Shape::Named, "[TOOL_CALLS]"));
        assert_eq!(Markup::of(magistral, &tokenizer).reasoning.map(|marks| marks.begin), Some("[THINK]".into()));
        assert_eq!(shape("[gMASK]<sop><|assistant|><|observation|>"), of(Shape::Named, ""));
        assert_eq!(
            shape("<|assistant|><|observation|><tool_call>{{ name }}<arg_key>"),
            of(Shape::Pairs, "<tool_call>")
        );
        assert_eq!(shape("<tool_call>\n<function=example>\n<parameter=a>"), of(Shape::Pairs, "<tool_call>"));
        assert_eq!(shape("<|im_start|>"), None);
        assert_eq!(data::CHATS.len(), 9, "and each is looked for here");
    }
}
