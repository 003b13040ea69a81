//! The API keys of a server: those of its flags, of a file, and of a variable.
//!
//! A key that no request can contain would admit no one, and an empty key everyone: both are errors.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use anyhow::Context;

use crate::usage::UsageError;
use serve::keys::{KeyLimits, Keys};

/// More keys, besides those of the flags.
pub(super) const VARIABLE: &str = "GPTOSS_JIT_API_KEY";

/// The keys of all three places: `flags`, the lines of a file, and what the variable holds.
///
/// # Errors
/// An invalid key, with its place; a file without keys, or that cannot be read.
pub(super) fn read(flags: &[String], file: Option<&Path>, variable: Option<OsString>) -> anyhow::Result<Keys> {
    let mut keys = Vec::new();
    for flag in flags {
        keys.push((key(flag, "`--api-key`")?, KeyLimits::default()));
    }
    if let Some(path) = file {
        keys.extend(lines(path)?);
    }
    if let Some(value) = variable {
        let value = value.into_string().map_err(|_| not_ascii(VARIABLE))?;
        keys.push((key(&value, VARIABLE)?, KeyLimits::default()));
    }
    Ok(Keys::with_limits(keys))
}

fn lines(path: &Path) -> anyhow::Result<Vec<(String, KeyLimits)>> {
    let text = fs::read_to_string(path).with_context(|| format!("could not read keys `{}`", path.display()))?;
    // Editors of other systems put a byte order mark in front.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let lines = text.lines().map(str::trim).enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let keys: Vec<_> = lines
        .map(|(i, line)| limited(line, &format!("line {} of `{}`", i + 1, path.display())))
        .collect::<Result<_, _>>()?;
    if keys.is_empty() {
        return Err(UsageError(format!("`{}` holds no key", path.display())).into());
    }
    Ok(keys)
}

/// A key, and after it what it may do.
fn limited(line: &str, place: &str) -> Result<(String, KeyLimits), UsageError> {
    let mut words = line.split_ascii_whitespace();
    let (first, mut limits) = (words.next().unwrap_or_default(), KeyLimits::default());
    for word in words {
        let Some((name, number)) = word.split_once('=') else { return Err(not_ascii(place)) };
        let number = number.parse().ok().filter(|number| *number > 0);
        let wrong = || UsageError(format!("{place} says `{word}`, expected `running=` or `per-minute=` and a number"));
        match name {
            "running" => limits.running = Some(number.ok_or_else(wrong)?),
            "per-minute" => limits.per_minute = Some(number.ok_or_else(wrong)?),
            _ => return Err(wrong()),
        }
    }
    Ok((key(first, place)?, limits))
}

/// A key as requests bring it. White space around it is not part of it: variables and files often end in a line end.
fn key(text: &str, place: &str) -> Result<String, UsageError> {
    let key = text.trim();
    if key.is_empty() {
        return Err(UsageError(format!("{place} is empty, and would admit everyone; leave it out for that")));
    }
    if key.bytes().all(|byte| byte.is_ascii_graphic()) { Ok(key.to_owned()) } else { Err(not_ascii(place)) }
}

fn not_ascii(place: &str) -> UsageError {
    UsageError(format!(
        "{place} is a key that no request can contain, expected visible ASCII characters without blanks"
    ))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tempfile::NamedTempFile;

    use super::*;

    /// Of a file, the keys or the error.
    fn of_file(bytes: &[u8]) -> Result<Vec<String>, String> {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        let keys = lines(file.path()).map(|keys| keys.into_iter().map(|(key, _)| key).collect());
        keys.map_err(|error| error.to_string().replace(&file.path().display().to_string(), "FILE"))
    }

    #[test]
    fn comments_blanks_and_a_byte_order_mark_are_no_keys() {
        assert_eq!(
            of_file(b"\xef\xbb\xbfone\r\n\r\n  # of the laptop\n\ttwo#2 \n"),
            Ok(vec!["one".into(), "two#2".into()])
        );
        assert_eq!(of_file(b"# one\n\n"), Err("`FILE` holds no key".into()));
        assert!(of_file(b"one\ntwo # of the laptop\n").unwrap_err().starts_with("line 2 of `FILE` is a key that no"));
        assert!(of_file("schlüssel".as_bytes()).unwrap_err().starts_with("line 1 of `FILE` is a key that no"));
    }

    #[test]
    fn limits_stand_behind_a_key() {
        let of = |line: &str| limited(line, "line 1").map_err(|error| error.to_string());
        let limits = KeyLimits { running: Some(2), per_minute: Some(60) };
        assert_eq!(of("one running=2  per-minute=60"), Ok(("one".into(), limits)));
        assert!(of("one running=0").unwrap_err().contains("`running=0`, expected `running=`"));
        assert!(of("one burst=2").unwrap_err().contains("`burst=2`"));
    }

    #[test]
    fn a_key_of_the_environment_may_end_in_a_line_end_and_is_not_empty() {
        let of = |text: &str| read(&[], None, Some(text.into()));
        assert!(of("secret\n").unwrap().opens("secret"));
        for text in ["", " \n", "a b", "é"] {
            assert!(of(text).is_err(), "{text:?}");
        }
        assert!(read(&[], None, None).unwrap().is_empty());
        assert!(read(&[String::new()], None, None).is_err());
        assert!(read(&["secret\r".into()], None, None).unwrap().opens("secret"));
    }

    #[cfg(unix)]
    #[test]
    fn a_key_that_is_no_text_is_an_error_and_not_left_out() {
        use std::os::unix::ffi::OsStringExt;
        let error = read(&[], None, Some(OsString::from_vec(vec![b'a', 0xff]))).unwrap_err();
        assert!(error.to_string().starts_with("GPTOSS_JIT_API_KEY is a key that no request can contain"), "{error}");
    }
}
