//! How a model marks reasoning and tool calls: the files of `chats/`, and which of them fits.

use std::path::{Path, PathBuf};

use hint::Hint;
use serde::Deserialize;

use model::tokenizer::Tokenizer;

/// How a model's answers are marked. Without either mark an answer is text, all of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Markup {
    pub(crate) reasoning: Option<ReasoningMarks>,
    pub(crate) calls: Option<CallMarks>,
}

/// The markers of reasoning.
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
    /// Text for people: checked to be there, and unused.
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

/// Errors of a user's file.
#[derive(Debug, thiserror::Error)]
pub enum MarkupError {
    #[error("could not read `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("`{}` does not say how a model marks its answers", path.display())]
    Toml {
        path: PathBuf,
        #[source]
        source: toml::de::Error,
    },
}

impl Hint for MarkupError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Read { .. } => None,
            Self::Toml { .. } => Some("`chats/README.md` in the source says what such a file has".into()),
        }
    }
}

/// The longest file that is read.
const MAX_FILE_BYTES: u64 = 1 << 20;

impl Markup {
    /// That of a model with this template and vocabulary, by the files that are built in.
    #[cfg(test)]
    pub(crate) fn of(template: &str, tokenizer: &Tokenizer) -> Self {
        Self::by(&[], template, tokenizer).unwrap_or_else(|error| panic!("no file is read: {error}"))
    }

    /// The same by files of a user, too, which go before those built in, and in the place of those of their names.
    ///
    /// # Errors
    /// One of them cannot be read, or is none.
    pub(crate) fn by(files: &[PathBuf], template: &str, tokenizer: &Tokenizer) -> Result<Self, MarkupError> {
        let own = files.iter().map(|path| read_file(path));
        let is_own = |name: &str| files.iter().any(|path| path.file_name().is_some_and(|own| own == name));
        let built_in = data::CHATS.iter().filter(|(name, _)| !is_own(name));
        let mut markup = Self::default();
        for file in own.chain(built_in.map(|(name, text)| Ok(read(name, text)))) {
            let file = file?;
            if file.when.iter().any(|when| when.fits(template, tokenizer)) {
                markup.reasoning = markup.reasoning.or(file.reasoning);
                markup.calls = markup.calls.or(file.calls);
            }
        }
        Ok(markup)
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

fn read_file(path: &Path) -> Result<MarkupFile, MarkupError> {
    let read = |source| MarkupError::Read { path: path.to_owned(), source };
    let bytes = mapped_file::read(path, MAX_FILE_BYTES).map_err(read)?;
    toml::from_str(&String::from_utf8_lossy(&bytes))
        .map_err(|source| MarkupError::Toml { path: path.to_owned(), source })
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

    #[test]
    fn files_of_a_user_go_before_those_built_in() {
        let (folder, tokenizer) = (tempfile::tempdir().unwrap(), Tokenizer::o200k_harmony());
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let own =
            "about = \"x\"\nwhen = [{ template = [\"<tool_call>\"] }]\n[reasoning]\nbegin = \"<a>\"\nend = \"</a>\"";
        let files = [write("mine.toml", own)];
        let template = "<tool_call></think>";
        let markup = Markup::by(&files, template, &tokenizer).unwrap();
        assert_eq!(markup.reasoning.map(|marks| marks.begin), Some("<a>".into()));
        assert_eq!(markup.calls.map(|marks| marks.begin), Some("<tool_call>".into()), "by a file that is built in");
        let nothing = "about = \"x\"\nwhen = []";
        let markup = Markup::by(&[write("hermes.toml", nothing)], template, &tokenizer).unwrap();
        assert!(markup.calls.is_none(), "in the place of the one built in");
        let error = Markup::by(&[write("bad.toml", "when = 1")], template, &tokenizer).unwrap_err();
        assert!(error.to_string().contains("bad.toml") && error.hint().is_some(), "{error}");
        assert!(Markup::by(&[folder.path().join("none.toml")], template, &tokenizer).is_err());
    }
}
