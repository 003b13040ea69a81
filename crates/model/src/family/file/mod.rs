//! Reads a family's file, and checks everything that can be checked without a model.

mod tables;
mod tensors;

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;

use tables::{
    DimTable, ExpectedTable, FamilyTable, ForwardTable, NumberTable, OtherLayer, RopeTable, ScalingName, Whole,
};

use super::layer::{self, Names, Statement};
use super::{Dim, Expected, Family, FamilyError, FamilyTensor, Forward, List, Number, Rope, RopeScaling, Shape};
use data::{Origin, Place, SourceFile};
use expression::Expression;

impl Family {
    /// Reads a file; `path` is what it is called in errors.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line.
    pub fn read(path: &str, text: &str) -> Result<Self, FamilyError> {
        let source = SourceFile { origin: Origin::BuiltIn, name: path.into(), text: text.into() };
        let table: FamilyTable = toml::from_str(text).map_err(|error| FamilyError::Toml {
            place: place(&source, error.span().unwrap_or(0..0)),
            message: error.message().to_owned(),
        })?;
        let lists =
            table.lists.iter().map(|(name, list)| List { name: name.clone(), json: list.json.list() }).collect();
        let file = File { source, dims: table.dims.keys().cloned().collect(), lists };
        if let Some((_, dim)) = table.dims.iter().find(|(name, _)| table.lists.contains_key(*name)) {
            return Err(file.wrong(dim, "dims", "names that no list has", "one of a list"));
        }
        let name = table.name.get_ref();
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || !name.chars().all(is_of_name) {
            return Err(file.wrong(&table.name, "name", "letters, digits, `-`, `_` and `.`", &format!("{name:?}")));
        }
        if let Some(chat) =
            table.chat.as_ref().filter(|chat| !["harmony", "template"].contains(&chat.get_ref().as_str()))
        {
            return Err(file.wrong(chat, "chat", "\"harmony\" or \"template\"", &format!("{:?}", chat.get_ref())));
        }
        let has_default = |name: &String| table.dims[name].get_ref().default.is_some();
        let given: Vec<String> = file.dims.iter().filter(|name| !has_default(name)).cloned().collect();
        let heads = ["num_attention_heads", "num_key_value_heads", "head_dim"];
        let has_attention = table.forward.layer.get_ref().contains(super::check::ATTENTION)
            || table.forward.other.iter().any(|other| other.layer.get_ref().contains(super::check::ATTENTION));
        let needed = super::NEEDED.into_iter().chain(heads.into_iter().filter(|_| has_attention));
        if let Some(missing) = needed.into_iter().find(|needed| !file.dims.iter().any(|dim| dim == needed)) {
            return Err(file.wrong(&table.name, "dims", &format!("a dimension `{missing}`"), "none"));
        }
        let dims = in_order(&table.dims).map(|(name, dim)| file.dim(name, dim, &given));
        let dims: Vec<Dim> = dims.collect::<Result<_, _>>()?;
        let numbers = in_order(&table.numbers).map(|(name, number)| file.number(name, number));
        let numbers: Vec<Number> = numbers.collect::<Result<_, _>>()?;
        let facts = table.facts.iter().map(|(name, fact)| {
            let expression = file.expression(fact.get_ref(), fact)?;
            match file.dims.contains(name) || numbers.iter().any(|number| number.name == *name) || name == "layer" {
                true => Err(file.wrong(fact, name, "a name of its own", "one that is taken")),
                false => Ok((name.clone(), expression)),
            }
        });
        let facts: BTreeMap<String, Expression> = facts.collect::<Result<_, FamilyError>>()?;
        let mut ropes = vec![file.rope(super::COS_SIN, &table.rope, &numbers)?];
        for (name, rope) in in_order(&table.ropes) {
            if [super::COS_SIN, "x", "slot", "position"].contains(&name.as_str()) {
                return Err(file.wrong(rope, name, "a name of its own", "one that is taken"));
            }
            ropes.push(file.rope(name, rope, &numbers)?);
        }
        let expected = |table: &BTreeMap<String, Spanned<ExpectedTable>>, is_json| {
            let one = |(key, expected)| Ok((String::clone(key), file.expected(key, expected, is_json)?));
            table.iter().map(one).collect::<Result<BTreeMap<_, _>, FamilyError>>()
        };
        let shapes = table.shapes.iter().map(|(name, shape)| file.shape(name, shape, &dims, &numbers));
        let tensors: Vec<FamilyTensor> =
            table.tensor.iter().map(|tensor| file.tensor(tensor)).collect::<Result<_, _>>()?;
        file.no_two_alike(&table.tensor, &tensors)?;
        let forward = file.forward(&table.forward, &tensors, &facts, &numbers, &ropes)?;
        Ok(Self {
            expected_in_json: expected(&table.expect.json, true)?,
            expected_in_gguf: expected(&table.expect.gguf, false)?,
            shapes: shapes.collect::<Result<_, _>>()?,
            model_types: table.model_type.list(),
            architectures: table.architecture.list(),
            chat: table.chat.map(Spanned::into_inner),
            name: table.name.into_inner(),
            path: path.to_owned(),
            dims,
            numbers,
            lists: file.lists,
            facts,
            ropes,
            tensors,
            forward,
        })
    }
}

/// The entries of a table in the order of the file.
fn in_order<T>(table: &BTreeMap<String, Spanned<T>>) -> impl Iterator<Item = (&String, &Spanned<T>)> {
    let mut entries: Vec<(&String, &Spanned<T>)> = table.iter().collect();
    entries.sort_by_key(|(_, entry)| entry.span().start);
    entries.into_iter()
}

fn place(source: &SourceFile, span: Range<usize>) -> Place {
    Place { file: source.name.clone(), line: source.place_at(span.start).line }
}

/// The file that is read, for places in it.
struct File {
    source: SourceFile,
    /// The names that its expressions may use.
    dims: Vec<String>,
    /// And those of layers.
    lists: Vec<List>,
}

impl File {
    fn wrong<T>(&self, at: &Spanned<T>, item: &str, expected: &str, found: &str) -> FamilyError {
        FamilyError::at(&place(&self.source, at.span()), item, expected, found)
    }

    /// An expression over the dimensions, which stands at `at`.
    fn expression<T>(&self, text: &str, at: &Spanned<T>) -> Result<Expression, FamilyError> {
        self.expression_of(text, at, &self.dims)
    }

    /// An expression over these names.
    fn expression_of<T>(&self, text: &str, at: &Spanned<T>, names: &[String]) -> Result<Expression, FamilyError> {
        let expression = Expression::parse(text, place(&self.source, at.span()))?;
        match expression.names().iter().find(|name| !names.contains(name)) {
            None => Ok(expression),
            Some(name) => {
                let expected = format!("one of {}", names.join(", "));
                Err(self.wrong(at, text, &expected, &format!("`{name}`")))
            }
        }
    }

    /// The same of a layer: its number is a name too.
    fn condition_of_layer(&self, text: &Spanned<String>) -> Result<Expression, FamilyError> {
        let lists = self.lists.iter().map(|list| list.name.clone());
        let names: Vec<String> = self.dims.iter().cloned().chain(lists).chain(["layer".to_owned()]).collect();
        self.expression_of(text.get_ref(), text, &names)
    }

    fn whole(&self, table: &Option<Spanned<Whole>>, names: &[String]) -> Result<Option<Expression>, FamilyError> {
        let Some(at) = table else { return Ok(None) };
        let text = match at.get_ref() {
            Whole::Number(number) => number.to_string(),
            Whole::Text(text) => text.clone(),
        };
        self.expression_of(&text, at, names).map(Some)
    }

    fn rope(&self, name: &str, table: &Spanned<RopeTable>, numbers: &[Number]) -> Result<Rope, FamilyError> {
        let RopeTable { theta, dim, scaling, factor, low, high, original, divisors, json } = table.get_ref();
        let number = |name: &String| match numbers.iter().any(|number| number.name == *name) {
            true => Ok(name.clone()),
            false => Err(self.wrong(table, name, "one of the [numbers]", "no such name")),
        };
        let dimension = |name: &String| match self.dims.contains(name) {
            true => Ok(name.clone()),
            false => Err(self.wrong(table, name, "one of the [dims]", "no such name")),
        };
        let scaling = match (scaling, factor, original, low, high) {
            (ScalingName::None, None, None, None, None) => RopeScaling::None,
            (ScalingName::Linear, Some(factor), None, None, None) => RopeScaling::Linear { factor: number(factor)? },
            (ScalingName::Yarn, Some(factor), Some(original), None, None) => {
                RopeScaling::Yarn { factor: number(factor)?, original: dimension(original)? }
            }
            (ScalingName::Llama3, Some(factor), Some(original), Some(low), Some(high)) => RopeScaling::Llama3 {
                factor: number(factor)?,
                low: number(low)?,
                high: number(high)?,
                original: dimension(original)?,
            },
            _ => {
                let expected = "`scaling = \"linear\"` with `factor`, `\"yarn\"` with `factor` and `original`, \
                                `\"llama3\"` with these, `low` and `high`, or none of them";
                return Err(self.wrong(table, "rope", expected, "something else"));
            }
        };
        Ok(Rope {
            name: name.to_owned(),
            theta: number(theta)?,
            dim: self.expression(dim.get_ref(), dim)?,
            scaling,
            divisors: divisors.clone(),
            json: json.clone(),
        })
    }

    fn forward(
        &self,
        table: &ForwardTable,
        tensors: &[FamilyTensor],
        facts: &BTreeMap<String, Expression>,
        numbers: &[Number],
        ropes: &[Rope],
    ) -> Result<Forward, FamilyError> {
        let in_layers = || tensors.iter().filter(|tensor| tensor.per_layer);
        let names = |is_needed: fn(&FamilyTensor) -> bool| Names {
            tensors: in_layers().collect(),
            needed: in_layers().filter(|tensor| is_needed(tensor)).collect(),
            given: ropes[1..].iter().map(|rope| rope.name.clone()).collect(),
            dims: self
                .dims
                .iter()
                .chain(facts.keys())
                .chain(self.lists.iter().map(|list| &list.name))
                .cloned()
                .collect(),
            numbers: numbers.iter().map(|number| number.name.clone()).collect(),
        };
        let read = |text: &Spanned<String>, names: &Names| {
            let mut first = place(&self.source, text.span());
            // TOML leaves out a newline right after the quotes.
            first.line += usize::from(self.source.text[text.span()].get(3..4) == Some("\n"));
            layer::read(text.get_ref(), &first, names)
        };
        // A tensor of some layers alone may be used by some layers alone.
        let of_all = names(if table.other.is_empty() { |_| true } else { |tensor| tensor.when.is_none() });
        let of_some = names(|_| false);
        let layer: Vec<Statement> = read(&table.layer, &of_all)?;
        let behind = || tensors.iter().filter(|tensor| !tensor.per_layer);
        let outside =
            Names { tensors: behind().collect(), needed: Vec::new(), given: Default::default(), ..names(|_| false) };
        let first = table.first.as_ref().map_or(Ok(Vec::new()), |first| read(first, &outside))?;
        let last = read(&table.last, &outside)?;
        let other = |other: &OtherLayer| Ok((self.condition_of_layer(&other.when)?, read(&other.layer, &of_some)?));
        Ok(Forward { layer, others: table.other.iter().map(other).collect::<Result<_, FamilyError>>()?, first, last })
    }

    /// - `given`: the dimensions that have no default
    fn dim(&self, name: &str, table: &Spanned<DimTable>, given: &[String]) -> Result<Dim, FamilyError> {
        let &DimTable { min, max, null, ref json, ref gguf, ref gguf_lacks, ref gguf_has, .. } = table.get_ref();
        let DimTable { default, at_most, multiple_of, .. } = table.get_ref();
        // Shapes are products of a few, in 64 bits.
        if max > MAX_LAYERS && name == "num_hidden_layers" {
            return Err(self.wrong(table, name, &format!("a `max` of {MAX_LAYERS} at most"), &max.to_string()));
        }
        if min < 0 || max < min || max >= 1 << 31 {
            let found = format!("{min} to {max}");
            return Err(self.wrong(table, name, "a range from 0 or more to less than 2^31", &found));
        }
        if null.is_some_and(|null| !(min..=max).contains(&null)) {
            return Err(self.wrong(table, name, "a `null` in its range", &format!("{}", null.unwrap_or_default())));
        }
        Ok(Dim {
            name: name.to_owned(),
            min,
            max,
            json: json.list(),
            gguf: gguf.list(),
            gguf_lacks: gguf_lacks.clone(),
            gguf_has: gguf_has.list(),
            null,
            default: self.whole(default, given)?,
            at_most: self.whole(at_most, &self.dims)?,
            multiple_of: self.whole(multiple_of, &self.dims)?,
        })
    }

    fn number(&self, name: &str, table: &Spanned<NumberTable>) -> Result<Number, FamilyError> {
        let &NumberTable { above, default, ref json, ref gguf, ref root, ref over } = table.get_ref();
        if self.dims.iter().any(|dim| dim == name) {
            return Err(self.wrong(table, name, "a name that no dimension has", "it a second time"));
        }
        if !above.is_finite() {
            return Err(self.wrong(table, name, "an `above` that is a number", &above.to_string()));
        }
        if let Some(default) = default
            && !(default.is_finite() && default > f64::from(above))
        {
            return Err(self.wrong(table, name, &format!("a `default` above {above}"), &default.to_string()));
        }
        let (json, gguf) = (json.list(), gguf.list());
        let root = match (self.whole(root, &self.dims)?, self.whole(over, &self.dims)?) {
            (None, None) => None,
            (Some(root), over) if json.is_empty() && gguf.is_empty() && default.is_none() => Some((root, over)),
            _ => return Err(self.wrong(table, name, "`root`, with `over` or without, alone", "something else")),
        };
        Ok(Number { name: name.to_owned(), above, json, gguf, default, root })
    }

    /// GGUF has numbers alone, so a text there is an expression.
    fn expected(&self, key: &str, table: &Spanned<ExpectedTable>, is_json: bool) -> Result<Expected, FamilyError> {
        Ok(match table.get_ref() {
            ExpectedTable::Text(text) if is_json => Expected::Text(text.clone()),
            ExpectedTable::Text(text) => Expected::Dims(self.expression(text, table)?),
            ExpectedTable::Flag(flag) if is_json => Expected::Flag(*flag),
            ExpectedTable::Flag(flag) => {
                return Err(self.wrong(table, key, "a number, or an expression in quotes", &flag.to_string()));
            }
            ExpectedTable::Number(number) => Expected::Number(*number),
        })
    }

    fn shape(
        &self,
        name: &str,
        table: &Spanned<BTreeMap<String, Spanned<f64>>>,
        dims: &[Dim],
        numbers: &[Number],
    ) -> Result<Shape, FamilyError> {
        let values = table.get_ref();
        let is_dim = |name: &String| self.dims.contains(name);
        let is_number = |name: &String| numbers.iter().any(|number| number.name == *name && number.root.is_none());
        let given_dims = dims.iter().filter(|dim| dim.default.is_none()).map(|dim| &dim.name);
        let is_given = |number: &&Number| number.default.is_none() && number.root.is_none();
        let given_numbers = numbers.iter().filter(is_given).map(|number| &number.name);
        let needed = given_dims.chain(given_numbers);
        if let Some(missing) = needed.into_iter().find(|needed| !values.contains_key(*needed)) {
            return Err(self.wrong(table, name, &format!("`{missing}`"), "none"));
        }
        for (key, value) in values {
            if !is_dim(key) && !is_number(key) {
                return Err(self.wrong(value, key, "a dimension or a number of the family", "another name"));
            }
            let found = *value.get_ref();
            if let Some(dim) = dims.iter().find(|dim| dim.name == *key)
                && (found.fract() != 0.0 || !(dim.min as f64..=dim.max as f64).contains(&found))
            {
                let expected = format!("a whole number from {} to {}", dim.min, dim.max);
                return Err(self.wrong(value, key, &expected, &found.to_string()));
            }
            if let Some(number) = numbers.iter().find(|number| number.name == *key)
                && !(found.is_finite() && found > f64::from(number.above))
            {
                return Err(self.wrong(value, key, &format!("a number above {}", number.above), &found.to_string()));
            }
        }
        let values = values.iter().map(|(name, value)| (name.clone(), *value.get_ref())).collect();
        Ok(Shape { name: name.to_owned(), values })
    }
}

/// Layers are gone through one by one.
const MAX_LAYERS: i64 = 65_536;

#[cfg(test)]
mod tests;
