//! Fields that both chat APIs share: sampling, reasoning effort, token limits.

use serde_json::{Map, Value};

use super::error::ApiError;
use super::field::Field;
use super::form::TextFormat;
use super::sampling::SamplingFields;
use super::stop_text::StopText;
use super::tools::Tools;
use chat::chat_format::Thinking;
use chat::grammar::ToolChoice;
use chat::{MessagePart, Reasoning};
use engine::scheduler::Request;

/// How an answer is to be made.
#[derive(Debug)]
pub(crate) struct Ask {
    /// As the client named it; absent, the one that is served.
    pub(crate) model: Option<String>,
    pub(crate) sampling: SamplingFields,
    /// Tokens at most, reasoning included.
    pub(crate) max_tokens: Option<usize>,
    /// How long to think; none is not at all.
    pub(crate) effort: Option<Reasoning>,
    /// Whether the client said so.
    pub(crate) names_effort: bool,
    pub(crate) tools: Tools,
    /// An answer ends with its first call: `parallel_tool_calls: false`.
    pub(crate) one_call: bool,
    /// What the text is to be.
    pub(crate) format: TextFormat,
    /// Where visible text ends.
    pub(crate) stop: StopText,
    /// Go on after the tokens that end an answer, if nothing else is asked of it: [`Self::goes_on`].
    pub(crate) ignore_eos: bool,
    /// With `Some(k)`, log-probabilities of the tokens of messages, and of the k most probable others.
    pub(crate) n_logprobs: Option<usize>,
    /// Tell it as it comes.
    pub(crate) stream: bool,
    /// Further values for the chat template.
    pub(crate) template_words: Map<String, Value>,
    /// More tokens that end an answer, and are no part of it.
    pub(crate) stop_token_ids: Vec<u32>,
    /// Only these tokens may come, if there are any.
    pub(crate) allowed_token_ids: Vec<u32>,
    /// Texts that may not come.
    pub(crate) bad_words: Vec<String>,
    /// Whose cached prefixes may be used: those of requests with the same.
    pub(crate) cache_salt: Option<String>,
    /// The model goes on with the last message, which is the assistant's.
    pub(crate) goes_on_with_last: bool,
}

impl Ask {
    /// Whether an answer is sent only at its end, which only the model can make.
    pub(crate) fn is_seldom(&self) -> bool {
        !self.stream && self.stop.is_empty()
    }

    /// Whether the answer has to be of a form: that of its text, or of calls.
    pub(crate) fn is_bound(&self) -> bool {
        self.format != TextFormat::Text || self.tools.choice != ToolChoice::None
    }

    /// Whether that takes a grammar, where answers have no headers: calls that may come and may have any arguments are
    /// the model's to write.
    pub(crate) fn needs_grammar(&self) -> bool {
        let must_call = !matches!(self.tools.choice, ToolChoice::None | ToolChoice::Auto);
        let is_strict = self.tools.choice == ToolChoice::Auto && self.tools.enforced().iter().any(|tool| tool.strict);
        self.format != TextFormat::Text || must_call || is_strict
    }

    /// Whether it goes on after the tokens that end an answer. An answer with a form ends with it: text after it
    /// would break the form.
    pub(crate) fn goes_on(&self) -> bool {
        self.ignore_eos && !self.is_bound()
    }

    /// How long to think, as chat formats take it.
    pub(crate) fn thinking(&self) -> Thinking {
        match self.effort {
            None => Thinking::No,
            Some(effort) if self.names_effort => Thinking::Effort(effort),
            Some(_) => Thinking::Usual,
        }
    }

    /// Reads what is in all requests, under the names that the APIs share.
    ///
    /// # Errors
    /// A value that may not be.
    pub(crate) fn read(body: &Field, tools: Tools, format: TextFormat) -> Result<Self, ApiError> {
        let flag = |name| body.get(name).map_or(Ok(false), |field| field.flag());
        Ok(Self {
            model: body.get("model").map(|model| model.text().map(str::to_owned)).transpose()?,
            sampling: SamplingFields::read(body)?,
            max_tokens: None,
            effort: effort(body)?,
            names_effort: effort_field(body).is_some(),
            tools,
            one_call: !body.get("parallel_tool_calls").map_or(Ok(true), |field| field.flag())?,
            format,
            stop: stop(body.get("stop"))?,
            ignore_eos: flag("ignore_eos")?,
            n_logprobs: None,
            stream: flag("stream")?,
            template_words: template_words(body)?,
            stop_token_ids: ids(body, "stop_token_ids")?,
            allowed_token_ids: ids(body, "allowed_token_ids")?,
            bad_words: texts(body, "bad_words")?,
            cache_salt: body.get("cache_salt").map(|salt| salt.text().map(str::to_owned)).transpose()?,
            goes_on_with_last: false,
        })
    }

    /// Reads how many tokens there may be from the first of these fields that is there.
    ///
    /// # Errors
    /// Less than 1.
    pub(crate) fn max_tokens(body: &Field, names: &[&str]) -> Result<Option<usize>, ApiError> {
        let field = names.iter().find_map(|name| body.get(name));
        let max_tokens = field.map(|field| field.integer(1..=i64::MAX)).transpose()?;
        Ok(max_tokens.map(|max_tokens| usize::try_from(max_tokens).unwrap_or(usize::MAX)))
    }

    /// Reads `top_logprobs`.
    ///
    /// # Errors
    /// More than can be had.
    pub(crate) fn top_logprobs(body: &Field) -> Result<Option<usize>, ApiError> {
        let most = Request::MAX_LOGPROBS as i64;
        let top = body.get("top_logprobs").map(|field| field.integer(0..=most)).transpose()?;
        Ok(top.map(|top| usize::try_from(top).unwrap_or(0)))
    }
}

/// `reasoning_effort`, `reasoning.effort`, or that of `chat_template_kwargs`: the model knows three of the seven.
fn effort(body: &Field) -> Result<Option<Reasoning>, ApiError> {
    const EFFORTS: [(&str, Option<Reasoning>); 7] = [
        ("none", None),
        ("minimal", Some(Reasoning::Low)),
        ("low", Some(Reasoning::Low)),
        ("medium", Some(Reasoning::Medium)),
        ("high", Some(Reasoning::High)),
        ("xhigh", Some(Reasoning::High)),
        ("max", Some(Reasoning::High)),
    ];
    let says_no = thinks(body).map_or(Ok(false), |thinks| thinks.flag().map(|thinks| !thinks))?;
    if says_no && effort_field(body).is_none() {
        return Ok(None);
    }
    let reasoning = body.get("reasoning");
    if let Some(reasoning) = &reasoning {
        reasoning.object()?;
        if let Some(false) = reasoning.get("enabled").map(|enabled| enabled.flag()).transpose()? {
            return Ok(None);
        }
    }
    effort_field(body).map_or(Ok(Some(Reasoning::default())), |effort| effort.one_of(&EFFORTS))
}

fn effort_field<'a>(body: &Field<'a>) -> Option<Field<'a>> {
    body.get("reasoning_effort")
        .or_else(|| body.get("reasoning")?.get("effort"))
        .or_else(|| body.get("chat_template_kwargs")?.get("reasoning_effort"))
}

/// Whether to think, as templates name it.
fn thinks<'a>(body: &Field<'a>) -> Option<Field<'a>> {
    body.get("enable_thinking").or_else(|| body.get("chat_template_kwargs")?.get("enable_thinking"))
}

/// `chat_template_kwargs`, `documents` and `enable_thinking`. Efforts have their own field.
fn template_words(body: &Field) -> Result<Map<String, Value>, ApiError> {
    let mut words = Map::new();
    if let Some(given) = body.get("chat_template_kwargs") {
        words.extend(given.object()?.value().as_object().cloned().unwrap_or_default());
        words.remove("reasoning_effort");
    }
    if let Some(documents) = body.get("documents") {
        documents.list()?;
        words.insert("documents".into(), documents.value().clone());
    }
    if let Some(thinks) = thinks(body) {
        words.insert("enable_thinking".into(), thinks.flag()?.into());
    }
    Ok(words)
}

/// A list of token ids.
fn ids(body: &Field, name: &str) -> Result<Vec<u32>, ApiError> {
    let list = body.get(name).map_or(Ok(Vec::new()), |list| list.list())?;
    list.iter().map(|id| id.integer(0..=u32::MAX.into()).map(|id| id.unsigned_abs() as u32)).collect()
}

fn texts(body: &Field, name: &str) -> Result<Vec<String>, ApiError> {
    let list = body.get(name).map_or(Ok(Vec::new()), |list| list.list())?;
    list.iter().map(|text| text.text().map(str::to_owned)).collect()
}

/// Where visible text ends: at a string, or at one of a list.
///
/// # Errors
/// It is neither, or the list is too long.
pub(crate) fn stop(field: Option<Field>) -> Result<StopText, ApiError> {
    let Some(stop) = field else { return Ok(StopText::default()) };
    let texts = match stop.value() {
        Value::String(text) => vec![text.clone()],
        _ => {
            let list = stop.list().map_err(|_| stop.wrong("a string or a list of strings"))?;
            list.iter().map(|stop| stop.text().map(str::to_owned)).collect::<Result<_, _>>()?
        }
    };
    StopText::new(texts, stop.path())
}

/// A text, or the texts of parts of these types.
///
/// # Errors
/// A part of another type: only text can be read.
pub(crate) fn content_text(content: &Field) -> Result<String, ApiError> {
    if let Value::String(text) = content.value() {
        return Ok(text.clone());
    }
    let parts = content.list().map_err(|_| content.wrong("a string or a list of parts"))?;
    let mut text = String::new();
    for part in &parts {
        let kind = part.need("type")?;
        match kind.text()? {
            "text" | "input_text" | "output_text" | "reasoning_text" | "summary_text" => {
                text += part.need("text")?.text()?;
            }
            "refusal" => text += part.need("refusal")?.text()?,
            _ => return Err(kind.unsupported(&format!("this model reads only text, and this is {}", kind.value()))),
        }
    }
    Ok(text)
}

/// A call of a function that a client gives back.
pub(crate) fn call(id: String, name: &str, arguments: &str) -> MessagePart {
    MessagePart::Call { id, name: name.to_owned(), arguments: arguments.to_owned(), is_text: false }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn value_of<T>(body: Value, read: impl Fn(&Field) -> Result<T, ApiError>) -> Result<T, String> {
        let read = read(&Field::body(&body).expect("an object"));
        read.map_err(|error| error.body()["error"]["param"].as_str().unwrap_or_default().to_owned())
    }

    #[test]
    fn efforts_are_clamped_to_those_that_the_model_knows() {
        for (body, want) in [
            (json!({}), Some(Reasoning::Medium)),
            (json!({"reasoning_effort": "minimal"}), Some(Reasoning::Low)),
            (json!({"reasoning_effort": "xhigh"}), Some(Reasoning::High)),
            (json!({"reasoning_effort": "none"}), None),
            (json!({"reasoning": {"effort": "max"}}), Some(Reasoning::High)),
            (json!({"reasoning": {"summary": "auto"}}), Some(Reasoning::Medium)),
            (json!({"reasoning": {"enabled": false}}), None),
            (json!({"chat_template_kwargs": {"reasoning_effort": "low"}}), Some(Reasoning::Low)),
            (json!({"chat_template_kwargs": {"enable_thinking": false}}), None),
            (json!({"enable_thinking": false}), None),
            (json!({"enable_thinking": true}), Some(Reasoning::Medium)),
            (json!({"enable_thinking": false, "reasoning_effort": "low"}), Some(Reasoning::Low)),
            (json!({"reasoning_effort": null, "reasoning": {"effort": "low"}}), Some(Reasoning::Low)),
        ] {
            assert_eq!(value_of(body.clone(), effort), Ok(want), "{body}");
        }
        assert_eq!(value_of(json!({"reasoning": {"effort": "lots"}}), effort), Err("reasoning.effort".into()));
    }

    #[test]
    fn content_is_a_text_or_parts_of_text() {
        let read =
            |content: Value| value_of(json!({ "content": content }), |body| content_text(&body.need("content")?));
        assert_eq!(read(json!("a")), Ok("a".into()));
        let parts = json!([
            {"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, {"type": "refusal", "refusal": "c"},
        ]);
        assert_eq!(read(parts), Ok("abc".into()));
        let image = json!([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:"}}]);
        assert_eq!(read(image), Err("content[1].type".into()));
        assert_eq!(read(json!([{"type": "text"}])), Err("content[0].text".into()));
        assert_eq!(read(json!(3)), Err("content".into()));
    }

    #[test]
    fn stops_are_one_or_a_list() {
        let told =
            |body: Value, text: &str| value_of(body, |body| stop(body.get("stop")).map(|mut stop| stop.push(text)));
        assert_eq!(told(json!({"stop": "b"}), "abc"), Ok("a".into()));
        assert_eq!(told(json!({"stop": ["c", "b"]}), "abc"), Ok("a".into()));
        assert_eq!(told(json!({}), "abc"), Ok("abc".into()));
        assert_eq!(told(json!({"stop": ["a", 1]}), ""), Err("stop[1]".into()));
        assert_eq!(told(json!({"stop": vec!["a"; 17]}), ""), Err("stop".into()));
    }

    #[test]
    fn numbers_of_tokens_are_at_least_one() {
        let read = |body: Value| value_of(body, |body| Ask::max_tokens(body, &["max_completion_tokens", "max_tokens"]));
        assert_eq!(read(json!({"max_completion_tokens": 5, "max_tokens": 7})), Ok(Some(5)));
        assert_eq!(read(json!({"max_tokens": 32000})), Ok(Some(32000)));
        assert_eq!(read(json!({})), Ok(None));
        assert_eq!(read(json!({"max_tokens": 0})), Err("max_tokens".into()));
    }
}
