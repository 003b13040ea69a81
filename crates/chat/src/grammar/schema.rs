//! Converts clients' schemas for the grammar engine: drops annotations, rewrites unsupported keywords where possible,
//! and reports errors with their place.

use serde_json::{Map, Value, json};

use super::pattern;

/// The formats that are enforced; others annotate, as JSON Schema has it.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Keywords whose value is a schema, a list of schemas, or schemas by name.
const ONE: [&str; 10] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedProperties",
];
const LISTS: [&str; 5] = ["allOf", "anyOf", "items", "oneOf", "prefixItems"];
const NAMED: [&str; 5] = ["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"];

/// A schema that says the same as far as it can be enforced.
///
/// # Errors
/// What is wrong, and where: `properties.mail.pattern`.
pub(super) fn adapted(schema: &Value) -> Result<Value, String> {
    let mut schema = schema.clone();
    adapt(&mut schema, &mut Vec::new())?;
    Ok(schema)
}

fn at(path: &[String], why: impl std::fmt::Display) -> String {
    if path.is_empty() { why.to_string() } else { format!("`{}`: {why}", path.join(".")) }
}

fn adapt(schema: &mut Value, path: &mut Vec<String>) -> Result<(), String> {
    let entries = match schema {
        Value::Bool(_) => return Ok(()),
        Value::Object(entries) => entries,
        other => {
            return Err(at(path, format!("expected a schema, which is an object, `true` or `false`, found {other}")));
        }
    };
    let is_annotation = |format: &Value| format.as_str().is_some_and(|format| !FORMATS.contains(&format));
    if entries.get("format").is_some_and(is_annotation) {
        entries.remove("format");
    }
    if let Some(Value::String(text)) = entries.get_mut("pattern") {
        adapt_pattern(text, path, "pattern")?;
    }
    if let Some(names) = entries.get("propertyNames").cloned() {
        adapt_names(entries, &names).map_err(|why| at(&[path, &["propertyNames".to_owned()][..]].concat(), why))?;
    }
    if let Some(Value::Object(patterns)) = entries.get_mut("patternProperties") {
        for (mut name, value) in std::mem::take(patterns) {
            adapt_pattern(&mut name, path, "patternProperties")?;
            patterns.insert(name, value);
        }
    }
    children(entries, path, &mut |schema, path| adapt(schema, path))
}

fn adapt_pattern(text: &mut String, path: &[String], keyword: &str) -> Result<(), String> {
    if pattern::looks_around(text) {
        let shown: String = text.chars().take(80).collect();
        let wrong = |why| at(&[path, &[keyword.to_owned()]].concat(), format!("the pattern `{shown}`: {why}"));
        *text = pattern::without_look_around(text).map_err(wrong)?;
    }
    Ok(())
}

/// `propertyNames`, which the engine does not have: names that may be any are no bound, names after a pattern are those
/// of `patternProperties`, and a list of names is one of properties.
fn adapt_names(entries: &mut Map<String, Value>, names: &Value) -> Result<(), String> {
    let of_names = match names {
        Value::Bool(true) => Map::new(),
        Value::Object(of_names) => of_names.clone(),
        _ => return Err(format!("`{names}` cannot be enforced")),
    };
    let bounds =
        |word: &&String| !["type", "title", "description", "$comment", "examples", "default"].contains(&word.as_str());
    let bounds: Vec<&String> = of_names.keys().filter(bounds).collect();
    let is_text = of_names.get("type").is_none_or(|kind| kind == "string");
    let is_alone = entries.get("properties").is_none_or(|own| own.as_object().is_some_and(Map::is_empty))
        && !entries.contains_key("patternProperties");
    let value = || entries.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
    let (keyword, named) = match (bounds.as_slice(), is_alone) {
        ([], _) if is_text => {
            entries.remove("propertyNames");
            return Ok(());
        }
        ([only], true) if is_text && *only == "pattern" => {
            let pattern = of_names["pattern"].as_str().ok_or("its `pattern` is no text")?;
            ("patternProperties", json!({ pattern: value() }))
        }
        ([only], true) if is_text && (*only == "enum" || *only == "const") => {
            let list = of_names.get("enum").cloned().unwrap_or_else(|| json!([of_names["const"]]));
            let list = list.as_array().ok_or("its `enum` is no list")?;
            let named = list.iter().filter_map(|name| Some((name.as_str()?.to_owned(), value())));
            ("properties", Value::Object(named.collect()))
        }
        _ => return Err("it cannot be enforced: only `pattern`, `enum` and `const` can, without `properties`".into()),
    };
    entries.remove("propertyNames");
    entries.insert(keyword.to_owned(), named);
    entries.insert("additionalProperties".to_owned(), Value::Bool(false));
    Ok(())
}

/// What is done with a schema and its path.
type Work<'a> = dyn FnMut(&mut Value, &mut Vec<String>) -> Result<(), String> + 'a;

/// Does something with all schemas right inside of one.
fn children(entries: &mut Map<String, Value>, path: &mut Vec<String>, work: &mut Work<'_>) -> Result<(), String> {
    let mut inside = |value: &mut Value, steps: &[&str]| {
        let n = path.len();
        path.extend(steps.iter().map(|step| (*step).to_owned()));
        let done = work(value, path);
        path.truncate(n);
        done
    };
    for (keyword, value) in entries.iter_mut() {
        let word = keyword.as_str();
        match value {
            Value::Object(named) if NAMED.contains(&word) => {
                for (name, schema) in named.iter_mut() {
                    inside(schema, &[word, name])?;
                }
            }
            Value::Array(list) if LISTS.contains(&word) => {
                for (i, schema) in list.iter_mut().enumerate() {
                    inside(schema, &[word, &i.to_string()])?;
                }
            }
            value if ONE.contains(&word) && !value.is_array() => inside(value, &[word])?,
            _ => {}
        }
    }
    Ok(())
}

/// Why a schema does not compile, with the place of the innermost one that does not, alone. None if it does.
pub(super) fn blame(schema: &Value, compile: &dyn Fn(&Value) -> Option<String>) -> Option<String> {
    let mut schema = match adapted(schema) {
        Ok(schema) => schema,
        Err(why) => return Some(why),
    };
    let why = compile(&schema)?;
    let definitions: Map<String, Value> = ["$defs", "definitions"]
        .iter()
        .filter_map(|word| Some(((*word).to_owned(), schema.get(word)?.clone())))
        .collect();
    let mut innermost = (Vec::new(), why);
    let mut n_left = MAX_TRIED;
    innermost_wrong(&mut schema, &mut Vec::new(), &mut |schema, path| {
        n_left = n_left.checked_sub(1)?;
        let mut alone = schema.as_object()?.clone();
        for (word, value) in &definitions {
            alone.entry(word.clone()).or_insert_with(|| value.clone());
        }
        let why = compile(&Value::Object(alone))?;
        innermost = (path.to_vec(), why);
        Some(())
    });
    Some(at(&innermost.0, innermost.1))
}

/// Parts of a schema that are tried, to find the one that is wrong.
const MAX_TRIED: usize = 60;

/// Goes from a schema that is wrong to one inside of it that is, as long as there is one.
fn innermost_wrong(
    schema: &mut Value,
    path: &mut Vec<String>,
    is_wrong: &mut dyn FnMut(&Value, &[String]) -> Option<()>,
) {
    let Some(entries) = schema.as_object_mut() else { return };
    // The first that is wrong ends the search on its level.
    let _ = children(entries, path, &mut |schema, path| {
        if is_wrong(schema, path).is_none() {
            return Ok(());
        }
        innermost_wrong(schema, path, is_wrong);
        Err(String::new())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_annotates_goes_and_names_become_patterns_and_properties() {
        let of = |schema: Value| adapted(&schema).expect("can be enforced");
        let number = json!({"type": "number"});
        assert_eq!(
            of(json!({"properties": {"a": {"type": "string", "format": "password"}, "b": {"format": "uuid"}}})),
            json!({"properties": {"a": {"type": "string"}, "b": {"format": "uuid"}}})
        );
        assert_eq!(
            of(json!({"propertyNames": {"type": "string"}, "additionalProperties": number})),
            json!({"additionalProperties": number})
        );
        assert_eq!(
            of(json!({"propertyNames": {"pattern": "^a+$"}, "additionalProperties": number})),
            json!({"additionalProperties": false, "patternProperties": {"^a+$": number}})
        );
        assert_eq!(
            of(json!({"propertyNames": {"type": "string", "enum": ["a", "b"]}, "additionalProperties": number})),
            json!({"additionalProperties": false, "properties": {"a": number, "b": number}})
        );
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let why = |schema: Value| adapted(&schema).expect_err("is wrong");
        assert!(
            why(json!({"properties": {"deep": {"properties": {"x": null}}}}))
                .starts_with("`properties.deep.properties.x`: expected a schema")
        );
        let look = why(json!({"anyOf": [{}, {"pattern": "a(?=b)"}]}));
        assert!(look.starts_with("`anyOf.1.pattern`: the pattern `a(?=b)`: "), "{look}");
        let names = json!({"properties": {"a": {}}, "propertyNames": {"maxLength": 3}});
        assert!(why(names).starts_with("`propertyNames`: it cannot be enforced"));
        let schema = json!({"properties": {"a": {"items": {"wrong": 1}}, "b": {}}});
        let compile = |schema: &Value| schema.to_string().contains("wrong").then(|| "no".to_owned());
        assert_eq!(blame(&schema, &compile).as_deref(), Some("`properties.a.items`: no"));
    }

    #[test]
    fn names_that_are_bounded_otherwise_are_refused() {
        for names in [
            json!({"minLength": 2}),
            json!({"enum": ["a"], "type": "integer"}),
            json!({"pattern": "a", "maxLength": 3}),
        ] {
            let why = adapted(&json!({"propertyNames": names})).expect_err("cannot be enforced");
            assert!(why.starts_with("`propertyNames`: it cannot be enforced"), "{names}: {why}");
        }
        let alone = adapted(&json!({"propertyNames": {"const": "a"}, "additionalProperties": {"type": "number"}}));
        let listed = json!({"additionalProperties": false, "properties": {"a": {"type": "number"}}});
        assert_eq!(alone, Ok(listed));
    }
}
