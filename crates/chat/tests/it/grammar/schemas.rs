//! Random JSON schemas of what can be enforced.

use serde_json::{Map, Value, json};

/// A generator of numbers: xorshift.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n.max(1)
    }

    pub fn is(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

const NAMES: [&str; 8] = ["a", "name", "the \"quoted\"", "naïve", "x-y", "n", "日本", "very_long_property_name"];

/// The schema of an object, as tools have it. Half of them define `node`, which refers to itself.
pub fn object(random: &mut Random) -> Value {
    let has_node = random.is(50);
    let mut schema = object_of(random, 3, has_node);
    if has_node {
        schema["$defs"] = json!({"node": {
            "type": "object",
            "properties": {"value": any(random, 1, false), "next": {"$ref": "#/$defs/node"}},
            "required": ["value"],
            "additionalProperties": false
        }});
    }
    schema
}

fn object_of(random: &mut Random, depth: usize, has_node: bool) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for _ in 0..random.below(5) {
        let name = *random.one_of(&NAMES);
        if !properties.contains_key(name) && random.is(60) {
            required.push(name);
        }
        properties.entry(name).or_insert_with(|| any(random, depth.saturating_sub(1), has_node));
    }
    let mut schema = json!({"type": "object", "properties": properties, "required": required});
    match random.below(4) {
        0 => {}
        1 => schema["additionalProperties"] = json!({"type": "integer"}),
        _ => schema["additionalProperties"] = false.into(),
    }
    schema
}

/// Any schema, of so many levels. Not `time` and `date-time`: every minute may have a second 60 by the grammar, which
/// is no time by the validator unless it is a leap second; no large numbers of which floats know no remainder.
fn any(random: &mut Random, depth: usize, has_node: bool) -> Value {
    let n_kinds = if depth == 0 { 11 } else { 18 };
    match random.below(n_kinds) {
        0 => json!({"type": "boolean"}),
        1 => json!({"type": "null"}),
        2 => json!({"type": "number"}),
        3 => {
            let least = random.below(200) as i64 - 100;
            json!({"type": "integer", "minimum": least, "maximum": least + random.below(1000) as i64})
        }
        4 => {
            let least = random.below(4);
            json!({"type": "string", "minLength": least, "maxLength": least + random.below(20)})
        }
        5 => {
            let values = [json!("red"), json!(1), json!(null), json!(true), json!("a \"b\"")];
            json!({"enum": values[..=random.below(5)]})
        }
        6 => json!({"type": "string", "pattern": *random.one_of(&["^[a-c]{2,4}$", "^x", "[0-9]+", "^(on|off)$"])}),
        7 => {
            json!({"type": "string", "format": *random.one_of(&["date", "uuid", "ipv4", "ipv6"])})
        }
        8 => json!({"const": random.one_of(&[json!("only"), json!(7), json!([1, 2]), json!({"a": 1})])}),
        9 => json!({"type": "number", "exclusiveMinimum": -0.5, "maximum": random.below(50)}),
        10 => json!({"type": "integer", "multipleOf": 1 + random.below(12), "minimum": 0, "maximum": 9999}),
        11 => object_of(random, depth, has_node),
        12 => {
            let least = random.below(3);
            json!({
                "type": "array",
                "items": any(random, depth - 1, has_node),
                "minItems": least,
                "maxItems": least + random.below(4)
            })
        }
        13 => json!({"anyOf": [any(random, depth - 1, has_node), {"type": "null"}]}),
        14 => json!({
            "type": "array",
            "prefixItems": [any(random, depth - 1, has_node), {"type": "integer"}],
            "items": {"type": "boolean"},
            "minItems": random.below(3),
            "maxItems": 4
        }),
        15 => json!({
            "type": "object",
            "patternProperties": {"^x_[a-z]{1,4}$": any(random, depth - 1, has_node)},
            "additionalProperties": false,
            "maxProperties": 2
        }),
        16 => json!({"oneOf": [{"type": "string", "maxLength": 9}, object_of(random, depth - 1, has_node)]}),
        _ if has_node => json!({"$ref": "#/$defs/node"}),
        _ => json!({"type": ["string", "integer", "null"]}),
    }
}
