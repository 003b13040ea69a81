//! JSON that arrives in pieces: how much of it can begin an object, and where the object ends.

/// An object, as far as it was read: what `serde_json` takes, byte for byte, but of any depth.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonPrefix {
    /// Whether each object or list that is open is an object.
    open: Vec<bool>,
    place: Place,
}

/// What a text was found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PrefixEnd {
    /// The beginning of an object.
    Open,
    Whole,
    /// The next character belongs to no object.
    Wrong,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Before,
    /// Behind `{`, or where no `}` may come.
    Key {
        may_end: bool,
    },
    Colon,
    /// Behind `[`, or where no `]` may come.
    Value {
        may_end: bool,
    },
    Text {
        is_key: bool,
        escape: Escape,
    },
    Number(Number),
    /// What is left of `true`, `false` or `null`.
    Word(&'static [u8]),
    /// Behind a value.
    Behind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    Begun,
    /// So many hexadecimal digits are missing.
    Hex(u8),
}

/// What of a number came last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    E,
    Sign,
    Exponent,
}

impl Number {
    fn next(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::Minus, b'0') => Self::Zero,
            (Self::Minus, b'1'..=b'9') | (Self::Whole, b'0'..=b'9') => Self::Whole,
            (Self::Zero | Self::Whole, b'.') => Self::Point,
            (Self::Point | Self::Fraction, b'0'..=b'9') => Self::Fraction,
            (Self::Zero | Self::Whole | Self::Fraction, b'e' | b'E') => Self::E,
            (Self::E, b'+' | b'-') => Self::Sign,
            (Self::E | Self::Sign | Self::Exponent, b'0'..=b'9') => Self::Exponent,
            _ => return None,
        })
    }

    fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Whole | Self::Fraction | Self::Exponent)
    }
}

impl JsonPrefix {
    /// Reads on: how many bytes of a text are of the object, and what is after them.
    pub(crate) fn read(&mut self, text: &str) -> (usize, PrefixEnd) {
        for (at, byte) in text.bytes().enumerate() {
            match self.next(byte) {
                None => return (at, PrefixEnd::Wrong),
                Some(place) => self.place = place,
            }
            if self.open.is_empty() {
                return (at + 1, PrefixEnd::Whole);
            }
        }
        (text.len(), PrefixEnd::Open)
    }

    /// Where a byte leads; none if it may not come.
    fn next(&mut self, byte: u8) -> Option<Place> {
        let is_blank = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        Some(match self.place {
            Place::Text { is_key, escape } => text(is_key, escape, byte)?,
            Place::Number(number) => match number.next(byte) {
                Some(number) => Place::Number(number),
                None if number.may_end() => {
                    self.place = Place::Behind;
                    return self.next(byte);
                }
                None => return None,
            },
            Place::Word(rest) => match rest.split_first()? {
                (first, []) if *first == byte => Place::Behind,
                (first, rest) if *first == byte => Place::Word(rest),
                _ => return None,
            },
            place if is_blank && place != Place::Before => place,
            Place::Before if byte == b'{' => self.opened(true),
            Place::Key { .. } if byte == b'"' => Place::Text { is_key: true, escape: Escape::None },
            Place::Key { may_end: true } if byte == b'}' => self.closed(true)?,
            Place::Colon if byte == b':' => Place::Value { may_end: false },
            Place::Value { may_end: true } if byte == b']' => self.closed(false)?,
            Place::Value { .. } => match byte {
                b'"' => Place::Text { is_key: false, escape: Escape::None },
                b'{' => self.opened(true),
                b'[' => self.opened(false),
                b'-' => Place::Number(Number::Minus),
                b'0' => Place::Number(Number::Zero),
                b'1'..=b'9' => Place::Number(Number::Whole),
                b't' => Place::Word(b"rue"),
                b'f' => Place::Word(b"alse"),
                b'n' => Place::Word(b"ull"),
                _ => return None,
            },
            Place::Behind => match (byte, self.open.last()?) {
                (b',', true) => Place::Key { may_end: false },
                (b',', false) => Place::Value { may_end: false },
                (b'}', _) => self.closed(true)?,
                (b']', _) => self.closed(false)?,
                _ => return None,
            },
            Place::Before | Place::Key { .. } | Place::Colon => return None,
        })
    }

    fn opened(&mut self, is_object: bool) -> Place {
        self.open.push(is_object);
        if is_object { Place::Key { may_end: true } } else { Place::Value { may_end: true } }
    }

    fn closed(&mut self, is_object: bool) -> Option<Place> {
        if *self.open.last()? != is_object {
            return None;
        }
        self.open.pop();
        Some(Place::Behind)
    }
}

fn text(is_key: bool, escape: Escape, byte: u8) -> Option<Place> {
    let within = |escape| Some(Place::Text { is_key, escape });
    match (escape, byte) {
        (Escape::None, b'"') if is_key => Some(Place::Colon),
        (Escape::None, b'"') => Some(Place::Behind),
        (Escape::None, b'\\') => within(Escape::Begun),
        (Escape::None, 0..0x20) => None,
        (Escape::None, _) => within(Escape::None),
        (Escape::Begun, b'u') => within(Escape::Hex(4)),
        (Escape::Begun, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => within(Escape::None),
        (Escape::Hex(1), byte) if byte.is_ascii_hexdigit() => within(Escape::None),
        (Escape::Hex(n), byte) if byte.is_ascii_hexdigit() => within(Escape::Hex(n - 1)),
        (Escape::Begun | Escape::Hex(_), _) => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::de::IgnoredAny;

    use super::*;

    /// What of a text is an object, by `serde_json`.
    fn object(text: &str) -> Option<usize> {
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
        let first = values.next().filter(|_| text.starts_with('{'))?;
        first.ok().map(|_| values.byte_offset())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn an_object_ends_where_serde_json_has_it_end(
            text in r#"\{("a": ?([\[\]{},0-9.eE+-]|true|nul|"\\u00e9|é"|"b"){1,6}[,}]?){0,4}\}?\}? ?x?"#
        ) {
            let (n, end) = JsonPrefix::default().read(&text);
            match object(&text) {
                Some(len) => prop_assert_eq!((n, end), (len, PrefixEnd::Whole)),
                None => prop_assert_ne!(end, PrefixEnd::Whole),
            }
        }
    }

    #[test]
    fn what_came_is_told_apart_from_what_is_wrong() {
        let read = |text: &str| JsonPrefix::default().read(text);
        assert_eq!(read(r#"{"a": [1, -0.5e+3, {"b": null}], "é\n\u00e9": "x"} y"#).1, PrefixEnd::Whole);
        assert_eq!(read("{}}"), (2, PrefixEnd::Whole));
        for open in ["", "{", r#"{"a"#, r#"{"a\"#, r#"{"a": 1"#, r#"{"a": -"#, r#"{"a": [1, "#, r#"{"a": tr"#] {
            assert_eq!(read(open), (open.len(), PrefixEnd::Open), "{open}");
        }
        for (wrong, at) in [
            (" {", 0),
            ("[]", 0),
            ("{,", 1),
            (r#"{"a" 1"#, 5),
            (r#"{"a": 01"#, 7),
            (r#"{"a": 1,}"#, 8),
            (r#"{"a": [1,]"#, 9),
            (r#"{"a": [1}"#, 8),
            (r#"{"a": tRue"#, 7),
            (r#"{"a": "\x"#, 8),
            ("{\"a\": \"\n", 7),
            (r#"{"a": 1.}"#, 8),
        ] {
            assert_eq!(read(wrong), (at, PrefixEnd::Wrong), "{wrong}");
        }
        let mut parts = JsonPrefix::default();
        assert_eq!(parts.read(r#"{"a": "x"#), (8, PrefixEnd::Open));
        assert_eq!(parts.read(r#"y"}, "#), (3, PrefixEnd::Whole));
    }
}
