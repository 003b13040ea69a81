//! Jinja's filters, tests and globals that this engine lacks or defines differently, and how it writes numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::{Kwargs, Object, ObjectRepr, Rest, StringInput, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, escape_formatter, filters};

use super::json::{Spelling, python_float, python_json};
use super::methods::{blanks, centred};

/// The widest indentation of JSON.
const MAX_INDENT: usize = 16;

pub(super) fn add_to(environment: &mut Environment<'_>) {
    minijinja_contrib::add_to_environment(environment); // `joiner` and filters that are as Jinja's
    environment.add_function("cycler", |items: Rest<Value>| cycler(items.to_vec()));
    environment.add_filter("tojson", tojson);
    environment.add_filter("wordcount", wordcount);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("string", |value: &Value| spelled(value).unwrap_or_else(|| value.to_string()));
    environment.add_filter("replace", replace);
    environment.add_filter("indent", indent);
    environment.add_filter("truncate", truncate);
    environment.add_filter("center", |text: StringInput<'_>, width: Option<usize>| {
        centred(text.as_str(), width.unwrap_or(80), ' ')
    });
    environment.add_filter("forceescape", |text: StringInput<'_>| escaped(text.as_str()));
    for name in ["escape", "e"] {
        environment.add_filter(name, |value: &Value| {
            if value.is_safe() { value.clone() } else { Value::from_safe_string(escaped(&value.to_string())) }
        });
    }
    environment.add_filter("urlencode", urlencode);
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined)
    });
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    environment.set_formatter(|out, state, value| match spelled(value) {
        Some(text) => out.write_str(&text).map_err(Error::from),
        None => escape_formatter(out, state, value),
    });
}

/// The text of a number that is no integer.
fn spelled(value: &Value) -> Option<String> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    f64::try_from(value.clone()).ok().filter(|_| is_float).map(python_float)
}

/// What a filter is given besides: by place, or by name.
struct Given {
    by_place: Vec<Value>,
    by_name: Kwargs,
}

impl Given {
    /// # Errors
    /// Something has no such name, or no place.
    fn read(given: Rest<ValueOrKwargs>, names: &[&str]) -> Result<Self, Error> {
        let mut by_place = given.into_values();
        let by_name = match by_place.pop_if(|last| last.is_kwargs()) {
            Some(named) => Kwargs::try_from(named)?,
            None => Kwargs::from_iter([] as [(&str, Value); 0]),
        };
        let unknown = by_name.args().find(|name| !names.contains(name));
        if unknown.is_some() || by_place.len() > names.len() {
            let found = unknown.map_or_else(|| format!("{} of them", by_place.len()), |name| format!("`{name}`"));
            let why = format!("expected options {}, found {found}", names.join(", "));
            return Err(Error::new(ErrorKind::TooManyArguments, why));
        }
        let mut given = Self { by_place, by_name };
        for name in &names[given.by_place.len()..] {
            let value = given.by_name.get::<Option<Value>>(name)?.unwrap_or_default();
            given.by_place.push(value);
        }
        Ok(given)
    }

    /// That of this place, unless it is none.
    fn get(&self, place: usize) -> Option<Value> {
        self.by_place.get(place).filter(|value| !value.is_none() && !value.is_undefined()).cloned()
    }

    fn is_true(&self, place: usize) -> bool {
        self.get(place).is_some_and(|value| value.is_true())
    }

    fn number(&self, place: usize, default: usize) -> Result<usize, Error> {
        self.get(place).map_or(Ok(default), usize::try_from)
    }
}

/// As Hugging Face's filter: Python's JSON, with characters beyond ASCII unchanged by default.
fn tojson(value: &Value, given: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let given = Given::read(given, &["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let spelling = Spelling {
        is_ascii: given.is_true(0),
        indent: match given.get(1) {
            Some(indent) if indent.kind() == ValueKind::String => Some(indent.to_string()),
            Some(indent) => Some(" ".repeat(usize::try_from(indent)?.min(MAX_INDENT))),
            None => None,
        },
        separators: match given.get(2) {
            Some(both) => Some(both.try_iter()?.map(|one| one.to_string()).collect()),
            None => None,
        },
        sorts_keys: given.is_true(3),
    };
    python_json(value, &spelling).map_err(|why| Error::new(ErrorKind::BadSerialization, why.to_string()))
}

/// Runs of letters, digits and underscores, as Jinja counts words.
fn wordcount(text: &str) -> usize {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).count()
}

fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { filters::length(value) }
}

/// A number, or else what was given for texts that are none.
fn int(state: &State<'_, '_>, value: &Value, given: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let given = Given::read(given, &["default", "base"])?;
    let (default, base) = (given.get(0).unwrap_or_else(|| 0.into()), given.get(1).map(u32::try_from).transpose()?);
    let nothing = Kwargs::from_iter([] as [(&str, Value); 0]);
    Ok(filters::int(state, value, Some(default.clone()), base, nothing).unwrap_or(default))
}

fn float(state: &State<'_, '_>, value: &Value, given: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let default = Given::read(given, &["default"])?.get(0).unwrap_or_else(|| 0.0.into());
    let nothing = Kwargs::from_iter([] as [(&str, Value); 0]);
    Ok(filters::float(state, value, Some(default.clone()), nothing).unwrap_or(default))
}

fn replace(text: StringInput<'_>, old: StringInput<'_>, new: StringInput<'_>, count: Option<usize>) -> String {
    match count {
        Some(count) => text.as_str().replacen(old.as_str(), new.as_str(), count),
        None => text.as_str().replace(old.as_str(), new.as_str()),
    }
}

/// `width` is a number of blanks, or the text that is put before lines.
fn indent(text: StringInput<'_>, given: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let given = Given::read(given, &["width", "first", "blank"])?;
    let (first, blank) = (given.is_true(1), given.is_true(2));
    let before = match given.get(0) {
        Some(width) if width.kind() == ValueKind::String => width.to_string(),
        _ => blanks(given.number(0, 4)?, "", ' ')?,
    };
    let text = text.as_str().to_owned() + "\n";
    let mut written = String::new();
    for (i, line) in text.lines().enumerate() {
        written += if i > 0 { "\n" } else { "" };
        if if i == 0 { first } else { blank || !line.is_empty() } {
            written += &before;
        }
        written += line;
    }
    Ok(written)
}

/// The beginning of a text: to the last blank of it unless words may be cut, with `end` after it, unless little is
/// left out.
fn truncate(text: StringInput<'_>, given: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let given = Given::read(given, &["length", "killwords", "end", "leeway"])?;
    let (length, cuts, leeway) = (given.number(0, 255)?, given.is_true(1), given.number(3, 5)?);
    let end = given.get(2).map_or_else(|| "...".to_owned(), |end| end.to_string());
    let text = text.as_str();
    let Some(kept) = length.checked_sub(end.chars().count()) else {
        let why = format!("truncate: expected a length that `{end}` fits, found {length}");
        return Err(Error::new(ErrorKind::InvalidOperation, why));
    };
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text.to_owned());
    }
    let kept: String = text.chars().take(kept).collect();
    let words = kept.rsplit_once(' ').map_or(kept.as_str(), |(words, _)| words);
    Ok(if cuts { kept + &end } else { words.to_owned() + &end })
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;").replace('\'', "&#39;")
}

/// A text as a part of an address, or pairs as what follows its question mark.
fn urlencode(value: &Value) -> Result<String, Error> {
    let quoted = |value: &Value, is_of_query: bool| -> String {
        let is_plain =
            |byte: u8| byte.is_ascii_alphanumeric() || b"_.-~".contains(&byte) || byte == b'/' && !is_of_query;
        let quote = |byte: u8| match byte {
            b' ' if is_of_query => "+".to_owned(),
            byte if is_plain(byte) => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        };
        value.to_string().bytes().map(quote).collect()
    };
    if value.kind() != ValueKind::Map {
        return Ok(quoted(value, false));
    }
    let pair = |key: Value| Ok(quoted(&key, true) + "=" + &quoted(&value.get_item(&key)?, true));
    let pairs: Result<Vec<String>, Error> = value.try_iter()?.map(pair).collect();
    Ok(pairs?.join("&"))
}

/// Gives its items in turn.
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

fn cycler(items: Vec<Value>) -> Result<Value, Error> {
    if items.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "cycler: expected at least one item"));
    }
    Ok(Value::from_object(Cycler { items, at: AtomicUsize::new(0) }))
}

impl Cycler {
    fn current(&self) -> Value {
        self.items[self.at.load(Ordering::Relaxed)].clone()
    }
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("current")).then(|| self.current())
    }

    fn call_method(self: &Arc<Self>, _: &mut State<'_, '_>, method: &str, args: &[Value]) -> Result<Value, Error> {
        let () = from_args(args)?;
        match method {
            "next" => {
                let item = self.current();
                self.at.store((self.at.load(Ordering::Relaxed) + 1) % self.items.len(), Ordering::Relaxed);
                Ok(item)
            }
            "reset" => {
                self.at.store(0, Ordering::Relaxed);
                Ok(().into())
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}
