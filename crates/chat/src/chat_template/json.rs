//! JSON as Python's `json.dumps` writes it: a blank behind commas and colons.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// The text of a value; with an indent, on a line for each element.
pub(super) fn python_json(value: &impl Serialize, indent: Option<usize>) -> serde_json::Result<String> {
    let mut text = Vec::new();
    match indent {
        Some(n) => {
            let blanks = " ".repeat(n.min(16));
            value.serialize(&mut Serializer::with_formatter(&mut text, PrettyFormatter::with_indent(blanks.as_bytes())))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut text, OnALine)),
    }?;
    Ok(String::from_utf8(text).expect("JSON is text"))
}

struct OnALine;

impl Formatter for OnALine {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        if is_first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        if is_first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// As `json.dumps(value, ensure_ascii=False)` of Python 3 writes them.
    #[test]
    fn it_is_spelled_as_python_does() {
        let value = json!({"b": [1, 2.5, null], "a": {"é": "<\"&>"}, "e": {}, "l": []});
        let text = r#"{"b": [1, 2.5, null], "a": {"é": "<\"&>"}, "e": {}, "l": []}"#;
        assert_eq!(python_json(&value, None).expect("JSON"), text);
        assert_eq!(python_json(&json!({"a": [1]}), Some(2)).expect("JSON"), "{\n  \"a\": [\n    1\n  ]\n}");
    }
}
