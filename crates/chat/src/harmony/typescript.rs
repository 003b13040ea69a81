//! The parameters of a function as TypeScript, as the models were trained to read them.
//!
//! This is OpenAI's rendering (openai-harmony 0.0.8, `json_schema_to_typescript`), with its losses mended. OpenAI's
//! writes `any` for `anyOf`, `allOf`, `$ref`, `null` and missing types, and omits `const`; drops the members of a list
//! of types; binds `[]` closer than `|`; starts only the first line of a comment with `//`; and gives a function
//! without parameters an empty object.

use std::borrow::Cow;

use serde_json::{Map, Value};

/// References and variants can make a large text of a small schema: what would be more types than this is `any`.
const MAX_TYPES: usize = 4096;

/// The type of what a function takes; None if that is nothing.
pub(super) fn parameters(schema: &Value) -> Option<String> {
    let mut writer = Writer { root: schema, refs: Vec::new(), n_types: 0 };
    let resolved = writer.resolve(schema);
    let takes_any = |key: &str| match resolved.get(key) {
        Some(Value::Object(entries)) => !entries.is_empty(),
        Some(Value::Array(entries)) => !entries.is_empty(),
        _ => false,
    };
    let is_object = resolved.get("type").is_none_or(|kind| kind == "object");
    if is_object && !["properties", "oneOf", "anyOf", "allOf"].into_iter().any(takes_any) {
        return None;
    }
    writer.refs.clear();
    Some(writer.type_of(schema, "").text)
}

struct Writer<'a> {
    /// The schema in which references are resolved.
    root: &'a Value,
    /// References that are being resolved.
    refs: Vec<String>,
    n_types: usize,
}

struct Type {
    text: String,
    /// Whether it has to be in parentheses before `[]`.
    is_compound: bool,
}

impl From<&str> for Type {
    fn from(text: &str) -> Self {
        Self { text: text.to_owned(), is_compound: false }
    }
}

impl Type {
    fn joined(mut texts: Vec<String>, operator: &str) -> Self {
        let mut i = 0;
        while i < texts.len() {
            let is_new = !texts[..i].contains(&texts[i]);
            if is_new { i += 1 } else { drop(texts.remove(i)) }
        }
        Self { is_compound: texts.len() > 1, text: texts.join(operator) }
    }

    /// As a part of something that binds closer than it.
    fn bound(self) -> String {
        if self.is_compound { format!("({})", self.text) } else { self.text }
    }
}

impl Writer<'_> {
    /// What a reference refers to, with what stands beside it. A reference that leads into itself, or nowhere, may be
    /// anything. What is followed stays in `refs`.
    fn resolve<'s>(&mut self, schema: &'s Value) -> Cow<'s, Value> {
        let mut schema = Cow::Borrowed(schema);
        while let Some(reference) = schema.get("$ref").and_then(Value::as_str).map(str::to_owned) {
            let target = reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
            let Some(Value::Object(target)) = target.filter(|_| !self.refs.contains(&reference)) else {
                return Cow::Owned(Value::Object(Map::new()));
            };
            let mut target = target.clone();
            let beside = schema.as_object().into_iter().flatten().filter(|(key, _)| *key != "$ref");
            target.extend(beside.map(|(key, value)| (key.clone(), value.clone())));
            self.refs.push(reference);
            schema = Cow::Owned(Value::Object(target));
        }
        schema
    }

    fn type_of(&mut self, schema: &Value, indent: &str) -> Type {
        let n_refs = self.refs.len();
        let schema = self.resolve(schema);
        let written = self.type_of_resolved(&schema, indent);
        self.refs.truncate(n_refs);
        written
    }

    fn type_of_resolved(&mut self, schema: &Value, indent: &str) -> Type {
        self.n_types += 1;
        if self.n_types > MAX_TYPES {
            return "any".into();
        }
        let list = |key: &str| schema.get(key).and_then(Value::as_array).filter(|list| !list.is_empty());
        if let Some(variants) = list("oneOf") {
            return Type { text: self.one_of(variants, indent), is_compound: variants.len() > 1 };
        }
        if let Some(value) = schema.get("const") {
            return value.to_string().as_str().into();
        }
        let kinds: Vec<&str> = match schema.get("type") {
            Some(Value::String(kind)) => vec![kind],
            Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
            _ => vec![],
        };
        if let [kind] = kinds[..] {
            return self.of_kind(kind, schema, indent);
        }
        if !kinds.is_empty() {
            let types = kinds.iter().map(|kind| self.of_kind(kind, schema, indent).text).collect();
            return Type::joined(types, " | ");
        }
        if let Some(variants) = list("anyOf") {
            let types = variants.iter().map(|variant| self.type_of(variant, indent).text).collect();
            return Type::joined(types, " | ");
        }
        if let Some(parts) = list("allOf") {
            if let [part] = &parts[..] {
                return self.type_of(part, indent);
            }
            let types = parts.iter().map(|part| self.type_of(part, indent).bound()).collect();
            return Type::joined(types, " & ");
        }
        if let Some(values) = list("enum") {
            return Type::joined(values.iter().map(Value::to_string).collect(), " | ");
        }
        if schema.get("properties").is_some() {
            return self.object(schema, indent).as_str().into();
        }
        "any".into()
    }

    fn of_kind(&mut self, kind: &str, schema: &Value, indent: &str) -> Type {
        match kind {
            "object" => self.object(schema, indent).as_str().into(),
            "string" => {
                let values = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
                let values: Vec<String> =
                    values.filter_map(Value::as_str).map(|value| format!("\"{value}\"")).collect();
                if values.is_empty() { "string".into() } else { Type::joined(values, " | ") }
            }
            "number" | "integer" => "number".into(),
            "boolean" => "boolean".into(),
            "null" => "null".into(),
            "array" => match schema.get("items") {
                Some(items) => format!("{}[]", self.type_of(items, indent).bound()).as_str().into(),
                None => "Array<any>".into(),
            },
            _ => "any".into(),
        }
    }

    /// Variants, one a line, after what stands before them.
    fn one_of(&mut self, variants: &[Value], indent: &str) -> String {
        let mut out = String::new();
        for variant in variants {
            let written = self.type_of(variant, &format!("{indent}   ")).text;
            out += &format!("\n{indent} | {}", or_null(written, variant));
            let comments = [description(variant).map(str::to_owned), default_of(variant)];
            out += &trailing(&comments.into_iter().flatten().collect::<Vec<_>>(), indent);
        }
        out
    }

    fn object(&mut self, schema: &Value, indent: &str) -> String {
        let mut out = comment(description(schema).unwrap_or_default(), indent);
        out += "{\n";
        let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
        let required = schema.get("required").and_then(Value::as_array);
        for (name, property) in properties {
            let is_required = required.is_some_and(|names| names.iter().any(|required| required == name.as_str()));
            let n_refs = self.refs.len();
            let property = self.resolve(property);
            out += &self.property(name, &property, is_required, indent);
            self.refs.truncate(n_refs);
        }
        out + &format!("{indent}}}")
    }

    fn property(&mut self, name: &str, schema: &Value, is_required: bool, indent: &str) -> String {
        let mark = if is_required { "" } else { "?" };
        let mut out = String::new();
        if let Some(title) = schema.get("title").and_then(Value::as_str) {
            out += &format!("{}{indent}//\n", comment(title, indent));
        }
        let variants = schema.get("oneOf").and_then(Value::as_array);
        let description = description(schema);
        if variants.is_none() {
            out += &comment(description.unwrap_or_default(), indent);
        }
        let examples = schema.get("examples").and_then(Value::as_array).filter(|examples| !examples.is_empty());
        if let Some(examples) = examples {
            out += &format!("{indent}// Examples:\n");
            for example in examples.iter().filter_map(Value::as_str) {
                out += &comment(&format!("- \"{example}\""), indent);
            }
        }
        let Some(variants) = variants else {
            let written = or_null(self.type_of_resolved(schema, &format!("{indent}    ")).text, schema);
            let default = default_of(schema).map(|default| format!(" // {default}")).unwrap_or_default();
            return out + &format!("{indent}{name}{mark}: {written},{default}\n");
        };
        // What is said of the property is not said again of its first variant.
        let of_first = variants.first().and_then(self::description);
        let is_said_above = description.is_some() && description != of_first;
        if is_said_above {
            out += &comment(description.unwrap_or_default(), indent);
        }
        if let Some(default) = default_of(schema) {
            out += &comment(&default, indent);
        }
        out += &format!("{indent}{name}{mark}:\n");
        for (i, variant) in variants.iter().enumerate() {
            let written = self.type_of(variant, &format!("{indent}   ")).text;
            out += &format!("{indent} | {}", or_null(written, variant));
            let said = self::description(variant).filter(|said| Some(*said) != description);
            let said = said.filter(|_| i > 0 || !is_said_above);
            let comments = [said.map(str::to_owned), default_of(variant)];
            out += &trailing(&comments.into_iter().flatten().collect::<Vec<_>>(), indent);
            out.push('\n');
        }
        out + &format!("{indent},\n")
    }
}

fn description(schema: &Value) -> Option<&str> {
    schema.get("description").and_then(Value::as_str)
}

/// OpenAPI's way of saying that something may be null.
fn or_null(written: String, schema: &Value) -> String {
    let is_nullable = schema.get("nullable").and_then(Value::as_bool).unwrap_or(false);
    if is_nullable && !written.contains("null") { format!("{written} | null") } else { written }
}

/// `default: …`; a string is quoted unless it is one of several.
fn default_of(schema: &Value) -> Option<String> {
    let is_enum = schema.get("enum").and_then(Value::as_array).is_some_and(|values| !values.is_empty());
    Some(match schema.get("default")? {
        Value::String(default) if is_enum => format!("default: {default}"),
        Value::String(default) => format!("default: \"{default}\""),
        default => format!("default: {default}"),
    })
}

/// Lines of their own; none for no text.
pub(super) fn comment(text: &str, indent: &str) -> String {
    text.lines().map(|line| format!("{indent}// {line}\n")).collect()
}

/// Behind a type, in the same line as far as they have one.
fn trailing(comments: &[String], indent: &str) -> String {
    let text = comments.join(" ");
    text.lines().map(|line| format!(" // {line}")).collect::<Vec<_>>().join(&format!("\n{indent}  "))
}
