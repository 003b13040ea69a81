//! JSON as Python's `json.dumps` writes it: with a blank after commas and colons, unless the template sets other
//! separators.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// The options of `json.dumps`.
#[derive(Clone, Debug, Default)]
pub(super) struct Spelling {
    /// What stands before each thing inside, once for every level, on a line of its own.
    pub(crate) indent: Option<String>,
    /// What follows elements and after keys.
    pub(crate) separators: Option<Vec<String>>,
    /// Characters beyond ASCII are written as `\u00e9`.
    pub(crate) is_ascii: bool,
    pub(crate) sorts_keys: bool,
}

/// The text of a value.
pub(super) fn python_json(value: &impl Serialize, spelling: &Spelling) -> serde_json::Result<String> {
    let mut text = Vec::new();
    let comma = if spelling.indent.is_some() { "," } else { ", " };
    let (comma, colon) = match spelling.separators.as_deref() {
        Some([comma, colon]) => (comma.as_str(), colon.as_str()),
        _ => (comma, ": "),
    };
    let style = Style {
        comma,
        colon,
        indent: spelling.indent.as_deref(),
        is_ascii: spelling.is_ascii,
        level: 0,
        has_value: false,
    };
    let mut serializer = Serializer::with_formatter(&mut text, style);
    if spelling.sorts_keys {
        let mut value = serde_json::to_value(value)?;
        value.sort_all_objects();
        value.serialize(&mut serializer)?;
    } else {
        value.serialize(&mut serializer)?;
    }
    Ok(String::from_utf8(text).expect("JSON is text"))
}

/// A number as Python's `repr` writes it: the shortest digits that are that number, `1e+20` and `1.5e-07` for those
/// that would be long.
pub(super) fn python_float(number: f64) -> String {
    let written = format!("{number:?}");
    match written.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
            format!("{digits}e{sign}{exponent:0>2}")
        }
        None => written.to_lowercase(), // NaN
    }
}

#[derive(Clone)]
struct Style<'a> {
    comma: &'a str,
    colon: &'a str,
    indent: Option<&'a str>,
    is_ascii: bool,
    level: usize,
    /// Whether the list or object that is written has something in it.
    has_value: bool,
}

impl Style<'_> {
    fn line<W: ?Sized + Write>(&self, writer: &mut W) -> io::Result<()> {
        let Some(indent) = self.indent else { return Ok(()) };
        writer.write_all(b"\n")?;
        (0..self.level).try_for_each(|_| writer.write_all(indent.as_bytes()))
    }

    fn begin<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.level += 1;
        self.has_value = false;
        writer.write_all(bracket)
    }

    fn end<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.level -= 1;
        if self.has_value {
            self.line(writer)?;
        }
        self.has_value = true;
        writer.write_all(bracket)
    }

    fn element<W: ?Sized + Write>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        if !is_first {
            writer.write_all(self.comma.as_bytes())?;
        }
        self.has_value = true;
        self.line(writer)
    }
}

impl Formatter for Style<'_> {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        self.element(writer, is_first)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        self.element(writer, is_first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.colon.as_bytes())
    }

    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, number: f64) -> io::Result<()> {
        writer.write_all(python_float(number).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        if !self.is_ascii {
            return writer.write_all(fragment.as_bytes());
        }
        for c in fragment.chars() {
            if matches!(c, ' '..='~') {
                writer.write_all(&[c as u8])?;
            } else {
                let mut units = [0; 2];
                c.encode_utf16(&mut units).iter().try_for_each(|unit| write!(writer, "\\u{unit:04x}"))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn dumped(value: &Value, spelling: &Spelling) -> String {
        python_json(value, spelling).expect("JSON")
    }

    /// As `json.dumps(value, ensure_ascii=False, …)` of Python 3 writes them.
    #[test]
    fn it_is_spelled_as_python_does() {
        let value = json!({"b": [1, 2.5, null], "a": {"é": "<\"&>😀"}, "e": {}, "l": []});
        let plain = Spelling::default();
        let text = r#"{"b": [1, 2.5, null], "a": {"é": "<\"&>😀"}, "e": {}, "l": []}"#;
        assert_eq!(dumped(&value, &plain), text);
        let indented = Spelling { indent: Some("  ".into()), ..plain.clone() };
        assert_eq!(
            dumped(&json!({"a": [1, {}], "b": 2}), &indented),
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": 2\n}"
        );
        let close = Spelling { separators: Some(vec![",".into(), ":".into()]), sorts_keys: true, ..plain.clone() };
        assert_eq!(dumped(&value, &close), r#"{"a":{"é":"<\"&>😀"},"b":[1,2.5,null],"e":{},"l":[]}"#);
        let ascii = Spelling { is_ascii: true, ..plain };
        assert_eq!(dumped(&json!("é😀\n\u{7f}"), &ascii), r#""\u00e9\ud83d\ude00\n\u007f""#);
        let numbers = json!([1e22, 1e-7, 0.1, -0.0, 1e16, 1e15, 0.0001, 1.5e300, 2.0]);
        let text = "[1e+22, 1e-07, 0.1, -0.0, 1e+16, 1000000000000000.0, 0.0001, 1.5e+300, 2.0]";
        assert_eq!(dumped(&numbers, &Spelling::default()), text);
    }
}
