//! The lines of a file of requests: `{"custom_id", "method": "POST", "url", "body"}` each.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::batch::Problem;
use crate::body::MAX_BYTES;
use crate::error::ApiError;
use crate::field::Field;
use system::foreign_text;
use system::os::FileExt;

/// Most problems of a file that are reported.
const MAX_PROBLEMS: usize = 100;

/// Where the requests of a file are.
#[derive(Debug)]
pub(super) struct Lines {
    file: File,
    /// Where each begins, and how long it is.
    spans: Vec<(u64, u32)>,
    /// The model that the first asks for.
    pub(super) model: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Line {
    pub(super) custom_id: String,
    pub(super) body: Box<RawValue>,
}

/// Why a file is of no use.
#[derive(Debug)]
pub(super) enum Unusable {
    Io(io::Error),
    Problems(Vec<Problem>),
}

impl From<io::Error> for Unusable {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What lines have to be like.
pub(super) struct Expected<'a> {
    pub(super) endpoint: &'a str,
    pub(super) max_lines: usize,
    /// Whether a model is served.
    pub(super) check_model: &'a dyn Fn(Option<&str>) -> Result<String, ApiError>,
}

impl Lines {
    /// Looks at every line of a file.
    pub(super) fn read(path: &Path, expected: &Expected) -> Result<Self, Unusable> {
        let file = File::open(path)?;
        let mut reader = BufReader::with_capacity(1 << 16, &file);
        let (mut spans, mut problems, mut model) = (Vec::new(), Vec::new(), None);
        let mut first_lines: HashMap<String, usize> = HashMap::new();
        let (mut offset, mut number) = (0_u64, 0_usize);
        let mut line = Vec::new();
        while problems.len() < MAX_PROBLEMS {
            line.clear();
            let n_read = reader.read_until(b'\n', &mut line)?;
            if n_read == 0 {
                break;
            }
            number += 1;
            let (begin, whole) = (offset, line.as_slice());
            offset += n_read as u64;
            if number == 1
                && let Some(encoding) = foreign_text::other_encoding(whole)
            {
                problems.push(problem("invalid_encoding", &format!("the file is {encoding}, expected UTF-8"), None));
                break;
            }
            let text = if number == 1 { foreign_text::without_mark(whole) } else { whole };
            let n_mark = (whole.len() - text.len()) as u64;
            let text = text.trim_ascii_end();
            if text.is_empty() {
                continue;
            }
            match look(text, expected) {
                Ok((custom_id, asked)) => {
                    model.get_or_insert(asked);
                    if let Some(first) = first_lines.insert(custom_id.clone(), number) {
                        let message = format!("line {first} has the `custom_id` `{custom_id}` too");
                        let of_id = Some("custom_id".to_owned());
                        problems
                            .push(Problem { param: of_id, ..problem("duplicate_custom_id", &message, Some(number)) });
                    }
                }
                Err(error) => problems.push(of_line(&error, number)),
            }
            spans.push((begin + n_mark, text.len() as u32)); // lines are shorter than bodies may be, or wrong
            if spans.len() > expected.max_lines {
                let message = format!("the file has more than {} requests", expected.max_lines);
                problems.push(problem("too_many_requests", &message, Some(number)));
                break;
            }
        }
        drop(reader);
        if spans.is_empty() && problems.is_empty() {
            problems.push(problem("empty_file", "the file has no requests", None));
        }
        if problems.is_empty() { Ok(Self { file, spans, model }) } else { Err(Unusable::Problems(problems)) }
    }

    /// Number of requests.
    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }

    /// One of them.
    ///
    /// # Errors
    /// It cannot be read again.
    pub(super) fn get(&self, i: usize) -> io::Result<Line> {
        let (offset, len_bytes) = self.spans[i];
        let mut text = vec![0; len_bytes as usize];
        self.file.read_exact_at(&mut text, offset)?;
        foreign_text::mend_json(&mut text);
        serde_json::from_slice(&text).map_err(io::Error::other)
    }
}

fn problem(code: &str, message: &str, line: Option<usize>) -> Problem {
    Problem { code: code.to_owned(), message: message.to_owned(), param: None, line }
}

fn of_line(error: &ApiError, line: usize) -> Problem {
    let code = error.code.unwrap_or(error.kind).to_owned();
    Problem { code, message: error.message.clone(), param: error.param.clone(), line: Some(line) }
}

/// The `custom_id` of a line and the model that it asks for.
fn look(text: &[u8], expected: &Expected) -> Result<(String, String), ApiError> {
    if text.len() > MAX_BYTES {
        return Err(ApiError::body_too_large(MAX_BYTES));
    }
    let mut text = text.to_vec();
    foreign_text::mend_json(&mut text);
    let wrong = |error: serde_json::Error| {
        let words = error.to_string();
        let words = words.split(" at line ").next().unwrap_or_default().to_owned();
        ApiError::bad_request("invalid_json_line", format!("the line is not JSON: {words} (column {})", error.column()))
    };
    let value: Value = serde_json::from_slice(&text).map_err(wrong)?;
    let line = Field::body(&value)?;
    let custom_id = line.need("custom_id")?;
    let id = custom_id.text()?;
    if id.is_empty() {
        return Err(custom_id.wrong("a string that is not empty"));
    }
    let method = line.need("method")?;
    if method.text()? != "POST" {
        return Err(method.error("invalid_method", format!("`method` should be `POST`, but is {}", method.value())));
    }
    let url = line.need("url")?;
    if url.text()? != expected.endpoint {
        let message = format!("`url` should be the batch's `{}`, but is {}", expected.endpoint, url.value());
        return Err(url.error("invalid_url", message));
    }
    let body = line.need("body")?;
    body.object()?;
    if let Some(stream) = body.get("stream")
        && stream.flag()?
    {
        return Err(stream.unsupported("answers of a batch are not streamed"));
    }
    // As it is read when its turn comes: that takes no key twice.
    let _: Line = serde_json::from_slice(&text).map_err(wrong)?;
    let model = body.get("model").map(|model| model.text()).transpose()?;
    let model = (expected.check_model)(model).map_err(|error| error.with_param("body.model"))?;
    Ok((id.to_owned(), model))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Result<Lines, Unusable> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("in.jsonl");
        std::fs::write(&path, text).expect("written");
        let check_model = |asked: Option<&str>| match asked {
            Some("m") | None => Ok("m".to_owned()),
            Some(other) => Err(ApiError::model_not_found(other, &["m".to_owned()])),
        };
        Lines::read(&path, &Expected { endpoint: "/v1/completions", max_lines: 3, check_model: &check_model })
    }

    fn problems(text: &str) -> Vec<(String, Option<String>, Option<usize>)> {
        let Err(Unusable::Problems(problems)) = read(text.as_bytes()) else { panic!("`{text}` is wrong") };
        problems.into_iter().map(|of| (of.code, of.param, of.line)).collect()
    }

    fn line(id: &str, more: &str) -> String {
        format!(
            r#"{{"custom_id": "{id}", "method": "POST", "url": "/v1/completions", "body": {{"prompt": "a"{more}}}}}"#
        )
    }

    #[test]
    fn lines_are_found_whatever_ends_them_and_bodies_come_as_they_are() {
        let text = format!("\u{feff}{}\r\n\n  \n{}\n{}", line("a", ""), line("b", ", \"n\": 1.50"), line("c", ""));
        let lines = read(text.as_bytes()).expect("right");
        assert_eq!((lines.len(), lines.model.as_deref()), (3, Some("m")));
        let ids: Vec<String> = (0..3).map(|i| lines.get(i).expect("read").custom_id).collect();
        assert_eq!(ids, ["a", "b", "c"]);
        assert_eq!(lines.get(1).expect("read").body.get(), "{\"prompt\": \"a\", \"n\": 1.50}");
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let told = |text: String, code: &str, param: &str, n: usize| {
            let param = (!param.is_empty()).then(|| param.to_owned());
            assert_eq!(problems(&text), [(code.to_owned(), param, Some(n))], "{text}");
        };
        let good = line("a", "");
        told(format!("{good}\n{{\"custom_id\": "), "invalid_json_line", "", 2);
        let twice = good.replace("{\"custom_id\"", "{\"custom_id\": \"a\", \"custom_id\"");
        told(format!("{}\n{twice}", line("b", "")), "invalid_json_line", "", 2);
        told(format!("{good}\n\n{good}"), "duplicate_custom_id", "custom_id", 3);
        told(line("a", ", \"stream\": true"), "unsupported_value", "body.stream", 1);
        told(line("a", ", \"model\": \"other\""), "model_not_found", "body.model", 1);
        told(line("", ""), "invalid_value", "custom_id", 1);
        told(good.replace("POST", "GET"), "invalid_method", "method", 1);
        told(good.replace("/v1/completions", "/v1/responses"), "invalid_url", "url", 1);
        told(good.replace("\"custom_id\": \"a\", ", ""), "missing_required_parameter", "custom_id", 1);
        told(good.replace("{\"prompt\": \"a\"}", "3"), "invalid_value", "body", 1);
        let four: Vec<String> = (0..4).map(|i| line(&i.to_string(), "")).collect();
        told(four.join("\n"), "too_many_requests", "", 4);
        assert_eq!(problems("\n\n"), [("empty_file".to_owned(), None, None)]);
        let Err(Unusable::Problems(problems)) = read(b"\xff\xfe{\0") else { panic!("it is UTF-16") };
        assert_eq!(problems[0].code, "invalid_encoding");
    }
}
