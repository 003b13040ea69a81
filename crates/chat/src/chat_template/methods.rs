//! Python's methods of strings, lists and maps that this engine's own library lacks or defines differently.

use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

pub(super) fn call(state: &mut State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let args = &by_place(method, args)?;
    let called = match value.kind() {
        ValueKind::String => of_text(value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Seq if method == "index" => Some(index(value, from_args::<(&Value,)>(args)?.0)?),
        ValueKind::Seq | ValueKind::Map if method == "copy" => Some(value.clone()),
        _ => None,
    };
    called.map_or_else(|| unknown_method_callback(state, value, method, args), Ok)
}

/// Arguments that are given by name, in the places that they have.
fn by_place(method: &str, args: &[Value]) -> Result<Vec<Value>, Error> {
    let names: &[&str] = match method {
        "split" | "rsplit" => &["sep", "maxsplit"],
        "splitlines" => &["keepends"],
        "expandtabs" => &["tabsize"],
        _ => &[],
    };
    let mut placed = args.to_vec();
    if let Some(last) = args.last().filter(|last| last.is_kwargs() && !names.is_empty()) {
        placed.pop();
        let named = Kwargs::try_from(last.clone())?;
        for name in &names[placed.len().min(names.len())..] {
            placed.push(named.get::<Option<Value>>(name)?.unwrap_or_default());
        }
        named.assert_all_used()?;
        let n_given = placed.iter().rposition(|value| !value.is_undefined()).map_or(0, |last| last + 1);
        placed.truncate(n_given);
        placed.iter_mut().filter(|value| value.is_undefined()).for_each(|value| *value = ().into());
    }
    Ok(placed)
}

fn of_text(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let none = |is_so: bool| from_args::<()>(args).map(|()| is_so.into());
    let value = match method {
        "partition" | "rpartition" => {
            let (by,): (&str,) = from_args(args)?;
            let parts = if method == "partition" { text.split_once(by) } else { text.rsplit_once(by) };
            let parts = parts.map_or_else(
                || if method == "partition" { [text, "", ""] } else { ["", "", text] },
                |(before, behind)| [before, by, behind],
            );
            Value::from_object(Tuple::from(parts.map(Value::from)))
        }
        "rsplit" => {
            let (by, most): (Option<&str>, Option<i64>) = from_args(args)?;
            if by == Some("") {
                return Err(Error::new(ErrorKind::InvalidOperation, "rsplit: the separator is empty"));
            }
            rsplit(text, (by, most))
        }
        "find" | "rfind" | "index" | "rindex" | "count" | "startswith" | "endswith"
            if args.len() > 1 || method.ends_with("index") =>
        {
            let (what, from, to): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
            return within(text, method, what, from, to).map(Some);
        }
        "title" => none(true).map(|_: Value| titled(text).into())?,
        "swapcase" => none(true).map(|_: Value| swapped(text).into())?,
        "casefold" => none(true).map(|_: Value| text.to_lowercase().replace('ß', "ss").into())?,
        "isdecimal" => none(!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))?,
        "isidentifier" => none(is_identifier(text))?,
        "istitle" => none(text.chars().any(char::is_alphabetic) && titled(text) == text)?,
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            (sign.to_owned() + &blanks(width, text, '0')? + digits).into()
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (usize, Option<char>) = from_args(args)?;
            let fill = fill.unwrap_or(' ');
            match method {
                "ljust" => (text.to_owned() + &blanks(width, text, fill)?).into(),
                "rjust" => (blanks(width, text, fill)? + text).into(),
                _ => centred(text, width, fill)?.into(),
            }
        }
        "expandtabs" => {
            let (size,): (Option<usize>,) = from_args(args)?;
            expanded(text, size.unwrap_or(8))?.into()
        }
        _ => return Ok(None),
    };
    Ok(Some(value))
}

/// The widest text that is filled up.
const MAX_WIDTH: usize = 1 << 16;

/// What a text lacks to a width.
pub(super) fn blanks(width: usize, text: &str, fill: char) -> Result<String, Error> {
    if width > MAX_WIDTH {
        let why = format!("expected a width of {MAX_WIDTH} at most, found {width}");
        return Err(Error::new(ErrorKind::InvalidOperation, why));
    }
    Ok(std::iter::repeat_n(fill, width.saturating_sub(text.chars().count())).collect())
}

/// A text in the middle of a width, as Python has it: where it cannot be, nearer to the end if the width is odd.
pub(super) fn centred(text: &str, width: usize, fill: char) -> Result<String, Error> {
    let fill = blanks(width, text, fill)?;
    let n = fill.chars().count();
    let n_before = n / 2 + (n & width & 1);
    let (before, behind) = fill.split_at(fill.char_indices().nth(n_before).map_or(fill.len(), |(at, _)| at));
    Ok(before.to_owned() + text + behind)
}

fn expanded(text: &str, size: usize) -> Result<String, Error> {
    let mut written = String::new();
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' if size > 0 => {
                let n = size - column % size;
                written += &blanks(n, "", ' ')?;
                column += n;
            }
            '\t' => {}
            c => {
                written.push(c);
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    Ok(written)
}

/// Parts of a text, cut from its end.
fn rsplit(text: &str, (by, most): (Option<&str>, Option<i64>)) -> Value {
    let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let mut parts: Vec<&str> = Vec::new();
    let mut rest = if by.is_some() { text } else { text.trim_end() };
    while parts.len() < most {
        let cut = match by {
            Some(by) => rest.rsplit_once(by),
            None => rest.rfind(char::is_whitespace).map(|at| rest.split_at(at)),
        };
        let Some((before, part)) = cut else { break };
        parts.push(if by.is_some() { part } else { part.trim_start() });
        rest = if by.is_some() { before } else { before.trim_end() };
    }
    if by.is_some() || !rest.trim_start().is_empty() {
        parts.push(if by.is_some() { rest } else { rest.trim_start() });
    }
    parts.into_iter().rev().map(Value::from).collect()
}

/// Searches in a part of a text, from one character to another, as in slices.
fn within(text: &str, method: &str, what: &Value, from: Option<i64>, to: Option<i64>) -> Result<Value, Error> {
    let n = text.chars().count();
    let place = |at: i64| if at < 0 { n.saturating_sub(at.unsigned_abs() as usize) } else { (at as usize).min(n) };
    let (from, to) = (place(from.unwrap_or(0)), place(to.unwrap_or(i64::MAX)));
    let byte = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
    let part = &text[byte(from)..byte(to.max(from))];
    if matches!(method, "startswith" | "endswith") {
        let is_such = |what: &str| if method == "startswith" { part.starts_with(what) } else { part.ends_with(what) };
        let found = match what.as_str() {
            Some(what) => is_such(what),
            None => what.try_iter()?.any(|what| what.as_str().is_some_and(is_such)),
        };
        return Ok(found.into());
    }
    let Some(what) = what.as_str() else {
        let why = format!("{method}: expected a text, found a {}", what.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, why));
    };
    if method == "count" {
        return Ok(part.matches(what).count().into());
    }
    let found = if method.starts_with('r') { part.rfind(what) } else { part.find(what) };
    match found.map(|at| part[..at].chars().count() + from) {
        Some(at) => Ok(at.into()),
        None if method.ends_with("find") => Ok((-1).into()),
        None => Err(Error::new(ErrorKind::InvalidOperation, format!("{method}: the text has no {what:?}"))),
    }
}

fn index(list: &Value, what: &Value) -> Result<Value, Error> {
    let found = list.try_iter()?.position(|item| item == *what);
    found.map(Value::from).ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "index: the list has no such item"))
}

/// Letters after letters are small, others are capitals: Python's way, which takes `'` for the end of a word.
fn titled(text: &str) -> String {
    let mut written = String::with_capacity(text.len());
    let mut is_within = false;
    for c in text.chars() {
        if is_within {
            written.extend(c.to_lowercase())
        } else {
            written.extend(c.to_uppercase())
        }
        is_within = c.is_alphabetic();
    }
    written
}

fn swapped(text: &str) -> String {
    let swap =
        |c: char| -> String { if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() } };
    text.chars().map(swap).collect()
}

fn is_identifier(text: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.chars().next().is_some_and(|c| is_part(c) && !c.is_numeric()) && text.chars().all(is_part)
}
