//! A family's file: reading it, and everything that can be checked without a model.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::{Cut, Dim, Draw, Expected, Family, FamilyError, FamilyTensor, Format, Number, Shape, Spelled, Stack};
use crate::template::expression::Expression;
use crate::template::source_file::{Origin, Place, SourceFile};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FamilyTable {
    name: Spanned<String>,
    dims: BTreeMap<String, Spanned<DimTable>>,
    #[serde(default)]
    numbers: BTreeMap<String, Spanned<NumberTable>>,
    #[serde(default)]
    expect: ExpectTable,
    #[serde(default)]
    shapes: BTreeMap<String, Spanned<BTreeMap<String, Spanned<f64>>>>,
    tensor: Vec<TensorTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DimTable {
    #[serde(default = "one")]
    min: i64,
    max: i64,
    #[serde(default)]
    json: Keys,
    #[serde(default)]
    gguf: Keys,
    null: Option<i64>,
}

fn one() -> i64 {
    1
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a key, or a list of keys")]
enum Keys {
    One(String),
    Several(Vec<String>),
}

impl Default for Keys {
    fn default() -> Self {
        Self::Several(Vec::new())
    }
}

impl Keys {
    fn list(&self) -> Vec<String> {
        match self {
            Self::One(key) => vec![key.clone()],
            Self::Several(keys) => keys.clone(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NumberTable {
    above: f32,
    default: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectTable {
    #[serde(default)]
    json: BTreeMap<String, Spanned<ExpectedTable>>,
    #[serde(default)]
    gguf: BTreeMap<String, Spanned<ExpectedTable>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text, a number, true or false")]
enum ExpectedTable {
    Text(String),
    Flag(bool),
    Number(f64),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorTable {
    name: Spanned<String>,
    #[serde(default)]
    layer: bool,
    #[serde(default)]
    experts: bool,
    shape: Spanned<Vec<Spanned<String>>>,
    openai: Option<Spanned<SpelledTable>>,
    hf: Option<Spanned<SpelledTable>>,
    gguf: Option<Spanned<SpelledTable>>,
    stack: Option<Spanned<StackTable>>,
    #[serde(default)]
    cut: Cut,
    draw: Option<Spanned<DrawTable>>,
}

impl TensorTable {
    /// What the file says of its names in a format.
    fn spelled(&self, format: Format) -> Option<&Spanned<SpelledTable>> {
        match format {
            Format::OpenAi => self.openai.as_ref(),
            Format::HuggingFace => self.hf.as_ref(),
            Format::Gguf => self.gguf.as_ref(),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a name, a list of names, or `{ transposed = NAME }`")]
enum SpelledTable {
    Same(String),
    Stacked(Vec<String>),
    Transposed(Transposed),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Transposed {
    transposed: String,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a list of numbers of rows, or \"in turn\"")]
enum StackTable {
    Rows(Vec<String>),
    Word(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DrawTable {
    centre: Option<f32>,
    reach: Option<f32>,
    deviation: Option<f32>,
}

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
        let file = File { source, dims: table.dims.keys().cloned().collect() };
        let name = table.name.get_ref();
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || !name.chars().all(is_of_name) {
            return Err(file.wrong(&table.name, "name", "letters, digits, `-`, `_` and `.`", &format!("{name:?}")));
        }
        let dims: Vec<Dim> = table.dims.iter().map(|(name, dim)| file.dim(name, dim)).collect::<Result<_, _>>()?;
        let numbers = table.numbers.iter().map(|(name, number)| file.number(name, number));
        let numbers: Vec<Number> = numbers.collect::<Result<_, _>>()?;
        let expected = |table: &BTreeMap<String, Spanned<ExpectedTable>>, is_json| {
            let one = |(key, expected)| Ok((String::clone(key), file.expected(key, expected, is_json)?));
            table.iter().map(one).collect::<Result<BTreeMap<_, _>, FamilyError>>()
        };
        let shapes = table.shapes.iter().map(|(name, shape)| file.shape(name, shape, &dims, &numbers));
        let tensors: Vec<FamilyTensor> =
            table.tensor.iter().map(|tensor| file.tensor(tensor)).collect::<Result<_, _>>()?;
        file.no_two_alike(&table.tensor, &tensors)?;
        Ok(Self {
            expected_in_json: expected(&table.expect.json, true)?,
            expected_in_gguf: expected(&table.expect.gguf, false)?,
            shapes: shapes.collect::<Result<_, _>>()?,
            name: table.name.into_inner(),
            dims,
            numbers,
            tensors,
        })
    }
}

fn place(source: &SourceFile, span: Range<usize>) -> Place {
    Place { file: source.name.clone(), line: source.place_at(span.start).line }
}

/// The file that is read, for places in it.
struct File {
    source: SourceFile,
    /// The names that its expressions may use.
    dims: Vec<String>,
}

impl File {
    fn wrong<T>(&self, at: &Spanned<T>, item: &str, expected: &str, found: &str) -> FamilyError {
        FamilyError::Declaration {
            place: place(&self.source, at.span()),
            item: format!("`{item}`"),
            expected: expected.to_owned(),
            found: found.to_owned(),
        }
    }

    /// An expression over the dimensions, which stands at `at`.
    fn expression<T>(&self, text: &str, at: &Spanned<T>) -> Result<Expression, FamilyError> {
        let expression = Expression::parse(text, place(&self.source, at.span()))?;
        match expression.names().iter().find(|name| !self.dims.contains(name)) {
            None => Ok(expression),
            Some(name) => {
                let expected = format!("one of {}", self.dims.join(", "));
                Err(self.wrong(at, text, &expected, &format!("`{name}`")))
            }
        }
    }

    fn dim(&self, name: &str, table: &Spanned<DimTable>) -> Result<Dim, FamilyError> {
        let &DimTable { min, max, null, ref json, ref gguf } = table.get_ref();
        // Shapes are products of a few, in 64 bits.
        if min < 0 || max < min || max >= 1 << 31 {
            let found = format!("{min} to {max}");
            return Err(self.wrong(table, name, "a range from 0 or more to less than 2^31", &found));
        }
        if null.is_some_and(|null| !(min..=max).contains(&null)) {
            return Err(self.wrong(table, name, "a `null` in its range", &format!("{}", null.unwrap_or_default())));
        }
        Ok(Dim { name: name.to_owned(), min, max, json: json.list(), gguf: gguf.list(), null })
    }

    fn number(&self, name: &str, table: &Spanned<NumberTable>) -> Result<Number, FamilyError> {
        let &NumberTable { above, default } = table.get_ref();
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
        Ok(Number { name: name.to_owned(), above, default })
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
        let is_number = |name: &String| numbers.iter().any(|number| number.name == *name);
        let needed = self.dims.iter().chain(numbers.iter().map(|number| &number.name));
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

    fn tensor(&self, table: &TensorTable) -> Result<FamilyTensor, FamilyError> {
        let name = table.name.get_ref();
        let shape: Vec<Expression> =
            table.shape.get_ref().iter().map(|n| self.expression(n.get_ref(), n)).collect::<Result<_, _>>()?;
        if shape.is_empty() || table.experts && shape.len() != 3 {
            let expected = if table.experts { "three dimensions of `experts`" } else { "at least one dimension" };
            return Err(self.wrong(&table.shape, name, expected, &shape.len().to_string()));
        }
        let stack = table.stack.as_ref().map(|stack| self.stack(name, stack, shape.len())).transpose()?;
        let spelled = |format| match table.spelled(format) {
            None => Ok(Spelled::Same(name.clone())),
            Some(spelled) => self.spelled(name, spelled, shape.len(), stack.as_ref()),
        };
        let [openai, hf, gguf] = Format::ALL.map(spelled);
        let spelled = [openai?, hf?, gguf?];
        let draw = table.draw.as_ref().map_or(Ok(Draw::Matrix), |draw| self.draw(name, draw))?;
        let (per_layer, is_expert, cut) = (table.layer, table.experts, table.cut);
        Ok(FamilyTensor { name: name.clone(), per_layer, is_expert, shape, spelled, stack, cut, draw })
    }

    /// Checks that no name stands for two tensors, neither here nor in any format.
    fn no_two_alike(&self, tables: &[TensorTable], tensors: &[FamilyTensor]) -> Result<(), FamilyError> {
        let mut names = HashSet::new();
        for TensorTable { name, .. } in tables {
            if !names.insert(name.get_ref()) {
                return Err(self.wrong(name, name.get_ref(), "a name that no other tensor has", "it a second time"));
            }
        }
        for format in Format::ALL {
            let mut owners = HashMap::new();
            for (table, tensor) in tables.iter().zip(tensors) {
                let names = match tensor.spelled(format) {
                    Spelled::Same(name) | Spelled::Transposed(name) => std::slice::from_ref(name),
                    Spelled::Stacked(names) => names,
                };
                for stored in names {
                    let Some(owner) = owners.insert((tensor.per_layer, stored), &tensor.name) else { continue };
                    let expected = "stored names that no other tensor has";
                    let found = format!("`{stored}`, which `{owner}` has");
                    return Err(match table.spelled(format) {
                        Some(at) => self.wrong(at, &tensor.name, expected, &found),
                        None => self.wrong(&table.name, &tensor.name, expected, &found),
                    });
                }
            }
        }
        Ok(())
    }

    fn stack(&self, name: &str, stack: &Spanned<StackTable>, n_dims: usize) -> Result<Stack, FamilyError> {
        match stack.get_ref() {
            StackTable::Rows(rows) => {
                Ok(Stack::Rows(rows.iter().map(|n| self.expression(n, stack)).collect::<Result<_, _>>()?))
            }
            StackTable::Word(word) if word == "in turn" && n_dims > 1 => Ok(Stack::InTurn),
            StackTable::Word(word) if word == "in turn" => {
                Err(self.wrong(stack, name, "two dimensions or more: rows in turn are those of the second", "one"))
            }
            StackTable::Word(word) => {
                Err(self.wrong(stack, name, "a list of numbers of rows, or \"in turn\"", &format!("{word:?}")))
            }
        }
    }

    fn spelled(
        &self,
        name: &str,
        spelled: &Spanned<SpelledTable>,
        n_dims: usize,
        stack: Option<&Stack>,
    ) -> Result<Spelled, FamilyError> {
        match spelled.get_ref() {
            SpelledTable::Same(stored) => Ok(Spelled::Same(stored.clone())),
            SpelledTable::Transposed(Transposed { transposed }) if n_dims > 1 => {
                Ok(Spelled::Transposed(transposed.clone()))
            }
            SpelledTable::Transposed(_) => Err(self.wrong(spelled, name, "two dimensions to swap", "one")),
            SpelledTable::Stacked(stored) => match stack {
                None => Err(self.wrong(spelled, name, "`stack`, which says how these are put together", "none")),
                Some(Stack::Rows(rows)) if rows.len() != stored.len() => {
                    let expected = format!("{} names, as `stack` has numbers of rows", rows.len());
                    Err(self.wrong(spelled, name, &expected, &stored.len().to_string()))
                }
                Some(_) if stored.len() < 2 => Err(self.wrong(spelled, name, "two names or more", "fewer")),
                Some(_) => Ok(Spelled::Stacked(stored.clone())),
            },
        }
    }

    fn draw(&self, name: &str, draw: &Spanned<DrawTable>) -> Result<Draw, FamilyError> {
        let positive = |number: f32| number.is_finite() && number > 0.0;
        match *draw.get_ref() {
            DrawTable { centre: None, reach: None, deviation: Some(deviation) } if positive(deviation) => {
                Ok(Draw::Deviation(deviation))
            }
            DrawTable { centre, reach: Some(reach), deviation: None }
                if positive(reach) && centre.is_none_or(f32::is_finite) =>
            {
                Ok(Draw::Around { centre: centre.unwrap_or(0.0), reach })
            }
            _ => Err(self.wrong(
                draw,
                name,
                "`reach` above 0, with `centre` or without, or `deviation` above 0 alone",
                "another `draw`",
            )),
        }
    }
}

/// The formats in the order of [`FamilyTensor::spelled`].
const _: () = assert!(Format::OpenAi as usize == 0 && Format::HuggingFace as usize == 1 && Format::Gguf as usize == 2);

#[cfg(test)]
mod tests;
