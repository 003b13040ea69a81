//! Writes the answers in the order of their prompts.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::BatchError;
use super::plan::Batch;
use super::records::{Outcome, Record, Records};
use super::request_line::{self, LineError, Prompt, RequestLine};
use chat::BETWEEN_MESSAGES;
use chat::chat_format::{AnswerEvent, AnswerParser, Purpose};

/// How answers are written down, a line each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OutFormat {
    /// Token ids separated by blanks, including the stop token
    Ids,
    /// Text, without the stop token; line ends in it are `\n` and `\r`, backslashes `\\`
    Text,
    /// A JSON object: index, id, text, reasoning, ids, finish_reason, usage
    Jsonl,
    /// OpenAI's batch files: custom_id, response, error
    Batch,
}

impl OutFormat {
    /// What a file of them holds, for messages.
    pub fn contents(self) -> &'static str {
        if self == Self::Ids { "ids" } else { "answers" }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct AnswerText {
    pub(crate) text: String,
    /// To itself, in an answer to a conversation.
    pub(crate) reasoning: String,
    /// Tokens of that, with the header and the end of each message.
    pub(crate) n_reasoning_tokens: usize,
}

impl AnswerText {
    /// The fields of an answer as chat completions have them: messages of a kind are joined, preambles belong to the
    /// content, and calls are left out.
    fn of_chat(mut parser: Box<dyn AnswerParser>, ids: impl Iterator<Item = u32>) -> Self {
        let (mut said, mut is_reasoning, mut is_fresh) = (Self::default(), None, false);
        let mut take = |event: AnswerEvent| match event {
            AnswerEvent::Started { purpose, tool } => {
                is_fresh = true;
                is_reasoning = tool.is_none().then_some(purpose == Purpose::Reasoning);
            }
            AnswerEvent::Text(text) if !text.is_empty() => {
                let into = match is_reasoning {
                    Some(true) => &mut said.reasoning,
                    Some(false) => &mut said.text,
                    None => return,
                };
                if std::mem::take(&mut is_fresh) && !into.is_empty() {
                    *into += BETWEEN_MESSAGES;
                }
                *into += &text;
            }
            AnswerEvent::Text(_) | AnswerEvent::Ended { .. } => {}
        };
        for id in ids {
            parser.push(id).into_iter().for_each(&mut take);
        }
        parser.finish().into_iter().for_each(&mut take);
        said.n_reasoning_tokens = parser.n_reasoning_tokens();
        said
    }
}

/// The answers of a batch, written in the order of the prompts.
pub struct Answers<'a> {
    pub batch: &'a Batch,
    /// Their answers, each in one of these.
    pub records: &'a [Records],
    /// Format of the answers.
    pub format: OutFormat,
    /// What to call the model where a line does not.
    pub model: &'a str,
}

/// Why answers could not be written.
#[derive(Debug, thiserror::Error)]
pub enum AnswersError {
    /// Something that they are made of cannot be had.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The model gave an id that the tokenizer does not have.
    #[error(transparent)]
    Tokens(#[from] LineError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<AnswersError> for io::Error {
    fn from(error: AnswersError) -> Self {
        match error {
            AnswersError::Io(error) => error,
            other => Self::other(other),
        }
    }
}

impl Answers<'_> {
    /// Writes all that are there.
    ///
    /// # Errors
    /// [`AnswersError`].
    pub fn write(&self, out: &mut dyn Write) -> Result<(), AnswersError> {
        for i in 0..self.batch.source.len() {
            let Some(records) = self.records.iter().find(|records| records.digest(i).is_some()) else { continue };
            let Some(record) = records.read(i).map_err(BatchError::Records)? else { continue };
            let line = match self.format {
                OutFormat::Ids => ids_line(&record.outcome),
                OutFormat::Text => escaped(&self.text(i, &record.outcome)?),
                OutFormat::Jsonl => self.object(i, &record)?.to_string(),
                OutFormat::Batch => self.batch_object(i, &record, records.header().started)?.to_string(),
            };
            out.write_all(line.as_bytes())?;
            out.write_all(b"\n")?;
        }
        Ok(())
    }

    fn text(&self, i: usize, outcome: &Outcome) -> Result<String, AnswersError> {
        match outcome {
            Outcome::Answered { ids, .. } => Ok(self.batch.said(&self.asked(i)?, ids)?.text),
            Outcome::Refused { .. } => Ok(String::new()),
        }
    }

    fn asked(&self, i: usize) -> Result<RequestLine, AnswersError> {
        let line = self.batch.source.line(i).map_err(BatchError::Source)?;
        Ok(RequestLine::parse(self.batch.source.format(), line)?)
    }

    /// The name of a line that need not be right.
    fn id(&self, i: usize) -> Result<Option<Value>, AnswersError> {
        Ok(request_line::id_of(&self.batch.source.line(i).map_err(BatchError::Source)?))
    }

    fn object(&self, i: usize, record: &Record) -> Result<Value, AnswersError> {
        let mut object = Map::new();
        object.insert("index".into(), i.into());
        match &record.outcome {
            Outcome::Refused { message, param, code } => {
                object.extend(self.id(i)?.map(|id| ("id".to_owned(), id)));
                object.insert("error".into(), json!({ "message": message, "param": param, "code": code }));
            }
            Outcome::Answered { ids, finish_reason, .. } => {
                let asked = self.asked(i)?;
                let said = self.batch.said(&asked, ids)?;
                let usage = usage(&record.outcome, &asked, &said);
                object.extend(asked.id.clone().map(|id| ("id".to_owned(), id)));
                object.insert("text".into(), said.text.into());
                if matches!(asked.prompt, Prompt::Messages(_)) {
                    object.insert("reasoning".into(), said.reasoning.into());
                }
                object.insert("ids".into(), ids.as_slice().into());
                object.insert("finish_reason".into(), finish_reason.as_str().into());
                object.insert("usage".into(), usage);
            }
        }
        Ok(object.into())
    }

    fn batch_object(&self, i: usize, record: &Record, created: u64) -> Result<Value, AnswersError> {
        let digest = format!("{}{i:08x}", record.digest);
        let (id, status_code, body) = match &record.outcome {
            Outcome::Refused { message, param, code } => {
                let error =
                    json!({ "message": message, "type": "invalid_request_error", "param": param, "code": code });
                (self.id(i)?, 400, json!({ "error": error }))
            }
            Outcome::Answered { ids, finish_reason, .. } => {
                let asked = self.asked(i)?;
                let said = self.batch.said(&asked, ids)?;
                let usage = usage(&record.outcome, &asked, &said);
                let is_chat = matches!(asked.prompt, Prompt::Messages(_));
                let (prefix, object) =
                    if is_chat { ("chatcmpl", "chat.completion") } else { ("cmpl", "text_completion") };
                let mut choice = Map::new();
                choice.insert("index".into(), 0.into());
                if is_chat {
                    choice.insert("message".into(), message(said));
                } else {
                    choice.insert("text".into(), said.text.into());
                }
                choice.insert("logprobs".into(), Value::Null);
                choice.insert("finish_reason".into(), finish_reason.as_str().into());
                let body = json!({
                    "id": format!("{prefix}-{digest}"),
                    "object": object,
                    "created": created,
                    "model": asked.model.as_deref().unwrap_or(self.model),
                    "choices": [choice],
                    "usage": usage,
                });
                (asked.id, 200, body)
            }
        };
        let custom_id = match id {
            Some(Value::String(id)) => id.into(),
            Some(other) => other.to_string().into(),
            // A position could be another line's name.
            None => Value::Null,
        };
        Ok(json!({
            "id": format!("batch_req_{digest}"),
            "custom_id": custom_id,
            "response": { "status_code": status_code, "request_id": format!("req_{digest}"), "body": body },
            "error": null,
        }))
    }
}

fn message(said: AnswerText) -> Value {
    let mut message = json!({ "role": "assistant", "content": said.text, "refusal": null, "annotations": [] });
    if !said.reasoning.is_empty() {
        message["reasoning"] = said.reasoning.clone().into();
        message["reasoning_content"] = said.reasoning.into();
    }
    message
}

fn usage(outcome: &Outcome, asked: &RequestLine, said: &AnswerText) -> Value {
    let Outcome::Answered { prompt_tokens, cached_tokens, ids, .. } = outcome else { return Value::Null };
    let mut usage = json!({
        "prompt_tokens": prompt_tokens,
        "completion_tokens": ids.len(),
        "total_tokens": prompt_tokens + ids.len(),
        "prompt_tokens_details": { "cached_tokens": cached_tokens },
    });
    if matches!(asked.prompt, Prompt::Messages(_)) {
        usage["completion_tokens_details"] = json!({ "reasoning_tokens": said.n_reasoning_tokens });
    }
    usage
}

fn ids_line(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Answered { ids, .. } => ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "),
        Outcome::Refused { .. } => String::new(),
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r")
}

impl Batch {
    /// What the answer to a line says.
    ///
    /// # Errors
    /// The tokenizer has no such id.
    pub(crate) fn said(&self, asked: &RequestLine, ids: &[u32]) -> Result<AnswerText, LineError> {
        let stop = self.stop_ids(asked);
        if !matches!(asked.prompt, Prompt::Messages(_)) {
            let ids = ids.split_last().filter(|(last, _)| stop.contains(last)).map_or(ids, |(_, before)| before);
            let bytes = self.prompter.tokenizer.decode_all(ids)?;
            return Ok(AnswerText { text: String::from_utf8_lossy(&bytes).into_owned(), ..AnswerText::default() });
        }
        let chat = self.prompter.chat()?;
        // Ids that only stop are no part of the answer.
        let ids = ids.iter().filter(|id| !stop.contains(id) || chat.stop_ids().contains(id));
        Ok(AnswerText::of_chat(chat.answer(self.prompter.begun(asked)?, false), ids.copied()))
    }

    pub(super) fn line_error(&self, i: usize, source: LineError) -> BatchError {
        BatchError::Line { place: super::Place(self.source.place(i)), source: Box::new(source) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chat::chat_format::specials::Specials;
    use chat::chat_format::{Begun, Besides, Has, Prompts, choose};
    use model::tokenizer::Tokenizer;

    #[test]
    fn an_answer_says_what_chat_completions_tell_of_it() {
        let tokenizer = Tokenizer::o200k_harmony();
        let (specials, program) = (Specials::of_names(&tokenizer), std::path::Path::new(""));
        let has =
            Has { tokenizer: &tokenizer, specials: &specials, template: None, program, besides: Besides::default() };
        let chat = choose(None, Prompts::Format, &has).expect("it has the special tokens");
        let said = |text: &str| {
            let ids = tokenizer.encode_with_specials(text.as_bytes()).expect("UTF-8");
            let AnswerText { text, reasoning, .. } =
                AnswerText::of_chat(chat.answer(Begun::default(), false), ids.into_iter());
            (reasoning, text)
        };
        let message =
            |channel: &str, text: &str| format!("<|channel|>{channel}<|message|>{text}<|end|><|start|>assistant");
        let two = |reasoning: &str, text: &str| (reasoning.to_owned(), text.to_owned());
        let thoughts = message("analysis", "Hm.") + &message("analysis", "") + &message("analysis", "Aha.");
        assert_eq!(said(&(thoughts.clone() + "<|channel|>final<|message|>Yes.<|return|>")), two("Hm.\n\nAha.", "Yes."));
        let preamble = thoughts.clone() + &message("commentary", "Look:");
        assert_eq!(
            said(&(preamble.clone() + "<|channel|>final<|message|>Yes.<|return|>No.")),
            two("Hm.\n\nAha.", "Look:\n\nYes.")
        );
        for channel in ["commentary", "analysis"] {
            let call = format!("<|channel|>{channel} to=functions.f json<|message|>{{}}<|call|>");
            assert_eq!(said(&(preamble.clone() + &call)), two("Hm.\n\nAha.", "Look:"), "{channel}");
        }
        assert_eq!(said("Yes.<|return|>"), two("", "Yes."));
    }

    #[test]
    fn a_text_is_one_line_from_which_it_can_be_had_again() {
        assert_eq!(escaped("a\nb\r\\n é"), "a\\nb\\r\\\\n é");
    }

    /// Returns fixed events.
    #[derive(Debug)]
    struct Scripted(Vec<AnswerEvent>);

    impl AnswerParser for Scripted {
        fn push(&mut self, _id: u32) -> Vec<AnswerEvent> {
            std::mem::take(&mut self.0)
        }
        fn finish(&mut self) -> Vec<AnswerEvent> {
            Vec::new()
        }
        fn is_over(&self) -> bool {
            self.0.is_empty()
        }
        fn n_reasoning_tokens(&self) -> usize {
            7
        }
        fn repairs(&self) -> Vec<(&'static str, usize)> {
            Vec::new()
        }
        fn messages(&self) -> Result<Vec<chat::AssistantMessage>, chat::chat_format::ChatFormatError> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn a_message_of_no_words_is_kept_apart_from_none() {
        let message =
            |purpose, words: &str| [AnswerEvent::Started { purpose, tool: None }, AnswerEvent::Text(words.into())];
        let words = ["Hm.", "", "Aha.", ""].map(|words| message(Purpose::Reasoning, words));
        let events = words.into_iter().chain([message(Purpose::Answer, "Yes.")]).flatten().collect();
        let said = AnswerText::of_chat(Box::new(Scripted(events)), [1].into_iter());
        let (text, reasoning) = ("Yes.".to_owned(), "Hm.\n\nAha.".to_owned());
        assert_eq!(said, AnswerText { text, reasoning, n_reasoning_tokens: 7 });
    }
}
