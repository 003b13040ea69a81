//! Texts of other programs: a byte order mark at the beginning, and JSON with unpaired surrogates.

/// U+FEFF in UTF-8, which editors of some systems put in front of a text. It is no part of it.
pub const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A text without the byte order mark in front of it.
pub fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text)
}

/// What a text is written in by its first bytes, if that is not UTF-8.
pub fn other_encoding(text: &[u8]) -> Option<&'static str> {
    match text {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => Some("UTF-32"),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Some("UTF-16"),
        // JSON and most texts begin with characters of ASCII.
        [0, 1..=0x7f, 0, 1..=0x7f, ..] | [1..=0x7f, 0, 1..=0x7f, 0, ..] => Some("UTF-16"),
        _ => None,
    }
}

/// Makes JSON of others what readers take: the byte order mark goes, and an escape that is half of a pair of
/// surrogates, which RFC 8259 allows and no text can have, is U+FFFD. Clients that cut texts by UTF-16 send such.
pub fn mend_json(json: &mut Vec<u8>) {
    if json.starts_with(BYTE_ORDER_MARK) {
        json.drain(..BYTE_ORDER_MARK.len());
    }
    let mut at = 0;
    while let Some(n_before) = json[at..].iter().position(|&byte| byte == b'\\') {
        at += n_before;
        let unit = unit(&json[at..]);
        let is_pair = unit.is_some_and(|unit| (0xd800..0xdc00).contains(&unit))
            && json.get(at + 6..).and_then(self::unit).is_some_and(|unit| (0xdc00..0xe000).contains(&unit));
        match unit {
            Some(_) if is_pair => at += 12,
            Some(0xd800..0xe000) => {
                json[at + 2..at + 6].copy_from_slice(b"fffd");
                at += 6;
            }
            _ => at = (at + 2).min(json.len()),
        }
    }
}

/// What a reader of JSON says of a value that is not what it should be, in words of people: `should be a number, but is
/// "hot"`.
pub fn should_be(error: &str) -> String {
    const NAMES: [(&str, &str); 9] = [
        ("f32", "a number"),
        ("f64", "a number"),
        ("usize", "a whole number that is not negative"),
        ("u64", "a whole number that is not negative"),
        ("u32", "a whole number that is not negative"),
        ("i64", "a whole number"),
        ("a boolean", "true or false"),
        ("a sequence", "a list"),
        ("a map", "an object"),
    ];
    // serde_json's words end in a place of the bytes.
    let error = error.split(" at line ").next().unwrap_or_default();
    let wrong = error.strip_prefix("invalid type: ").or_else(|| error.strip_prefix("invalid value: "));
    let Some((found, expected)) = wrong.and_then(|wrong| wrong.rsplit_once(", expected ")) else {
        return format!("is not what it should be: {error}");
    };
    let expected = if expected.starts_with("struct ") { "an object" } else { expected };
    let expected = NAMES.iter().find(|(name, _)| *name == expected).map_or(expected, |(_, words)| words);
    let found = match found {
        "map" => "an object".to_owned(),
        "sequence" => "a list".to_owned(),
        "null" => "`null`".to_owned(),
        found => match found.split_once(' ') {
            Some(("string", text)) => format!("`{text}`"),
            Some(("integer" | "boolean", value)) => value.to_owned(),
            Some(("floating", value)) => value.trim_start_matches("point ").to_owned(),
            _ => found.to_owned(),
        },
    };
    format!("should be {expected}, but is {found}")
}

/// The number of the escape `\uXXXX` that a text begins with.
fn unit(text: &[u8]) -> Option<u32> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    let digits = str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
    u32::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mended(json: &str) -> String {
        let mut json = json.as_bytes().to_vec();
        mend_json(&mut json);
        String::from_utf8(json).expect("it was a text")
    }

    #[test]
    fn half_a_pair_is_the_replacement_character_and_all_else_stays() {
        for (json, want) in [
            (r#""cut \ud83d""#, r#""cut \ufffd""#),
            (r#""\uD83D\uDE00 \ude00""#, r#""\uD83D\uDE00 \ufffd""#),
            (r#""\ud83d\ud83d\ude00""#, r#""\ufffd\ud83d\ude00""#),
            (r#""\\ud83d \\\ud83d\n""#, r#""\\ud83d \\\ufffd\n""#),
            (r#""\ud83d\n\u00e9\uD8""#, r#""\ufffd\n\u00e9\uD8""#),
            ("\u{feff}{}", "{}"),
            (r#""\"#, r#""\"#),
        ] {
            assert_eq!(mended(json), want, "{json}");
        }
        let text: String = serde_json::from_str(&mended(r#""a \ud83d\ud83d\ude00""#)).expect("JSON");
        assert_eq!(text, "a \u{fffd}😀");
    }

    #[test]
    fn what_readers_say_is_told_without_names_of_types() {
        fn error<T: serde::de::DeserializeOwned>(json: &str) -> String {
            should_be(&serde_json::from_str::<T>(json).map(drop).expect_err("is wrong").to_string())
        }
        assert_eq!(error::<f64>("\"hot\""), "should be a number, but is `\"hot\"`");
        assert_eq!(error::<u32>("-1"), "should be a whole number that is not negative, but is `-1`");
        assert_eq!(error::<Vec<u32>>("{}"), "should be a list, but is an object");
        assert_eq!(error::<bool>("2.5"), "should be true or false, but is `2.5`");
    }

    #[test]
    fn other_encodings_are_told_by_their_first_bytes() {
        let utf16: Vec<u8> = "2\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(other_encoding(&utf16), Some("UTF-16"));
        assert_eq!(other_encoding(&[&[0xff, 0xfe][..], &utf16].concat()), Some("UTF-16"));
        for text in ["", "a", "2\n", "\u{feff}{}", "é"] {
            assert_eq!(other_encoding(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(without_mark("\u{feff}a".as_bytes()), b"a");
    }
}
